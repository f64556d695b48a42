"""Who may read the operator's metrics: the owner of a token whom the API server lets `get` the path /metrics."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cleanrl_operator.kube import Kube, KubeError

PATH = "/metrics"
FRESH_SECONDS = 60.0
"""How long an answer is believed: a scraper that comes every few seconds costs two reviews a minute."""
MOST_KNOWN = 256
REVIEWS_PER_MINUTE = 120
"""Reviews for callers who are not known yet; more of them are turned away unasked."""


@dataclass(frozen=True)
class Refusal:
    """The HTTP answer to a caller who gets no metrics."""

    status: int
    message: str
    headers: dict[str, str] = field(default_factory=dict)


UNKNOWN = Refusal(401, "a bearer token is needed that this cluster accepts", {"WWW-Authenticate": "Bearer"})
FORBIDDEN = Refusal(403, f"the token's owner may not get {PATH}: bind it to a role that allows that path")
NO_ANSWER = Refusal(503, "the API server can't be asked about the token; try again", {"Retry-After": "5"})
TOO_MANY = Refusal(429, "too many unknown callers; try again", {"Retry-After": "60"})


class MetricsReaders:
    """Asks the API server by TokenReview and SubjectAccessReview. Tokens are remembered as digests only."""

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[bytes, tuple[float, Refusal | None]] = {}
        self._asked: list[float] = []

    async def __call__(self, authorization: str) -> Refusal | None:
        """None when the bearer of this header may read."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return UNKNOWN
        digest, now = hashlib.sha256(token.encode(errors="replace")).digest(), self._clock()
        known = self._known.get(digest)
        if known is not None and now - known[0] < FRESH_SECONDS:
            return known[1]
        self._asked = [at for at in self._asked if now - at < 60.0]
        if len(self._asked) >= REVIEWS_PER_MINUTE:
            return TOO_MANY
        self._asked.append(now)
        try:
            answer = await self._review(token.strip())
        except KubeError:
            return NO_ANSWER
        if len(self._known) >= MOST_KNOWN:
            self._known = {key: value for key, value in self._known.items() if now - value[0] < FRESH_SECONDS}
        if len(self._known) < MOST_KNOWN:
            self._known[digest] = (now, answer)
        return answer

    async def _review(self, token: str) -> Refusal | None:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        said = (await self._kube.review("apis/authentication.k8s.io/v1/tokenreviews", review)).get("status") or {}
        user = said.get("user") or {}
        if not said.get("authenticated") or not user.get("username"):
            return UNKNOWN
        spec = {
            "user": user["username"],
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
        }
        question = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._kube.review("apis/authorization.k8s.io/v1/subjectaccessreviews", question)
        return None if (answer.get("status") or {}).get("allowed") else FORBIDDEN

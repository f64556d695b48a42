"""Who calls: the pod's own projected token, verified by the API server, and our session tokens.

A token proves the pod it is bound to, by UID. Which run a pod may speak for is decided elsewhere, by `status.podUID` alone:
labels and owner references are a tenant's to forge.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

from cleanrl_operator.desired.pod import TOKEN_AUDIENCE
from cleanrl_operator.kube import Kube

POD_UID = "authentication.kubernetes.io/pod-uid"
SESSION_SECONDS = 24 * 3600


class NotProven(Exception):
    """The token does not prove a pod. The message is safe to log: it never holds the token."""


@dataclass(frozen=True)
class PodIdentity:
    """A pod that has proven itself."""

    namespace: str
    pod_uid: str


class TokenReviewer:
    """Verifies pod tokens by TokenReview, with our audience asked for and found in the answer."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.reviews = 0

    async def verify(self, token: str) -> PodIdentity:
        """The pod that this token is bound to. Raises NotProven."""
        self.reviews += 1
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [TOKEN_AUDIENCE]},
        }
        answer = (await self._kube.review("apis/authentication.k8s.io/v1/tokenreviews", body)).get("status") or {}
        if not answer.get("authenticated"):
            raise NotProven("the API server does not accept the token")
        if TOKEN_AUDIENCE not in (answer.get("audiences") or []):
            raise NotProven("the token is meant for another audience")
        user = answer.get("user") or {}
        parts = str(user.get("username", "")).split(":")
        uids = (user.get("extra") or {}).get(POD_UID) or []
        if len(parts) != 4 or parts[:2] != ["system", "serviceaccount"] or len(uids) != 1:
            raise NotProven("the token is not bound to a pod")
        return PodIdentity(namespace=parts[2], pod_uid=uids[0])


class SessionTokens:
    """Stateless tokens of registered workers: an HMAC over the pod and an expiry, checked on every call."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        if len(key) < 32:
            raise ValueError("the session key needs at least 32 bytes")
        self._key = key
        self._clock = clock

    def issue(self, run_uid: str, pod_uid: str) -> str:
        """A token for this pod of this run."""
        expires = int(self._clock()) + SESSION_SECONDS
        text = f"{run_uid}|{pod_uid}|{expires}"
        return base64.urlsafe_b64encode(f"{text}|{self._sign(text)}".encode()).decode()

    def verify(self, token: str) -> tuple[str, str]:
        """(run UID, pod UID) of a valid token. Raises NotProven."""
        try:
            text, _, signature = base64.urlsafe_b64decode(token.encode()).decode().rpartition("|")
            run_uid, pod_uid, expires = text.split("|")
            until = int(expires)
        except (ValueError, UnicodeError):
            raise NotProven("the session token is not one of ours") from None
        if not hmac.compare_digest(signature, self._sign(text)):
            raise NotProven("the session token is not one of ours")
        if until < self._clock():
            raise NotProven("the session token has expired: register again")
        return run_uid, pod_uid

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

"""Who calls: the pod's own projected token, verified by the API server or by the keys it publishes, and our session tokens.

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
from typing import Any, Protocol

import jwt

from cleanrl_operator.desired.pod import TOKEN_AUDIENCE
from cleanrl_operator.kube import Kube

POD_UID = "authentication.kubernetes.io/pod-uid"
SESSION_SECONDS = 24 * 3600
KEYS_FRESH_SECONDS = 300.0
KEYS_PAUSE_SECONDS = 10.0
"""An unknown key id makes us ask again, but not more often than this."""
CLOCK_SKEW_SECONDS = 60
ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512")


class NotProven(Exception):
    """The token does not prove a pod. The message is safe to log: it never holds the token."""


@dataclass(frozen=True)
class PodIdentity:
    """A pod that has proven itself."""

    namespace: str
    pod_uid: str


class Verifier(Protocol):
    """Tells whose token it is."""

    async def verify(self, token: str) -> PodIdentity:
        """The pod that this token is bound to. Raises NotProven, or KubeError when nobody could be asked."""


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


class PublishedKeys:
    """Verifies pod tokens by the keys that the API server publishes: needs no right beyond what every account has.

    It can't know that a token's pod is gone; that the pod is a run's current one is checked by its UID anyway.
    """

    def __init__(self, kube: Kube, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._issuer = ""
        self._keys: dict[str, Any] = {}
        self._asked: float | None = None

    async def verify(self, token: str) -> PodIdentity:
        """See Verifier."""
        try:
            header = jwt.get_unverified_header(token)
            key = await self._key(str(header.get("kid", "")))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=TOKEN_AUDIENCE,
                issuer=self._issuer,
                leeway=CLOCK_SKEW_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.ExpiredSignatureError:
            raise NotProven("the token has expired") from None
        except jwt.InvalidAudienceError:
            raise NotProven("the token is meant for another audience") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise NotProven("the token is not signed by this cluster") from None
        bound = claims.get("kubernetes.io")
        namespace = bound.get("namespace") if isinstance(bound, dict) else None
        pod = bound.get("pod") if isinstance(bound, dict) else None
        uid = pod.get("uid") if isinstance(pod, dict) else None
        if not isinstance(namespace, str) or not isinstance(uid, str) or not uid:
            raise NotProven("the token is not bound to a pod")
        return PodIdentity(namespace=namespace, pod_uid=uid)

    async def _key(self, key_id: str) -> Any:
        """The key of this id; asks for the keys when they are old, or when one is new to us."""
        now = self._clock()
        age = now - self._asked if self._asked is not None else KEYS_FRESH_SECONDS
        if age >= KEYS_FRESH_SECONDS or (key_id not in self._keys and age >= KEYS_PAUSE_SECONDS):
            about = await self._kube.get(".well-known/openid-configuration") or {}
            found = await self._kube.get("openid/v1/jwks") or {}
            self._issuer = str(about.get("issuer", ""))
            keys = jwt.PyJWKSet.from_dict(found).keys if found.get("keys") else []
            self._keys = {str(item.key_id): item for item in keys}
            self._asked = now
        if key_id not in self._keys or not self._issuer:
            raise NotProven("the token is not signed by this cluster")
        return self._keys[key_id]


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
        if not hmac.compare_digest(signature.encode(), self._sign(text).encode()):  # of text it takes only ASCII
            raise NotProven("the session token is not one of ours")
        if until < self._clock():
            raise NotProven("the session token has expired: register again")
        return run_uid, pod_uid

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

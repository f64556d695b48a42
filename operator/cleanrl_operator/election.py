"""Who leads: one holder of a Lease at a time, the others wait warm.

The holder renews; whoever could not renew for nine tenths of the lease's time gives up by itself, before anybody else may take
it. Until then it tries again and again, since an API server that is short of time answers late more often than never. Others
judge a lease by how long they have seen it unchanged on their own monotonic clock, never by the times written in it.
What is still under way when the holder gives up harms nobody: pods have one name an attempt, statuses a version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from cleanrl_operator.kube import Kube, KubeError, Object

log = logging.getLogger(__name__)
AGAIN_SECONDS = 0.5
"""The shortest pause between two renewals, and the one before a renewal that failed is tried again."""
HELD_SHARE = 0.9
"""For so much of the lease's time after its last renewal was asked for, its holder may go on trying."""


class LeaseLost(Exception):
    """This process leads no longer and has to end at once."""


@dataclass
class Election:
    """One candidate for one Lease."""

    kube: Kube
    namespace: str
    name: str
    identity: str
    """Unique among the candidates; the same for a restarted container of the same pod, which may go on at once."""
    seconds: float
    clock: Callable[[], float] = time.monotonic
    leading: bool = False
    trouble: str = ""
    """Why the last attempt came to nothing, unless it was that somebody else leads."""
    _seen: tuple[str, str] = ("", "")
    _seen_at: float = 0.0
    _renewed_at: float = 0.0
    _held: Object | None = None
    """The lease as our last write left it: whoever holds it need not read it first."""

    @property
    def _pause(self) -> float:
        return self.seconds / 5

    @property
    def _left(self) -> float:
        """For how long the holder may still try to renew."""
        return self._renewed_at + HELD_SHARE * self.seconds - self.clock()

    @property
    def _patience(self) -> float:
        """How long a call may take: the holder's last one ends before anybody else may lead."""
        return max(0.0, min(self.seconds / 3, self._left)) if self.leading else self.seconds / 3

    @property
    def _path(self) -> str:
        return f"apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while not await self._attempt():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(self._pause)
        log.info("leading as %s", self.identity)

    async def hold(self) -> None:
        """Renew for as long as it goes. Raises LeaseLost."""
        pause = self._pause
        while True:
            await asyncio.sleep(pause)
            renewed = await self._attempt()
            if not renewed and (not self.leading or self._left <= AGAIN_SECONDS):
                self.leading = False
                raise LeaseLost("the lease was lost: another process may lead now")
            due_in = self._renewed_at + self._pause - self.clock()
            pause = min(self._pause, max(AGAIN_SECONDS, due_in))

    async def release(self) -> None:
        """Let the next one in without waiting."""
        if not self.leading:
            return
        self.leading = False
        try:
            lease = await self.kube.get(f"{self._path}/{self.name}")
            if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"]["holderIdentity"] = ""
                await self.kube.keep("PUT", f"{self._path}/{self.name}", lease, seconds=self._pause)
        except KubeError as error:
            log.warning("the lease could not be released, others wait until it ends: %s", error)

    async def _attempt(self) -> bool:
        """Take or renew the lease, if that is possible now."""
        asked_at, patience = self.clock(), self._patience
        try:
            async with asyncio.timeout(patience):
                done = await self._take()
        except (KubeError, TimeoutError) as error:
            why = str(error) or f"no answer within {patience:.3g} s"
            self.trouble = f"the lease could not be {'renewed' if self.leading else 'taken'}: {why}"
            log.warning("%s", self.trouble)
            return False
        self.trouble = ""
        if done:
            self.leading, self._renewed_at = True, asked_at
        return done

    async def _take(self) -> bool:
        if self.leading and self._held is not None:
            held, self._held = self._held, None  # should the answer be lost, the lease is read before the next try
            if await self._put("PUT", f"{self._path}/{self.name}", {**held, "spec": self._spec(held["spec"])}):
                return True
        lease = await self.kube.get(f"{self._path}/{self.name}", seconds=self._patience)
        if lease is None:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.name},
                "spec": self._spec({}, "acquireTime"),
            }
            return await self._put("POST", self._path, body)
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder == self.identity:
            lease["spec"] = self._spec(spec)
        elif holder and not self._expired(spec):
            self.leading = False
            return False
        else:
            changes = int(spec.get("leaseTransitions") or 0) + 1
            lease["spec"] = {**self._spec(spec, "acquireTime"), "leaseTransitions": changes}
        return await self._put("PUT", f"{self._path}/{self.name}", lease)

    async def _put(self, method: str, path: str, body: Object) -> bool:
        try:
            self._held = await self.kube.keep(method, path, body, seconds=self._patience)
        except KubeError as error:
            if error.status == 409:  # somebody else was quicker
                return False
            raise
        return True

    def _expired(self, spec: Object) -> bool:
        seen = (str(spec.get("holderIdentity")), str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, self.clock()
        return self.clock() - self._seen_at > float(spec.get("leaseDurationSeconds") or self.seconds)

    def _spec(self, spec: Object, *times: str) -> Object:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            **spec,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self.seconds)),
            **dict.fromkeys(("renewTime", *times), now),
        }

"""Kubernetes Events: posted in the background after the status write that they speak of, and never worth a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from cleanrl_operator.api import GROUP, KIND, VERSION
from cleanrl_operator.decision import Event
from cleanrl_operator.kube import Kube, KubeError, Object
from cleanrl_operator.run import Run

log = logging.getLogger(__name__)
MOST_WAITING = 10_000
PAUSE_SECONDS, MOST_PAUSES = 0.1, 20


@dataclass
class Announcer:
    """Posts Events one after the other. When too many wait, new ones are dropped and counted: the status holds the truth."""

    kube: Kube
    instance: str
    clock: Callable[[], datetime]
    pressed: Callable[[], bool] = lambda: False
    """Whether there is more urgent work: Events wait for it, for a while."""
    posted: int = 0
    dropped: int = 0
    _waiting: asyncio.Queue[tuple[Run, Object]] = field(default_factory=lambda: asyncio.Queue(MOST_WAITING))
    _number: int = 0

    def __call__(self, run: Run, event: Event) -> None:
        """Post this soon."""
        now = self.clock()
        self._number += 1
        body: Object = {
            "metadata": {
                "name": f"{run.name[:200]}.{int(now.timestamp() * 1e6):x}{self._number % 0x1000:03x}",
                "namespace": run.namespace,
            },
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "name": run.name,
                "namespace": run.namespace,
                "uid": run.uid,
                "resourceVersion": run.resource_version,
            },
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": event.message[:1024],
            "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingComponent": "cleanrl-operator",
            "reportingInstance": self.instance,
            "action": event.reason,
        }
        try:
            self._waiting.put_nowait((run, body))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            run, body = await self._waiting.get()
            await self._let_others_go_first()
            try:
                await self.kube.event(run.namespace, body)
                self.posted += 1
            except KubeError as error:
                self.dropped += 1
                where = {"run": f"{run.namespace}/{run.name}", "attempt": run.status.attempt}
                log.warning("event not posted: %s", error, extra=where)
            finally:
                self._waiting.task_done()

    async def _let_others_go_first(self) -> None:
        for _ in range(MOST_PAUSES):
            if not self.pressed():
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def drain(self, seconds: float) -> None:
        """Give what waits a moment to get out."""
        try:
            await asyncio.wait_for(self._waiting.join(), seconds)
        except TimeoutError:
            log.warning("%d events were not posted", self._waiting.qsize())

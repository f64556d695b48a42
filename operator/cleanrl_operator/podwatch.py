"""The watch on runs' pods, by our own label.

Pods make most of the noise in a cluster, and two things about them matter more than comfort: that an event costs little (kopf
spends about a millisecond on each), and that no end of a pod is missed. This watch goes on where it was after every break;
when the API server no longer knows that point it lists afresh, and a pod that was known and is gone by then counts as seen to
go. Without that a run would wait for a pod that nobody will ever speak of again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cleanrl_operator.kube import Kube, KubeError

log = logging.getLogger(__name__)
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 5.0


@dataclass
class PodWatch:
    """`fill` once, then `run` until cancelled. `known` are the pods of a collection as they were last seen; `alive` hears of
    everything that its watch shows, bookmarks included."""

    kube: Kube
    paths: list[str]
    selector: str
    changed: Callable[[Mapping[str, Any]], None]
    deleted: Callable[[Mapping[str, Any]], None]
    known: Callable[[str], Iterable[Mapping[str, Any]]]
    alive: Callable[[str], None]
    _versions: dict[str, str] = field(default_factory=dict)

    async def fill(self) -> None:
        """Show everything that is there now."""
        for path in self.paths:
            await self._list(path)

    async def run(self) -> None:
        """Show what changes."""
        async with asyncio.TaskGroup() as group:
            for path in self.paths:
                group.create_task(self._follow(path))

    async def _follow(self, path: str) -> None:
        failures = 0
        while True:
            before = self._versions.get(path)
            try:
                if before is None:
                    await self._list(path)
                await self._stream(path)
                failures = 0  # the server ends every watch after a while
            except KubeError as error:
                if error.status == 410:  # what happened since is no longer known there
                    self._versions.pop(path, None)
                failures = 1 if self._versions.get(path) != before else failures + 1
                log.warning("the watch on %s broke and goes on: %s", path, error)
                pause = max(error.retry_after or 0.0, min(SHORTEST_PAUSE * 2 ** min(failures - 1, 10), LONGEST_PAUSE))
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter, no secret

    async def _list(self, path: str) -> None:
        there: set[str] = set()
        version = ""
        async for page in self.kube.pages(path, selector=self.selector):
            version = page["metadata"]["resourceVersion"]
            for body in page.get("items") or []:
                there.add(body["metadata"]["uid"])
                self.changed(body)
            await asyncio.sleep(0)
        for body in self.known(path):
            if body["metadata"]["uid"] not in there and _version(body) <= int(version):
                self.deleted(body)
        self._versions[path] = version

    async def _stream(self, path: str) -> None:
        async for event in self.kube.watch(path, selector=self.selector, version=self._versions[path]):
            kind, body = event["type"], event["object"]
            if kind == "ERROR":
                raise KubeError(int(body.get("code") or 0), str(body.get("reason", "")), str(body.get("message", "")))
            if kind == "DELETED":
                self.deleted(body)
            elif kind != "BOOKMARK":
                self.changed(body)
            self._versions[path] = body["metadata"]["resourceVersion"]
            self.alive(path)
            await asyncio.sleep(0)  # a long stream of news must not keep the loop to itself


def _version(body: Mapping[str, Any]) -> int:
    return int(body["metadata"]["resourceVersion"])

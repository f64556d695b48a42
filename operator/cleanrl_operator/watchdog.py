"""Notices what a watch has missed: compares, now and then, what the API server has with what the watches have shown.

A watch may end, or go silent, without an error anywhere. One that has shown nothing for a minute is doubted: the metadata of
its objects is listed (page by page, nothing but metadata), and an object that was newer than ours in two such looks in a row
means that the watch is dead. The health endpoint says so until the process is restarted. In a busy fleet little is listed: the
progress that we write ourselves comes back through the runs' watch all the time, and the pods' has its bookmarks.

A watch that lives may still have missed an end: one that is too far behind begins anew with a list, which has nothing to say
of what was deleted before. So each fifth look lists also what is lively, where somebody wants to know, and what is there no
more is told as gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cleanrl_operator.cache import Cache
from cleanrl_operator.kube import Kube, KubeError

log = logging.getLogger(__name__)
Seen = dict[str, int]
"""Resource versions by UID."""
ALL_EVERY = 5
"""So many looks until one that takes no watch's word for what is gone."""


@dataclass(frozen=True)
class Watched:
    """A collection: its path and selector, what its watch has shown, and who is told the UIDs of what is gone; nobody is where
    the watch compares for itself when it begins anew."""

    path: str
    selector: str
    shown: Callable[[], Seen]
    gone: Callable[[str], object] | None = None


@dataclass
class Watchdog:
    """Compares. `noted` has to be called when a watch shows something."""

    kube: Kube
    collections: list[Watched]
    seconds: float = 60.0
    dead: str = ""
    """Which watch is dead; empty while none is."""
    looked_at: float = field(default_factory=time.monotonic)
    _looks: int = 0
    _behind: dict[str, Seen] = field(default_factory=dict)
    _shown: set[str] = field(default_factory=set)

    def noted(self, path: str) -> None:
        """The watch on this path has shown something."""
        self._shown.add(path)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self.seconds)
            try:
                await self.look()
            except KubeError as error:
                log.warning("the watches could not be compared with the API server: %s", error)

    async def look(self) -> None:
        """One comparison of what is doubted."""
        shown_since, self._shown = self._shown, set()
        self._looks += 1
        for watched in self.collections:
            path = watched.path
            if path in shown_since:
                self._behind.pop(path, None)
                if watched.gone is None or self._looks % ALL_EVERY:
                    continue
            known = watched.shown()
            there: Seen = {}
            async for item in self.kube.list(path, selector=watched.selector, metadata_only=True):
                metadata = item["metadata"]
                there[metadata["uid"]] = int(metadata["resourceVersion"])
            if watched.gone is not None:
                for uid in known.keys() - there.keys():
                    watched.gone(uid)
            ours = watched.shown()
            behind = {uid: version for uid, version in there.items() if ours.get(uid, 0) < version}
            before = self._behind.get(path, {})
            missed = [uid for uid, version in behind.items() if uid in before and ours.get(uid, 0) < before[uid]]
            self._behind[path] = behind
            if missed:
                self.dead = f"the watch on {path} is dead: it has not shown {len(missed)} objects for a minute or more"
                log.error(self.dead)
        self.looked_at = time.monotonic()


def versions_of(bodies: Iterable[object]) -> Seen:
    """Resource versions of what is known."""
    seen: Seen = {}
    for body in bodies:
        metadata = body["metadata"]  # type: ignore[index]  # any mapping
        seen[metadata["uid"]] = int(metadata["resourceVersion"])
    return seen


def runs_of(cache: Cache, namespace: str | None) -> Seen:
    """What the runs' watch has shown, in one namespace or in all."""
    return versions_of(body for key, body in cache.runs() if namespace in (None, key[0]))


def pods_of(cache: Cache, namespace: str | None) -> Seen:
    """What the pods' watch has shown, in one namespace or in all."""
    return versions_of(cache.all_pods(namespace))

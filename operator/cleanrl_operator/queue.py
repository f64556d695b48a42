"""The work queue between the watches and reconcile.

One key is worked on by one task at a time; a key that comes in again meanwhile is worked on once more afterwards. Failures come
back after a growing delay, and a key may be put in for later. Namespaces take turns, so that one with a thousand runs does not
keep the others waiting. What has never been looked at goes before what has, three times of four: in a burst a new run gets its
pod before the others' news are written down, and the others still move.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Awaitable, Callable

Key = tuple[str, str]
SHORTEST_BACKOFF, LONGEST_BACKOFF = 0.2, 60.0
Lane = OrderedDict[str, OrderedDict[Key, None]]
"""Keys by namespace, both in the order of their turns."""
FIRST_OF = 4
"""Of so many keys the last one is not taken from those that go first."""


class WorkQueue:
    """Keyed, deduplicated, fair by namespace. All methods are for the event loop's own thread."""

    def __init__(self, work: Callable[[Key], Awaitable[None]], workers: int = 32) -> None:
        self._work = work
        self._workers = workers
        self._ready: Lane = OrderedDict()
        self._first: Lane = OrderedDict()
        self._taken = 0
        self._active: set[Key] = set()
        self._again: set[Key] = set()
        self._later: list[tuple[float, Key]] = []
        self._due: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._wakeup = asyncio.Event()
        self.processed = 0
        self.failed = 0

    def put(self, key: Key, *, first: bool = False) -> None:
        """Work on this key soon; with `first` before others."""
        if key in self._active:
            self._again.add(key)
            return
        if key in self._first.get(key[0], ()):
            return
        if first:
            self._ready.get(key[0], OrderedDict()).pop(key, None)
        (self._first if first else self._ready).setdefault(key[0], OrderedDict())[key] = None
        self._wakeup.set()

    def put_later(self, key: Key, seconds: float) -> None:
        """Work on this key after a while, unless an earlier time is set already."""
        due = asyncio.get_running_loop().time() + max(0.0, seconds)
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._later, (due, key))
        self._wakeup.set()

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a key that is gone."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    @property
    def pressed(self) -> bool:
        """Whether keys wait that go first."""
        return any(self._first.values())

    def __len__(self) -> int:
        return sum(len(keys) for lane in (self._ready, self._first) for keys in lane.values()) + len(self._active)

    async def run(self) -> None:
        """Serve until cancelled; work in progress is awaited, not cut off."""
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._promote()
                while len(self._active) < self._workers and (key := self._next()) is not None:
                    self._active.add(key)
                    task = asyncio.create_task(self._serve(key))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                self._wakeup.clear()
                timeout = self._later[0][0] - asyncio.get_running_loop().time() if self._later else None
                try:
                    await asyncio.wait_for(self._wakeup.wait(), None if timeout is None else max(0.0, timeout))
                except TimeoutError:
                    continue
        finally:
            if tasks:
                await asyncio.shield(asyncio.wait(tasks))

    def _promote(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._later and self._later[0][0] <= now:
            due, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.put(key)

    def _next(self) -> Key | None:
        """The key whose turn it is."""
        self._taken += 1
        lanes = (self._ready, self._first) if self._taken % FIRST_OF == 0 else (self._first, self._ready)
        return _oldest(lanes[0]) or _oldest(lanes[1])

    async def _serve(self, key: Key) -> None:
        try:
            await self._work(key)
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001 - `work` has logged it; whatever it was, the key must come back
            self.failed += 1
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self.put_later(key, min(SHORTEST_BACKOFF * 2 ** min(count - 1, 16), LONGEST_BACKOFF))
        else:
            self._failures.pop(key, None)
        finally:
            self.processed += 1
            self._active.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.put(key)
            self._wakeup.set()


def _oldest(lane: Lane) -> Key | None:
    """The oldest key of the namespace whose turn it is."""
    while lane:
        namespace, keys = next(iter(lane.items()))
        if not keys:
            del lane[namespace]
            continue
        key, _ = keys.popitem(last=False)
        lane.move_to_end(namespace)
        return key
    return None

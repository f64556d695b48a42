"""The work queue between the watches and reconcile.

One key is worked on by one task at a time; a key that comes in again meanwhile is worked on once more afterwards. Failures come
back after a growing delay, and a key may be put in for later. Namespaces take turns, so that one with a thousand runs does not
keep the others waiting.

What has never been looked at goes first: a new run wants its pod, and the news of others are mostly statuses to write, which
cost the API server more than a pod does. While many new ones come, and until their pods are seen, few others are worked on at a
time. So a burst gets its pods as fast as it comes in, and the others still move.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import OrderedDict
from collections.abc import Awaitable, Callable

Key = tuple[str, str]
SHORTEST_BACKOFF, LONGEST_BACKOFF = 0.2, 60.0
Lane = OrderedDict[str, OrderedDict[Key, None]]
"""Keys by namespace, both in the order of their turns."""
BURST = 8
"""So many keys that go first, waiting or being worked on, are a burst."""
OTHERS_MEANWHILE = 2
"""So many keys that do not go first are worked on at a time in a burst; they always may be."""
CALM_SECONDS = 1.5
"""So long after a burst more new ones may come: a hundred statuses written at once would hold them up by seconds."""
LONGEST_HOLD_SECONDS = 10.0
"""So long the others wait for a burst at most, and then have all places until none of them is left: new runs may keep coming,
an API server may stay behind with its news, a watch may break."""
MANY = 1000
"""Times of the past and of forgotten keys are dropped when there are so many more than keys that wait."""
LOOK_SECONDS = 0.1
"""How often it is looked whether the API server has caught up."""


class WorkQueue:
    """Keyed, deduplicated, fair by namespace. All methods are for the event loop's own thread."""

    def __init__(
        self, work: Callable[[Key], Awaitable[None]], workers: int = 64, behind: Callable[[], bool] = lambda: False
    ) -> None:
        """`behind` tells whether the API server has yet to show what a burst has made: until then the burst goes on."""
        self._work = work
        self._workers = workers
        self._behind = behind
        self._ready: Lane = OrderedDict()
        self._first: Lane = OrderedDict()
        self._burst_began: float | None = None
        self._burst_seen = 0.0
        self._active: set[Key] = set()
        self._active_first: set[Key] = set()
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
        self._notice_burst()
        self._wakeup.set()

    def put_later(self, key: Key, seconds: float) -> None:
        """Work on this key after a while, unless an earlier time is set already."""
        due = asyncio.get_running_loop().time() + max(0.0, seconds)
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._later, (due, key))
        # An earlier time leaves the one that it took the place of behind, which may be hours ahead.
        if len(self._later) > 2 * len(self._due) + MANY:
            self._later = [(moment, waiting) for waiting, moment in self._due.items()]
            heapq.heapify(self._later)
        self._wakeup.set()

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a key that is gone."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    @property
    def pressed(self) -> bool:
        """Whether there is a burst of keys that go first, or was a moment ago."""
        return self._calm_in() > 0

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
                # Not by wait_for: Python 3.11's loses a cancellation that meets the wakeup, and the queue would never end.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await self._wakeup.wait()
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

    def _pause(self) -> float | None:
        """After how many seconds there may be work though nothing has come in; None when that is not known."""
        pauses = [self._later[0][0] - asyncio.get_running_loop().time()] if self._later else []
        if any(self._ready.values()) and (calm := self._calm_in()) > 0:
            pauses.append(calm)
        return max(0.0, min(pauses)) if pauses else None

    def _notice_burst(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._hold_left(now) <= 0 and not any(self._ready.values()):
            self._burst_began = None  # the others have had their time
        if len(self._active_first) + sum(len(keys) for keys in self._first.values()) >= BURST:
            self._burst_seen = now
            if self._burst_began is None:
                self._burst_began = now

    def _hold_left(self, now: float) -> float:
        """How many seconds longer others may be made to wait for this burst."""
        return 0.0 if self._burst_began is None else self._burst_began + LONGEST_HOLD_SECONDS - now

    def _calm_in(self) -> float:
        """After how many seconds the burst may be over, if there is one that others still wait for."""
        now = asyncio.get_running_loop().time()
        hold = self._hold_left(now)
        if hold <= 0:
            return 0.0
        calm = max(self._burst_seen + CALM_SECONDS - now, LOOK_SECONDS if self._behind() else 0.0)
        if calm <= 0:
            self._burst_began = None
        return max(0.0, min(calm, hold))

    def _next(self) -> Key | None:
        """The key whose turn it is."""
        others = len(self._active) - len(self._active_first)
        if others < OTHERS_MEANWHILE and (key := _oldest(self._ready)) is not None:
            return key
        if (key := _oldest(self._first)) is not None:
            self._active_first.add(key)
            return key
        return None if self.pressed else _oldest(self._ready)

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
            self._notice_burst()
            self._active_first.discard(key)
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

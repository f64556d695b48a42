"""The wall clock, and how far it was set forward while nobody meant time to pass.

A machine's clock is set: by NTP after a boot, by a person, after a sleep. Times in a status are the wall clock's, but what a
run is granted (to train, to start, to checkpoint) is a length of time, and the monotonic clock alone knows those. So whenever
the wall clock has gained on the monotonic one, moments from before that are moved along with it: the length since then stays
true.

A clock that was set back moves nothing: until it has caught up, time stands still, and a run is granted that much more. A jump
while no operator runs can't be told from time that passed. What was moved must not be stored: it would be moved again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

TOLERANCE = timedelta(seconds=2)
"""What a clock may gain between two looks by being steered, not set."""
MOST_JUMPS = 64


@dataclass(frozen=True)
class Jump:
    """The clock showed `before`, and at once so much more: beyond the `latest` that it had ever shown by `over`."""

    before: datetime
    by: timedelta
    latest: datetime
    over: timedelta


class WallClock:
    """Call it for the time. It notices a jump when it is next called."""

    def __init__(
        self,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._shown, self._looked = wall(), monotonic()
        self._latest = self._shown
        self._jumps: deque[Jump] = deque(maxlen=MOST_JUMPS)

    def __call__(self) -> datetime:
        """The time."""
        shown, looked = self._wall(), self._monotonic()
        expected = self._shown + timedelta(seconds=looked - self._looked)
        latest = max(self._latest, expected)
        if shown - expected > TOLERANCE:
            self._jumps.append(Jump(expected, shown - expected, latest, max(shown - latest, timedelta())))
        self._shown, self._looked, self._latest = shown, looked, max(latest, shown)
        return shown

    def carried_along(self, moment: datetime) -> datetime:
        """The moment as a clock would have shown it that had always been set as it is now."""
        for jump in self._jumps:
            if moment <= jump.before:
                moment += jump.by
            elif moment <= jump.latest:  # from before the clock had been set back
                moment += jump.over
        return moment

"""The fleet's budget for status writes that move nothing: progress is sampled, so that a thousand runs do not flood the API
server, and a worker that talks without end can't make the operator write without end.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

Key = tuple[str, str]
PROGRESS_AGE = timedelta(seconds=10)
WAY = timedelta(seconds=0.3)
"""What passes between a worker's figures and their place in the status, so that 300 runs keep within 15 s."""
LARGE_FLEET = 300
"""Runs up to which workers report as often as they like; beyond, most of what they say would never be written."""
TALK_AGE = timedelta(seconds=1)


class FleetBudget:
    """At most `per_second` progress writes for all runs together, and each run at most every 10 s.

    What a worker waits to have acknowledged goes sooner: at most once a second for each run.
    """

    def __init__(self, live: Callable[[], int], per_second: float = 20.0) -> None:
        self._live = live
        self._per_second = per_second
        self._written: dict[Key, datetime] = {}

    @property
    def age(self) -> timedelta:
        """How old a run's progress in its status may become: older the more runs there are."""
        return max(PROGRESS_AGE, timedelta(seconds=self._live() / self._per_second) - WAY)

    @property
    def report_seconds(self) -> int:
        """How often workers should send figures: in a large fleet thrice between two writes of them, else 0, as they like."""
        return round(self.age.total_seconds() / 3) if self._live() > LARGE_FLEET else 0

    def left(self, key: Key, now: datetime) -> timedelta:
        """How long until this run's next progress write may go; zero when it may go now."""
        last, age = self._written.get(key), self.age
        due = last is None or not timedelta() <= now - last < age
        return timedelta() if due or last is None else last + age - now

    def wait(self, key: Key, now: datetime, *, awaited: bool) -> timedelta:
        """How long this run's write has to wait; zero when it may go now, and then it counts."""
        age = TALK_AGE if awaited else self.age
        last = self._written.get(key)
        if last is not None and timedelta() <= now - last < age:
            return last + age - now
        self._written[key] = now
        return timedelta()

    def forget(self, key: Key) -> None:
        """The run is gone or over."""
        self._written.pop(key, None)

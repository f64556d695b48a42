"""The fleet's budget for progress writes: status is sampled so that a thousand runs do not flood the API server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

Key = tuple[str, str]
LEAST_AGE = timedelta(seconds=15)


class FleetBudget:
    """At most `per_second` progress writes for all runs together, and each run at most every 15 s."""

    def __init__(self, live: Callable[[], int], per_second: float = 20.0) -> None:
        self._live = live
        self._per_second = per_second
        self._written: dict[Key, datetime] = {}

    def allow(self, key: Key, now: datetime) -> bool:
        """Whether this run's progress is old enough to be written; if so, the write counts."""
        age = max(LEAST_AGE, timedelta(seconds=self._live() / self._per_second))
        last = self._written.get(key)
        if last is not None and timedelta() <= now - last < age:
            return False
        self._written[key] = now
        return True

    def forget(self, key: Key) -> None:
        """The run is gone."""
        self._written.pop(key, None)

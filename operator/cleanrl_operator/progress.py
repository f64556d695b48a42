"""The fleet's budget for status writes that move nothing: progress is sampled, so that a thousand runs do not flood the API
server, and a worker that talks without end can't make the operator write without end.

Time is cut into slots, one for each write of the budget, and each run's next turn is a slot of its own: runs that started
together are spread out, and then keep their order. Workers are asked to report when their run's turn comes, and a few times in
between, so that what is written has just been computed.

What that comes to, when each run has its turn every `age`: a reported figure, or a newer one, is in the status after two thirds
of it, and what the status shows is never older than `age`; both plus the way from the worker to the API server and a beat. At
300 runs and 20 writes a second no order of writing could do better: a run's turn comes every 15 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

Key = tuple[str, str]
PROGRESS_AGE = timedelta(seconds=10)
TALK_AGE = timedelta(seconds=1)
HEADROOM = 1.01
"""A round takes this much longer than it has to, so that a minute that is looked at never holds more than a minute's writes."""
REPORTS, LONG_ROUND, REPORTS_IN_A_LONG_ROUND = timedelta(seconds=5), timedelta(seconds=15.5), 2
"""Workers report about this often; in a fleet of more than 300, where a round takes long, so often in a round: reports between
turns are for the operator's metrics, and there most of them would never be written."""
LEAD, PHASE, DRIFT = 0.25, 0.75, 0.05
"""Seconds: reports are asked for so long before their run's turn, because supervisors look at the clock twice a second; who
misses it by more than the second, or reports more or less often than asked by the third, is told anew."""
SOON = timedelta(seconds=1)
"""What is reported this shortly before its run's turn is written then; a report that is late is waited for this long."""
BEAT = 0.5
"""Seconds: what is due within so long is written together. A thousand runs' twenty writes a second cost a fifth less processor
time as ten and ten than one by one, because each of those finds its caches cold."""
MANY = 1000
"""Slots of the past are forgotten when there are so many more than runs."""


class Pace(NamedTuple):
    """When a worker should report, in seconds from now, and every how many seconds after that."""

    first: float
    every: float


class FleetBudget:
    """At most `per_second` progress writes for all runs together, and each run at most every 10 s.

    What a worker waits to have acknowledged goes sooner: at most once a second for each run.
    """

    def __init__(self, live: Callable[[], int], per_second: float = 20.0) -> None:
        self._live = live
        self._per_second = per_second
        self._written: dict[Key, datetime] = {}
        self._turns: dict[Key, int] = {}
        self._taken: set[int] = set()

    @property
    def age(self) -> timedelta:
        """How long it is from one turn of a run to its next: longer the more runs there are."""
        return max(PROGRESS_AGE, timedelta(seconds=math.ceil(HEADROOM * self._live()) / self._per_second))

    def left(self, key: Key, now: datetime) -> timedelta:
        """How long until this run's turn; zero when it has come."""
        last = self._written.get(key)
        if key not in self._turns or (last is not None and now < last):  # new, or the clock was set back
            self._reserve(key, self._slot(now), now)
        return max(timedelta(), timedelta(seconds=self._turns[key] / self._per_second - now.timestamp()))

    def moment(self, key: Key, now: datetime) -> timedelta:
        """How long until figures that were reported now should be written: with those of other runs, at the run's turn, or a
        little later if newer ones will be there by then."""
        left = self.left(key, now)
        due = (now + (left if left <= SOON else left + SOON)).timestamp()
        return timedelta(seconds=math.ceil(due / BEAT) * BEAT - now.timestamp())

    def wait(self, key: Key, now: datetime, *, awaited: bool) -> timedelta:
        """How long this run's write has to wait; zero when it may go now, and then it counts."""
        last = self._written.get(key)
        if not awaited:
            left = self.left(key, now)
        elif last is not None and timedelta() <= now - last < TALK_AGE:
            left = last + TALK_AGE - now
        else:
            left = timedelta()
        if not left:
            self.wrote(key, now)
        return left

    def wrote(self, key: Key, now: datetime) -> None:
        """The run's status was written, for whatever reason, with the progress in it: its next turn is a whole round later.

        A round from its turn if it was written then, however late in it, else from now: the order stays.
        """
        self._written[key] = now
        moment = now.timestamp() * self._per_second
        turn = self._turns.get(key, math.inf)
        since = turn if 0 <= moment - turn < SOON.total_seconds() * self._per_second else moment
        self._reserve(key, math.ceil(since + self.age.total_seconds() * self._per_second), now)

    def pace(self, key: Key, now: datetime, known: float) -> Pace | None:
        """When a worker that has just reported, and does so every `known` seconds, should report from now on.

        None as long as that fits a round and one of its reports comes near enough to its run's turn.
        """
        self.left(key, now)  # whoever has no turn yet gets one
        age = self.age.total_seconds()
        is_long = age > LONG_ROUND.total_seconds()
        usual = age / REPORTS_IN_A_LONG_ROUND if is_long else REPORTS.total_seconds()
        every = age / max(1, round(age / usual))
        left = self._turns[key] / self._per_second - now.timestamp()
        if left <= SOON.total_seconds():  # this report is the one that is written
            left += age
        if known > 0 and abs(known - every) <= DRIFT and abs(left - known * max(1, round(left / known))) <= PHASE:
            return None
        first = (left - LEAD) % every
        return Pace(first if first > every / 2 else first + every, every)

    def forget(self, key: Key) -> None:
        """The run is gone or over."""
        self._written.pop(key, None)
        self._taken.discard(self._turns.pop(key, -1))

    def _slot(self, now: datetime) -> int:
        return math.floor(now.timestamp() * self._per_second)

    def _reserve(self, key: Key, earliest: int, now: datetime) -> None:
        """The first slot from the earliest on that nobody has. One that has come stays taken: it was used."""
        current, turn = self._slot(now), self._turns.get(key, -1)
        if turn > current:
            self._taken.discard(turn)
        if len(self._taken) > 2 * len(self._turns) + MANY:
            self._taken = {slot for slot in self._taken if slot >= current}
        while earliest in self._taken:
            earliest += 1
        self._turns[key] = earliest
        self._taken.add(earliest)

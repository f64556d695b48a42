"""What one caller may ask, and what the fleet may write."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from cleanrl_operator.gateway.limits import CALLS_BURST, Bucket, Callers, address
from cleanrl_operator.progress import FleetBudget

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = ("ns", "run")


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = Bucket.full(10.0, 5, now=0.0)
    assert [bucket.take(0.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(0.0) == 0.1
    assert bucket.take(0.2) == 0.0


def test_who_calls_too_often_waits_and_others_do_not() -> None:
    callers = Callers()
    for port in range(2 * CALLS_BURST):
        callers.note(address(f"ipv4:10.0.0.1:{port}"), 0.0)
    mine, other = address("ipv4:10.0.0.1:99"), address("ipv4:10.0.0.2:99")
    assert callers.too_often(mine, 0.0)
    assert not callers.too_often(other, 0.0)
    assert not callers.too_often(mine, 5.0)


def test_progress_is_sampled_and_what_is_waited_for_goes_sooner() -> None:
    budget = FleetBudget(lambda: 10)
    assert budget.wait(KEY, NOW, awaited=False) == timedelta()
    assert budget.wait(KEY, NOW + timedelta(seconds=5), awaited=False) == timedelta(seconds=5)
    assert budget.left(KEY, NOW + timedelta(seconds=5)) == timedelta(seconds=5)
    assert budget.wait(KEY, NOW + timedelta(seconds=5), awaited=True) == timedelta()
    assert budget.wait(KEY, NOW + timedelta(seconds=5.5), awaited=True) == timedelta(seconds=0.5)
    assert budget.left(KEY, NOW + timedelta(seconds=6)) == timedelta(seconds=9), "that write held the progress as well"


def test_asking_how_long_is_left_costs_nothing() -> None:
    budget = FleetBudget(lambda: 300)
    assert budget.left(KEY, NOW) == timedelta()
    assert budget.wait(KEY, NOW, awaited=False) == timedelta()
    assert timedelta(seconds=1) <= budget.left(KEY, NOW + timedelta(seconds=14)) <= timedelta(seconds=1.2)
    assert budget.left(KEY, NOW + timedelta(seconds=15.2)) == timedelta()


def test_a_status_that_is_written_for_another_reason_needs_no_write_for_its_progress() -> None:
    budget = FleetBudget(lambda: 10)
    assert budget.wait(KEY, NOW, awaited=False) == timedelta()
    budget.wrote(KEY, NOW + timedelta(seconds=9))
    assert budget.left(KEY, NOW + timedelta(seconds=12)) == timedelta(seconds=7)


def test_runs_that_start_together_do_not_write_together() -> None:
    budget = FleetBudget(lambda: 300)
    turns = sorted(budget.left(("ns", f"run-{number}"), NOW) for number in range(300))
    assert turns[0] == timedelta()
    assert all(later - earlier >= timedelta(milliseconds=49) for earlier, later in itertools.pairwise(turns))


def test_a_run_that_is_over_leaves_its_turn_to_others() -> None:
    budget = FleetBudget(lambda: 300)
    for number in range(300):
        budget.left(("ns", f"run-{number}"), NOW)
    for number in range(300):
        budget.forget(("ns", f"run-{number}"))
    assert budget.left(KEY, NOW) == timedelta()


@dataclass
class Seen:
    """What a fleet's statuses held over some minutes."""

    writes: list[float]
    waited: float
    """The longest that a reported figure had to wait until it or a newer one was written."""
    oldest: float
    """The oldest that a status became before it was replaced."""
    answers: int = 0
    """How often a worker had to be told anew when to report, after the fleet had found its order."""


def watch(count: int, *, minutes: float, obeys: bool = True, late: float = 0.5, seed: int = 1) -> Seen:
    """Workers that report when they are asked to, or every 5 s, and an operator that writes what it holds at each turn."""
    rng = random.Random(seed)
    settled = 30 + 3 * count / 20  # by then the fleet has found its order
    budget = FleetBudget(lambda: count)
    agenda = [(rng.uniform(0, 2), number, "report") for number in range(count)]
    heapq.heapify(agenda)
    news: dict[int, list[float]] = {number: [] for number in range(count)}  # reported and not written
    shown: dict[int, float] = {}
    paces = {number: (at, 0.0 if obeys else 5.0) for at, number, _ in agenda}
    seen = Seen([], 0.0, 0.0)
    while agenda[0][0] < 60 * minutes:
        at, number, what = heapq.heappop(agenda)
        key, now = ("ns", f"run-{number}"), NOW + timedelta(seconds=at)
        if what == "report":
            news[number].append(at)
            heapq.heappush(agenda, (at + budget.moment(key, now).total_seconds(), number, "turn"))
            told = budget.pace(key, now, paces[number][1]) if obeys else None
            if told is not None:
                seen.answers += at > settled
                paces[number] = (at + told.first, told.every)
            first, every = paces[number]
            due = first + every * max(0, math.floor((at - first) / every) + 1)
            heapq.heappush(agenda, (due + rng.uniform(0, late), number, "report"))
        elif news[number] and not budget.wait(key, now, awaited=False):
            seen.writes.append(at)
            if at > settled:
                seen.waited = max(seen.waited, at - news[number][0])
                seen.oldest = max(seen.oldest, at - shown[number])
            shown[number] = news[number][-1]
            news[number].clear()
    return seen


def busiest(writes: list[float], seconds: float) -> int:
    """The most writes in any stretch of so many seconds."""
    return max(bisect.bisect_right(writes, at + seconds) - number for number, at in enumerate(writes))


@pytest.mark.parametrize("count", [1, 200, 250, 300])
def test_up_to_300_runs_what_was_reported_is_in_the_status_within_15_seconds(count: int) -> None:
    seen = watch(count, minutes=4)
    assert seen.waited <= 12
    assert seen.answers <= 1 + count / 100, "hardly anybody has to be told anew"
    assert seen.oldest <= 16.5, "a round, what a worker may be late, and the beat"


@pytest.mark.parametrize("count", [300, 450, 1000])
def test_the_budget_holds_in_every_minute_and_nearly_in_every_second(count: int) -> None:
    seen = watch(count, minutes=4)
    assert busiest(seen.writes, 60) <= 1200
    assert busiest(seen.writes, 1) <= 50


@pytest.mark.parametrize("count", [301, 1000])
def test_beyond_that_a_status_is_as_old_as_the_budget_makes_it_and_no_older(count: int) -> None:
    seen = watch(count, minutes=4)
    assert count / 20 <= seen.oldest <= 1.01 * count / 20 + 1.5
    assert seen.waited <= 0.75 * count / 20
    assert seen.answers <= 1 + count / 100, "hardly anybody has to be told anew"


def test_workers_that_can_not_be_asked_are_written_in_their_turn_all_the_same() -> None:
    seen = watch(300, minutes=4, obeys=False)
    assert seen.waited <= 17.5
    assert busiest(seen.writes, 60) <= 1200


def test_a_clock_that_jumps_back_silences_nobody() -> None:
    budget = FleetBudget(lambda: 1)
    budget.wait(KEY, NOW, awaited=False)
    assert budget.wait(KEY, NOW - timedelta(hours=1), awaited=False) == timedelta()

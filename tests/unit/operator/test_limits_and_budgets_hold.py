"""What one caller may ask, and what the fleet may write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cleanrl_operator.gateway.limits import REFUSALS_BURST, Bucket, Refused
from cleanrl_operator.gateway.server import pace_differs
from cleanrl_operator.progress import FleetBudget

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = ("ns", "run")


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = Bucket.full(10.0, 5, now=0.0)
    assert [bucket.take(0.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(0.0) == 0.1
    assert bucket.take(0.2) == 0.0


def test_who_is_refused_too_often_waits_and_others_do_not() -> None:
    refused = Refused()
    for port in range(2 * REFUSALS_BURST):
        refused.note(f"ipv4:10.0.0.1:{port}", 0.0)
    assert refused.too_often("ipv4:10.0.0.1:99", 0.0)
    assert not refused.too_often("ipv4:10.0.0.2:99", 0.0)
    assert not refused.too_often("ipv4:10.0.0.1:99", 5.0)


def test_progress_is_sampled_and_what_is_waited_for_goes_sooner() -> None:
    budget = FleetBudget(lambda: 10)
    assert budget.wait(KEY, NOW, awaited=False) == timedelta()
    assert budget.wait(KEY, NOW + timedelta(seconds=5), awaited=False) == timedelta(seconds=5)
    assert budget.left(KEY, NOW + timedelta(seconds=5)) == timedelta(seconds=5)
    assert budget.wait(KEY, NOW + timedelta(seconds=5), awaited=True) == timedelta()
    assert budget.wait(KEY, NOW + timedelta(seconds=5.5), awaited=True) == timedelta(seconds=0.5)


def test_asking_how_long_is_left_costs_nothing() -> None:
    budget = FleetBudget(lambda: 300)
    assert budget.left(KEY, NOW) == timedelta()
    assert budget.wait(KEY, NOW, awaited=False) == timedelta()
    assert budget.left(KEY, NOW + timedelta(seconds=14)) == timedelta(seconds=0.7)
    assert budget.left(KEY, NOW + timedelta(seconds=15)) == timedelta()
    assert budget.left(KEY, NOW - timedelta(hours=1)) == timedelta(), "a clock that jumps back silences nobody"


def test_a_large_fleet_writes_no_more_than_its_budget() -> None:
    budget = FleetBudget(lambda: 1000, per_second=20.0)
    assert budget.wait(KEY, NOW, awaited=False) == timedelta()
    assert budget.wait(KEY, NOW + timedelta(seconds=49), awaited=False) == timedelta(seconds=0.7)


def test_workers_of_a_large_fleet_are_asked_to_report_thrice_between_two_writes() -> None:
    assert FleetBudget(lambda: 300).report_seconds == 0, "as often as they like"
    large = FleetBudget(lambda: 1000)
    assert large.report_seconds == round(large.age.total_seconds() / 3) == 17


@pytest.mark.parametrize(
    ("pace", "said", "differs"), [(0, 0, False), (6, 0, True), (7, 6, False), (8, 6, True), (4, 6, True), (0, 6, True)]
)
def test_a_pace_is_told_when_it_has_changed_enough(pace: int, said: int, differs: bool) -> None:
    assert pace_differs(pace, said) == differs


def test_a_clock_that_jumps_back_silences_nobody() -> None:
    budget = FleetBudget(lambda: 1)
    budget.wait(KEY, NOW, awaited=False)
    assert budget.wait(KEY, NOW - timedelta(hours=1), awaited=False) == timedelta()

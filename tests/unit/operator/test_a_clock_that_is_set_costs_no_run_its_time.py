"""A wall clock that is set forward: lengths of time that were begun before stay true, and the times shown are the clock's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import State, Status
from cleanrl_operator.clock import WallClock
from cleanrl_operator.policies import deadline
from hypothesis import given
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Time:
    """A machine's two clocks, of which one can be set."""

    def __init__(self) -> None:
        self.wall, self.monotonic = START, 100.0
        self.clock = WallClock(lambda: self.wall, lambda: self.monotonic)

    def pass_by(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.monotonic += seconds

    def set_by(self, change: timedelta) -> None:
        self.wall += change


@pytest.fixture
def time() -> Time:
    return Time()


def test_it_shows_what_the_wall_clock_shows(time: Time) -> None:
    for change in (timedelta(), HOUR, -2 * HOUR):
        time.set_by(change)
        time.pass_by(10)
        assert time.clock() == time.wall


def test_moments_from_before_a_jump_move_with_it_once(time: Time) -> None:
    time.pass_by(60)
    begun = time.clock()
    time.pass_by(30)  # nobody looks at the clock, then it is set
    time.set_by(HOUR)
    time.pass_by(30)
    assert time.clock() - time.clock.carried_along(begun) == timedelta(seconds=60)
    moved = time.clock.carried_along(begun)
    assert time.clock.carried_along(moved) == moved, "what was moved and written down is not moved again"
    later = time.clock()
    assert time.clock.carried_along(later) == later, "what began after the jump was never wrong"


def test_a_clock_that_is_steered_is_not_one_that_is_set(time: Time) -> None:
    begun = time.clock()
    for _ in range(100):
        time.set_by(timedelta(milliseconds=5))
        time.pass_by(10)
        time.clock()
    assert time.clock.carried_along(begun) == begun


@given(st.lists(st.tuples(st.floats(0, 3600), st.floats(-7200, 7200)), max_size=20))
def test_whatever_happens_no_more_time_is_counted_than_passed(history: list[tuple[float, float]]) -> None:
    time = Time()
    begun, really = time.clock(), 0.0
    for seconds, change in history:
        time.pass_by(seconds)
        really += seconds
        time.clock()
        time.set_by(timedelta(seconds=change))
        begun = time.clock.carried_along(begun)  # as a status does that is written at every look
        counted = (time.clock() - time.clock.carried_along(begun)).total_seconds()
        assert counted <= really + 2.0 * len(history) + 0.001, "but for what is taken for steering"


def test_the_limit_of_a_run_is_not_reached_by_a_jump(time: Time, make_spec: Callable[..., Spec]) -> None:
    spec = make_spec(maxWallclockMinutes=30)
    status = Status(fsm_state=State.EXEC, wallclock_since=time.clock())
    time.pass_by(600)
    time.set_by(HOUR)
    now = time.clock()
    assert deadline.wallclock_over_at(spec, status, now) <= now  # what a plain wall clock would say
    moved = status.model_copy(update={"wallclock_since": time.clock.carried_along(status.wallclock_since)})
    assert deadline.wallclock_over_at(spec, moved, now) == now + timedelta(minutes=20)

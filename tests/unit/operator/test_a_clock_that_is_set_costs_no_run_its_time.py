"""A wall clock that is set forward: lengths of time that were begun before stay true, and the times shown are the clock's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import State, Status
from cleanrl_operator.boards import Boards
from cleanrl_operator.cache import Cache
from cleanrl_operator.clock import WallClock
from cleanrl_operator.facts import Facts, PodFacts, PodSituation
from cleanrl_operator.policies import deadline
from cleanrl_operator.progress import FleetBudget
from cleanrl_operator.reconcile import Reconciler
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings
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


def test_moments_from_before_a_jump_move_with_it(time: Time) -> None:
    time.pass_by(60)
    begun = time.clock()
    time.pass_by(30)  # nobody looks at the clock, then it is set
    time.set_by(HOUR)
    time.pass_by(30)
    assert time.clock() - time.clock.carried_along(begun) == timedelta(seconds=60)
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
    begun = time.clock()
    status, really = Status(fsm_state=State.EXEC, wallclock_since=begun), 0.0
    for seconds, change in history:
        time.pass_by(seconds)
        really += seconds
        time.clock()
        time.set_by(timedelta(seconds=change))
        now = time.clock()
        steered = 2.0 * len(history) + 0.1  # what is too little to be a jump
        assert (now - time.clock.carried_along(begun)).total_seconds() <= really + steered
        assert status.wallclock_since is not None
        status = deadline.with_stretch_from(status, time.clock.carried_along(status.wallclock_since), now)
        assert deadline.wallclock_used(status, now).total_seconds() <= really + steered
        again = deadline.with_stretch_from(status, time.clock.carried_along(status.wallclock_since or now), now)
        assert again == status, "what was corrected and stored is right from then on"


def test_the_limit_of_a_run_is_not_reached_by_a_jump(time: Time, make_spec: Callable[..., Spec]) -> None:
    spec = make_spec(maxWallclockMinutes=30)
    begun = time.clock()
    status = Status(fsm_state=State.EXEC, wallclock_since=begun)
    time.pass_by(600)
    time.set_by(HOUR)
    now = time.clock()
    plain = deadline.wallclock_over_at(spec, status, now)
    assert plain is not None
    assert plain <= now, "what a plain wall clock would say"
    corrected = deadline.with_stretch_from(status, time.clock.carried_along(begun), now)
    assert deadline.wallclock_over_at(spec, corrected, now) == now + timedelta(minutes=20)


def test_nor_is_a_gpu_given_up_by_one(time: Time) -> None:
    waiting: dict[str, Any] = {"fsmState": "INIT", "podUID": "p", "attempt": 1, "reason": "NoGPU"}
    waiting["gpuAwaitedSince"] = START.isoformat()
    metadata = {
        "namespace": "ns",
        "name": "run",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": START.isoformat(),
    }
    resources = {"gpus": {"requested": 1, "fallbackAfterSeconds": 300}}
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10, "resources": resources}
    run = Run.parse({"metadata": metadata, "spec": spec, "status": waiting})
    reconcile = Reconciler(
        kube=Mock(),
        cache=Cache(),
        settings=Settings(),
        sessions=Mock(),
        budget=FleetBudget(lambda: 1),
        boards=Boards(Mock(), Mock()),
        wake=Mock(),
        announce=Mock(),
        clock=time.clock,
    )
    pod = PodFacts(PodSituation.PENDING, uid="p", since=START, unschedulable="1 Insufficient nvidia.com/gpu")
    time.pass_by(60)
    time.set_by(HOUR)
    waits = reconcile._decide(run, Facts(pod=pod), time.clock())
    assert (waits.effects, waits.status.gpu_awaited_since) == ((), START), "what was moved is not stored"
    time.pass_by(240)
    assert reconcile._decide(run, Facts(pod=pod), time.clock()).status.gpu_fallback

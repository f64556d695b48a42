"""An operator that was away for hours finds runs whose workers have ended meanwhile: what happened then is told, not when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Outcome, State, Status
from cleanrl_operator.decision import Decision
from cleanrl_operator.facts import Facts, PodFacts, PodSituation, SessionFacts, WorkerEnd

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
MakeSpec = Callable[..., Spec]
Judge = Callable[..., Decision]


def pod(situation: PodSituation, end: WorkerEnd | None = None) -> PodFacts:
    return PodFacts(situation=situation, uid="uid-1", since=START, end=end)


def ended(seconds: float, **fields: Any) -> Facts:
    finished = START + timedelta(seconds=seconds)
    end = WorkerEnd(exit_code=1, ran_at=START, finished_at=finished, **{"outcome": "failed", **fields})
    return Facts(pod=pod(PodSituation.ENDED, end))


def trains(step: int) -> Facts:
    session = SessionFacts(registered_at=START, started_at=START, step=step, steps_per_second=1.0)
    return Facts(pod=pod(PodSituation.RUNNING), session=session)


@pytest.fixture
def spec(make_spec: MakeSpec) -> Spec:
    return make_spec(maxWallclockMinutes=60, resources={"gpus": {"requested": 2}})


@pytest.fixture
def trained(spec: Spec, judge: Judge) -> Status:
    """Of a run that trains, as an operator has left it after a minute."""
    return judge(spec, judge(spec, Status(), Facts()).status, trains(10), seconds=60).status


def test_a_worker_that_failed_within_its_limit_is_tried_again(spec: Spec, trained: Status, judge: Judge) -> None:
    status = judge(spec, trained, ended(600, message="boom"), seconds=5 * HOUR).status
    assert (status.fsm_state, status.reason, status.message) == (State.FAULT, "ExitCode", "boom")
    assert (status.wallclock_seconds, status.gpu_seconds) == (600, 1200)


def test_one_that_failed_beyond_it_is_not(spec: Spec, trained: Status, judge: Judge) -> None:
    status = judge(spec, trained, ended(2 * HOUR), seconds=5 * HOUR).status
    assert (status.fsm_state, status.outcome) == (State.TERM, Outcome.DEADLINE_EXCEEDED)
    assert (status.wallclock_seconds, status.gpu_seconds) == (2 * HOUR, 4 * HOUR)


def test_training_that_nobody_saw_counts(spec: Spec, judge: Judge) -> None:
    status = judge(spec, judge(spec, Status(), Facts()).status, Facts(pod=pod(PodSituation.PENDING))).status
    unseen = ended(700, registered_at=START, started_at=START + timedelta(seconds=100))
    assert judge(spec, status, unseen, seconds=5 * HOUR).status.wallclock_seconds == 600


def test_a_nodes_clock_that_is_behind_gives_no_time_back(spec: Spec, trained: Status, judge: Judge) -> None:
    seen = judge(spec, trained, trains(20), seconds=1000).status
    assert judge(spec, seen, ended(-HOUR), seconds=1010).status.wallclock_seconds == 1000


def test_nor_lifts_it_the_limit_of_a_worker_that_was_asked_to_stop(spec: Spec, trained: Status, judge: Judge) -> None:
    asked = judge(spec, trained, trains(10), seconds=HOUR)
    assert asked.desired.stop_reason == "deadline"
    left = ended(HOUR - 5, outcome="deadline_exceeded")
    assert judge(spec, asked.status, left, seconds=HOUR + 1).status.outcome == Outcome.DEADLINE_EXCEEDED


def test_a_pod_that_nobody_saw_go_worked_until_its_last_sign_of_life(spec: Spec, trained: Status, judge: Judge) -> None:
    unseen = Facts(pod=PodFacts(PodSituation.GONE))
    status = judge(spec, trained, unseen, seconds=60 * HOUR).status
    assert (status.fsm_state, status.reason, status.wallclock_seconds) == (State.FAULT, "PodLost", 60)
    seen = Facts(pod=PodFacts(PodSituation.GONE, since=START + timedelta(seconds=500)))
    assert judge(spec, trained, seen, seconds=510).status.wallclock_seconds == 500


def test_a_pod_that_was_paused_for_hours_worked_until_it_was_last_heard(
    trained: Status, make_spec: MakeSpec, judge: Judge
) -> None:
    """Nothing that changes is written then: the last that the status holds is the pause itself."""
    spec = make_spec(pause=True, maxWallclockMinutes=600, resources={"gpus": {"requested": 1}})
    heard = SessionFacts(registered_at=START, started_at=START, step=10, paused=True, supports_pause=True)
    paused = judge(spec, trained, replace(trains(10), session=heard), seconds=100).status
    assert paused.fsm_state == State.PAUSE
    gone = Facts(pod=PodFacts(PodSituation.GONE), session=replace(heard, late_seconds=10))
    status = judge(spec, paused, gone, seconds=5 * HOUR).status
    assert (status.wallclock_seconds, status.gpu_seconds) == (5 * HOUR - 10, 5 * HOUR - 10)

"""The budget of retries is refilled by progress alone: a run that fails at the same step each time comes to its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Outcome, State, Status
from cleanrl_operator.decision import Decision
from cleanrl_operator.facts import Facts, PodFacts, PodSituation, SessionFacts, WorkerEnd
from cleanrl_operator.policies.retry import LONGEST_BACKOFF, backoff

START = datetime(2026, 1, 1, tzinfo=UTC)
MakeSpec = Callable[..., Spec]
Judge = Callable[..., Decision]
LIMIT = 2


def attempts(make_spec: MakeSpec, judge: Judge, sampled: list[int], failed_at: list[int]) -> Status:
    """A run whose workers are last heard at these steps, and fail at those, as their records say."""
    spec, status, seconds = make_spec(retry={"limit": LIMIT}), Status(), 0
    for heard, step in zip(sampled, failed_at, strict=True):
        uid, seconds = f"pod-{seconds}", seconds + 3600
        session = SessionFacts(registered_at=START, started_at=START, step=heard)
        running = Facts(pod=PodFacts(PodSituation.RUNNING, uid=uid, since=START), session=session)
        end = WorkerEnd(exit_code=1, outcome="failed", step=step)
        failed = Facts(pod=PodFacts(PodSituation.ENDED, uid=uid, end=end), session=session)
        for facts in (Facts(), running, failed):
            status = judge(spec, status, facts, seconds).status
    return status


@pytest.mark.parametrize("heard", [0, 900], ids=["before its first figures", "between two figures"])
def test_the_step_of_its_record_is_no_progress(heard: int, make_spec: MakeSpec, judge: Judge) -> None:
    end = attempts(make_spec, judge, [heard] * (LIMIT + 1), [990] * (LIMIT + 1))
    assert (end.fsm_state, end.outcome, end.attempt) == (State.TERM, Outcome.FAILED, LIMIT + 1)


def test_nor_is_a_step_that_an_earlier_attempt_had_reached(make_spec: MakeSpec, judge: Judge) -> None:
    steps = [990, 500, 800]
    assert attempts(make_spec, judge, steps, steps).fsm_state == State.TERM


def test_a_step_beyond_all_before_is(make_spec: MakeSpec, judge: Judge) -> None:
    steps = [100, 200, 300, 400]
    going = attempts(make_spec, judge, steps, steps)
    assert (going.fsm_state, going.retries) == (State.FAULT, 1)


def test_the_wait_doubles_up_to_ten_minutes_and_is_never_shorter_than_asked_for() -> None:
    assert [backoff(10, failures).total_seconds() for failures in (0, 1, 2, 3)] == [10, 10, 20, 40]
    assert backoff(10, 50) == LONGEST_BACKOFF
    assert [backoff(3600, failures) for failures in (1, 5)] == [timedelta(hours=1)] * 2

"""A pod is created before the status that names it. What was wanted while that write failed reaches the pod all the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Outcome, State, Status
from cleanrl_operator.decision import Decision, DeletePod
from cleanrl_operator.facts import Facts, PodFacts, PodSituation, WorkerEnd

START = datetime(2026, 1, 1, tzinfo=UTC)
MakeSpec = Callable[..., Spec]
Judge = Callable[..., Decision]

UNNAMED = Facts(pod=PodFacts(situation=PodSituation.RUNNING, uid="unnamed", since=START))
"""The next attempt's pod runs, and no status names it."""
GONE = Facts(pod=PodFacts(situation=PodSituation.GONE))


@pytest.fixture
def before(make_spec: MakeSpec, judge: Judge) -> dict[str, Status]:
    """The statuses from which a pod is created."""
    first = judge(make_spec(), Status(), UNNAMED).status
    failed = Facts(pod=PodFacts(situation=PodSituation.ENDED, uid="unnamed", end=WorkerEnd(exit_code=1)))
    return {
        "new": Status(),
        "suspended": judge(make_spec(suspend=True), Status(), Facts()).status,
        "failed": judge(make_spec(), first, failed).status,
    }


@pytest.mark.parametrize("state", ["new", "suspended", "failed"])
def test_a_suspend_stops_it(state: str, before: dict[str, Status], make_spec: MakeSpec, judge: Judge) -> None:
    spec, attempts = make_spec(suspend=True), before[state].attempt
    asked = judge(spec, before[state], UNNAMED, seconds=3600)
    assert asked.effects == (DeletePod("unnamed"),)
    assert (asked.status.pod_uid, asked.status.attempt) == ("unnamed", attempts + 1)
    assert asked.status.fsm_state != State.PAUSE, "it is not suspended while it runs"
    stopped = judge(spec, asked.status, GONE, seconds=3601).status
    assert (stopped.fsm_state, stopped.pod_uid) == (State.PAUSE, None)
    assert judge(make_spec(), stopped, Facts(), seconds=3602).status.fsm_state == State.INIT


@pytest.mark.parametrize(("state", "reason"), [("suspended", "Unsuspended"), ("failed", "Retrying")])
def test_it_says_why_it_was_made(
    state: str, reason: str, before: dict[str, Status], make_spec: MakeSpec, judge: Judge
) -> None:
    going_on = judge(make_spec(), before[state], UNNAMED, seconds=3600)
    assert [(step.to, step.reason) for step in going_on.status.transitions or []][-2] == (State.INIT, reason)
    assert (going_on.status.pod_uid, going_on.effects) == ("unnamed", ())


@pytest.mark.parametrize("state", ["new", "suspended", "failed"])
def test_a_cancel_stops_it(state: str, before: dict[str, Status], make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(cancel=True)
    asked = judge(spec, before[state], UNNAMED, seconds=3600)
    assert asked.effects == (DeletePod("unnamed"),)
    assert asked.status.fsm_state != State.TERM
    ended = judge(spec, asked.status, GONE, seconds=3601).status
    assert (ended.fsm_state, ended.outcome) == (State.TERM, Outcome.CANCELED)


@pytest.mark.parametrize("state", ["new", "suspended", "failed"])
@pytest.mark.parametrize("wanted", [{"suspend": True}, {"cancel": True}, {}])
def test_one_that_did_all_its_steps_meanwhile_has_done_them(
    state: str, wanted: dict[str, bool], before: dict[str, Status], make_spec: MakeSpec, judge: Judge
) -> None:
    end = WorkerEnd(exit_code=0, outcome="completed", registered_at=START, started_at=START)
    done = Facts(pod=PodFacts(situation=PodSituation.ENDED, uid="unnamed", end=end))
    status = judge(make_spec(**wanted), before[state], done, seconds=1).status
    assert (status.fsm_state, status.outcome) == (State.TERM, Outcome.COMPLETED)
    assert status.attempt == before[state].attempt + 1


def test_one_that_comes_after_the_end_is_removed(make_spec: MakeSpec, judge: Judge) -> None:
    over = judge(make_spec(cancel=True), Status(), Facts()).status
    assert over.fsm_state == State.TERM
    late = judge(make_spec(cancel=True), over, UNNAMED)
    assert late.effects == (DeletePod("unnamed"),)
    assert late.status.outcome == Outcome.CANCELED


def test_a_pod_that_was_given_up_goes_though_nobody_got_to_delete_it(make_spec: MakeSpec, judge: Judge) -> None:
    spec: Any = make_spec(resources={"gpus": {"requested": 1, "fallbackAfterSeconds": 60}})
    waiting = PodFacts(PodSituation.PENDING, uid="p", since=START, unschedulable="1 Insufficient nvidia.com/gpu")
    status = judge(spec, judge(spec, Status(), Facts()).status, Facts(pod=waiting)).status
    fallen = judge(spec, status, Facts(pod=waiting), seconds=61)
    assert fallen.effects == (DeletePod("p"),)
    assert judge(spec, fallen.status, Facts(pod=waiting), seconds=62).effects == (DeletePod("p"),)
    gone = judge(spec, fallen.status, GONE, seconds=63).status
    following = Facts(pod=PodFacts(PodSituation.PENDING, uid="without", since=START, unschedulable="no room"))
    kept = judge(spec, gone, following, seconds=64)
    assert (kept.effects, kept.status.pod_uid, kept.status.reason) == ((), "without", "Unschedulable")


@pytest.mark.parametrize("situation", [PodSituation.PENDING, PodSituation.IMAGE_ERROR, PodSituation.RUNNING])
def test_nor_does_one_that_gets_its_gpu_after_all_before_it_is_deleted(
    situation: PodSituation, make_spec: MakeSpec, judge: Judge
) -> None:
    spec: Any = make_spec(resources={"gpus": {"requested": 1, "fallbackAfterSeconds": 60}}, retry={"limit": 0})
    waiting = PodFacts(PodSituation.PENDING, uid="p", since=START, unschedulable="1 Insufficient nvidia.com/gpu")
    status = judge(spec, judge(spec, Status(), Facts()).status, Facts(pod=waiting)).status
    fallen = judge(spec, status, Facts(pod=waiting), seconds=61).status
    started = judge(spec, fallen, Facts(pod=PodFacts(situation, uid="p", since=START)), seconds=62)
    assert (started.effects, started.status.fsm_state) == ((DeletePod("p"),), State.INIT)
    killed = PodFacts(PodSituation.ENDED, uid="p", end=WorkerEnd(exit_code=143))
    following = judge(spec, started.status, Facts(pod=killed), seconds=63).status
    assert (following.fsm_state, following.pod_uid, following.retries) == (State.INIT, None, 0), "it was us, no failure"
    assert following.gpu_fallback

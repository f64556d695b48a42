"""Each row of the state table, one by one, and the whole table for totality."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Outcome, State, Status
from cleanrl_operator.decision import CleanUp, CreatePod, Decision, DeletePod
from cleanrl_operator.facts import (
    EndReason,
    Facts,
    PodFacts,
    PodSituation,
    Refusal,
    RefusalKind,
    SessionFacts,
    WorkerEnd,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
UID = "uid-1"
MakeSpec = Callable[..., Spec]
Judge = Callable[..., Decision]
Follows = Callable[[Iterable[State]], bool]


def pod(situation: PodSituation, **fields: Any) -> PodFacts:
    return PodFacts(situation=situation, uid=None if situation is PodSituation.GONE else UID, since=START, **fields)


def session(**fields: Any) -> SessionFacts:
    return SessionFacts(registered_at=START, supports_pause=True, supports_checkpoint=True, **fields)


RUNNING = Facts(pod=pod(PodSituation.RUNNING))
REGISTERED = Facts(pod=pod(PodSituation.RUNNING), session=session())
STARTED = Facts(pod=pod(PodSituation.RUNNING), session=session(started_at=START, step=10, steps_per_second=5.0))
GONE = Facts(pod=pod(PodSituation.GONE))


def ended(**fields: Any) -> Facts:
    return Facts(pod=pod(PodSituation.ENDED, end=WorkerEnd(**{"exit_code": 1, **fields})))


def after(seconds: float, facts: Facts) -> Facts:
    """The same end, so long after the start."""
    assert facts.pod.end is not None
    end = replace(facts.pod.end, finished_at=START + timedelta(seconds=seconds))
    return replace(facts, pod=replace(facts.pod, end=end))


COMPLETED = ended(exit_code=0, outcome="completed", started_at=START, registered_at=START)
STOPPED = ended(exit_code=0, outcome="suspended", checkpoint_path="c/1", checkpoint_step=5)


@pytest.fixture
def arrive(make_spec: MakeSpec, judge: Judge) -> Callable[[State], Status]:
    """A status in the given state, reached by facts alone."""

    def reach(state: State) -> Status:
        spec, status = make_spec(), Status()
        steps = {
            State.INIT: [Facts()],
            State.HSHK: [Facts(), RUNNING],
            State.RDY: [Facts(), REGISTERED],
            State.EXEC: [Facts(), STARTED],
            State.FAULT: [Facts(), STARTED, ended()],
            State.TERM: [Facts(), COMPLETED],
        }
        if state is State.PAUSE:
            status = judge(spec, status, Facts()).status
            status = judge(spec, status, STARTED).status
            paused = replace(STARTED, session=session(started_at=START, paused=True))
            return judge(make_spec(pause=True), status, paused).status
        for facts in steps[state]:
            status = judge(spec, status, facts).status
        return status

    return reach


def test_a_new_run_is_accepted_and_asks_for_a_pod(make_spec: MakeSpec, judge: Judge) -> None:
    decision = judge(make_spec(), Status(), Facts())
    assert decision.status.fsm_state == State.INIT
    assert decision.status.run_id == "01RUN"
    assert decision.effects == (CreatePod(1),)


def test_created_suspended_it_waits_without_a_pod(make_spec: MakeSpec, judge: Judge) -> None:
    decision = judge(make_spec(suspend=True), Status(), Facts())
    assert decision.status.fsm_state == State.PAUSE
    assert decision.effects == ()
    lifted = judge(make_spec(), decision.status, Facts())
    assert lifted.status.fsm_state == State.INIT
    assert lifted.effects == (CreatePod(1),)


@pytest.mark.parametrize("state", list(State))
def test_the_helper_reaches_each_state(arrive: Callable[[State], Status], forward_path: Follows, state: State) -> None:
    status = arrive(state)
    assert status.fsm_state == state
    assert forward_path(transition.to for transition in status.transitions or [])


def test_a_quick_worker_leaves_no_state_out(make_spec: MakeSpec, judge: Judge) -> None:
    first = judge(make_spec(), Status(), Facts()).status
    decision = judge(make_spec(), first, COMPLETED)
    walked = [transition.to for transition in decision.status.transitions or []]
    assert walked == [State.INIT, State.HSHK, State.RDY, State.EXEC, State.TERM]
    assert decision.status.outcome == Outcome.COMPLETED


@pytest.mark.parametrize("state", [State.INIT, State.HSHK, State.RDY, State.EXEC, State.PAUSE])
def test_a_failed_pod_is_a_fault_that_is_tried_again(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge, state: State
) -> None:
    status = arrive(state)
    if state is State.INIT:
        status = judge(make_spec(), status, Facts(pod=pod(PodSituation.PENDING))).status
    fault = judge(make_spec(), status, ended(message="boom")).status
    assert (fault.fsm_state, fault.reason, fault.message) == (State.FAULT, "ExitCode", "boom")
    assert fault.retries == 1
    assert fault.pod_uid is None
    early = judge(make_spec(), fault, Facts(), seconds=1)
    assert early.status.fsm_state == State.FAULT
    assert early.wake_at == fault.retry_at
    again = judge(make_spec(), fault, Facts(), seconds=3600)
    assert again.status.fsm_state == State.INIT
    assert again.effects == (CreatePod(status.attempt + 1),)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (ended(exit_code=2, message="no such flag"), EndReason.BAD_CONFIG),
        (ended(exit_code=3), EndReason.NAN),
        (ended(exit_code=1, outcome="failed", reason="NaNLoss"), EndReason.NAN),
    ],
)
def test_what_would_only_happen_again_ends_the_run(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge, facts: Facts, reason: EndReason
) -> None:
    decision = judge(make_spec(), arrive(State.EXEC), facts)
    assert decision.status.fsm_state == State.TERM
    assert decision.status.outcome == Outcome.FAILED
    assert decision.status.reason == reason
    assert [transition.to for transition in decision.status.transitions or []][-2:] == [State.FAULT, State.TERM]


def test_the_budget_is_spent_and_then_the_run_fails(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    spec = make_spec(retry={"limit": 1})
    status, seconds = arrive(State.EXEC), 0
    for _ in range(2):
        status = judge(spec, status, ended(), seconds).status
        seconds += 3600
        status = judge(spec, status, Facts(), seconds).status
        if status.fsm_state == State.INIT:
            status = judge(spec, status, RUNNING, seconds).status
    assert status.fsm_state == State.TERM
    assert status.outcome == Outcome.FAILED
    assert status.attempt == 2


def test_progress_refills_the_budget(arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge) -> None:
    fault = judge(make_spec(), arrive(State.EXEC), ended()).status
    assert (fault.retries, fault.failed_at_step) == (1, 10)
    again = judge(make_spec(), fault, Facts(), seconds=3600).status
    behind = replace(STARTED, session=session(started_at=START, step=10, steps_per_second=1.0))
    assert judge(make_spec(), again, behind, seconds=3601).status.retries == 1
    beyond = replace(STARTED, session=session(started_at=START, step=11, steps_per_second=1.0))
    assert judge(make_spec(), again, beyond, seconds=3601).status.retries == 0


@pytest.mark.parametrize("reason", [EndReason.EVICTED, EndReason.PREEMPTED, EndReason.NODE_LOST])
def test_what_the_cluster_did_costs_no_retry(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge, reason: EndReason
) -> None:
    spec = make_spec(retry={"limit": 0})
    facts = Facts(pod=pod(PodSituation.GONE, disrupted=reason))
    status = judge(spec, arrive(State.EXEC), facts).status
    assert (status.fsm_state, status.reason, status.retries) == (State.FAULT, reason, 0)
    assert judge(spec, status, Facts(), seconds=3600).status.fsm_state == State.INIT


def test_absence_from_the_index_is_not_death(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    decision = judge(make_spec(), arrive(State.EXEC), Facts())
    assert decision.status.fsm_state == State.EXEC
    assert decision.effects == ()


def test_silence_alone_is_a_condition_and_with_a_witness_a_fault(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    silent = Facts(pod=pod(PodSituation.RUNNING), session=session(started_at=START, late_seconds=600))
    alone = judge(make_spec(), arrive(State.EXEC), silent).status
    assert alone.fsm_state == State.EXEC
    assert "HeartbeatLate" in {condition.type for condition in alone.conditions or []}
    witnessed = judge(make_spec(), alone, replace(silent, node_ready=False))
    assert witnessed.status.fsm_state == State.FAULT
    assert witnessed.effects == (DeletePod(UID),)
    waiting = judge(make_spec(), witnessed.status, silent, seconds=3600)
    assert waiting.status.fsm_state == State.FAULT, "no new attempt before the old pod is gone"
    assert judge(make_spec(), waiting.status, GONE, seconds=3601).status.fsm_state == State.INIT


@pytest.mark.parametrize(
    ("state", "cut_off"),
    [
        (State.EXEC, Facts(pod=pod(PodSituation.RUNNING), unheard_seconds=600)),
        (State.HSHK, Facts(pod=pod(PodSituation.RUNNING, deleting=True))),
    ],
    ids=["not heard since another operator led", "evicted before anybody heard it"],
)
def test_a_lost_node_is_noticed_by_an_operator_that_never_heard_the_worker(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge, state: State, cut_off: Facts
) -> None:
    known = arrive(state)
    for node_ready in (True, None):
        alone = judge(make_spec(), known, replace(cut_off, node_ready=node_ready)).status
        assert alone.fsm_state == state, "silence is no death without a second witness"
    lost = judge(make_spec(), known, replace(cut_off, node_ready=False)).status
    assert (lost.fsm_state, lost.reason, lost.retries, lost.pod_uid) == (State.FAULT, "NodeLost", 0, UID)


def test_a_worker_that_is_on_its_way_to_the_next_operator_is_not_silent(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    drained = Facts(pod=pod(PodSituation.RUNNING, deleting=True), node_ready=False)
    assert judge(make_spec(), arrive(State.EXEC), drained).status.fsm_state == State.EXEC
    still_away = replace(drained, unheard_seconds=600)
    assert judge(make_spec(), arrive(State.EXEC), still_away).status.reason == "NodeLost"


def test_a_silence_that_began_under_another_operator_is_told(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    silent = Facts(pod=pod(PodSituation.RUNNING), unheard_seconds=600)
    told = judge(make_spec(), arrive(State.EXEC), silent).status
    assert "HeartbeatLate" in {condition.type for condition in told.conditions or []}


def test_pause_is_confirmed_by_the_worker_and_lifted_by_it(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    asked = judge(make_spec(pause=True), arrive(State.EXEC), STARTED)
    assert asked.status.fsm_state == State.EXEC
    assert asked.desired.pause
    paused = arrive(State.PAUSE)
    assert paused.pod_uid == UID
    assert judge(make_spec(), paused, STARTED).status.fsm_state == State.EXEC


def test_suspend_asks_first_and_frees_the_pod_when_confirmed(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    spec = make_spec(suspend=True)
    asked = judge(spec, arrive(State.EXEC), STARTED)
    assert asked.status.fsm_state == State.EXEC
    assert asked.desired.stop
    assert asked.effects == ()
    confirmed = judge(spec, asked.status, STOPPED, seconds=10).status
    assert (confirmed.fsm_state, confirmed.reason, confirmed.pod_uid) == (State.PAUSE, "Suspended", None)
    assert confirmed.retries == 0
    assert confirmed.checkpoint is not None
    assert confirmed.checkpoint.path == "c/1"
    resumed = judge(make_spec(), confirmed, Facts(), seconds=20)
    assert resumed.status.fsm_state == State.INIT
    assert resumed.effects == (CreatePod(2),)


def test_suspend_that_is_not_confirmed_stops_the_pod_after_the_grace_period(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    spec = make_spec(suspend=True)
    asked = judge(spec, arrive(State.EXEC), STARTED).status
    late = judge(spec, asked, STARTED, seconds=3600)
    assert late.effects == (DeletePod(UID),)
    gone = judge(spec, late.status, GONE, seconds=3601).status
    assert (gone.fsm_state, gone.reason) == (State.PAUSE, "SuspendUnconfirmed")


@pytest.mark.parametrize("state", [State.INIT, State.HSHK, State.RDY, State.EXEC, State.PAUSE, State.FAULT])
def test_cancel_ends_every_state(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge, state: State
) -> None:
    spec = make_spec(cancel=True)
    status = judge(spec, arrive(state), Facts()).status
    status = judge(spec, status, GONE, seconds=1).status
    assert (status.fsm_state, status.outcome) == (State.TERM, Outcome.CANCELED)


def test_a_run_that_completed_while_it_was_canceled_is_completed(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    asked = judge(make_spec(cancel=True), arrive(State.EXEC), STARTED).status
    assert judge(make_spec(cancel=True), asked, COMPLETED).status.outcome == Outcome.COMPLETED


def test_the_wall_clock_counts_exec_and_pause_and_ends_the_run(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    spec = make_spec(maxWallclockMinutes=1)
    status = arrive(State.EXEC)
    running = judge(spec, status, STARTED, seconds=59)
    assert not running.desired.stop
    assert running.wake_at == START + timedelta(seconds=60)
    over = judge(spec, running.status, STARTED, seconds=61)
    assert over.desired.stop
    end = judge(spec, over.status, STOPPED, seconds=70).status
    assert (end.fsm_state, end.outcome) == (State.TERM, Outcome.DEADLINE_EXCEEDED)


def test_a_limit_that_is_raised_while_the_worker_stops_is_not_over(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    short, longer = make_spec(maxWallclockMinutes=1), make_spec(maxWallclockMinutes=600)
    asked = judge(short, arrive(State.EXEC), STARTED, seconds=61).status
    assert (asked.fsm_state, asked.reason) == (State.EXEC, "DeadlineExceeded")
    left = ended(exit_code=0, outcome="deadline_exceeded", checkpoint_path="c/1", checkpoint_step=10)
    assert judge(short, asked, left, seconds=62).status.outcome == Outcome.DEADLINE_EXCEEDED
    going_on = judge(longer, asked, left, seconds=62).status
    assert (going_on.fsm_state, going_on.outcome, going_on.retries) == (State.INIT, None, 0)


def test_time_in_suspend_does_not_count(arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge) -> None:
    asked = judge(make_spec(suspend=True), arrive(State.EXEC), STARTED, seconds=30).status
    status = judge(make_spec(suspend=True), asked, after(40, STOPPED), seconds=41).status
    assert status.wallclock_seconds == 40
    assert judge(make_spec(), status, Facts(), seconds=10_000).status.wallclock_seconds == 40


def test_an_optional_gpu_is_given_up_after_a_while(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(resources={"gpus": {"requested": 1, "fallbackAfterSeconds": 60}})
    waiting = Facts(pod=pod(PodSituation.PENDING, unschedulable="0/1 nodes: insufficient nvidia.com/gpu"))
    status = judge(spec, judge(spec, Status(), Facts()).status, waiting).status
    assert (status.reason, status.gpu_fallback) == ("Unschedulable", None)
    fallback = judge(spec, status, waiting, seconds=61)
    assert fallback.status.gpu_fallback
    assert fallback.effects == (DeletePod(UID),)
    assert any(event.reason == "GPUFallback" for event in fallback.events)
    gone = judge(spec, fallback.status, GONE, seconds=70)
    assert (gone.status.pod_uid, gone.effects, gone.wake_at) == (None, (), START + timedelta(seconds=70))
    again = judge(spec, gone.status, Facts(), seconds=70)
    assert again.status.fsm_state == State.INIT
    assert again.effects == (CreatePod(2),)
    assert again.status.retries == 0


def test_a_mandatory_gpu_is_waited_for(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(resources={"gpus": {"requested": 1, "mandatory": True}})
    waiting = Facts(pod=pod(PodSituation.PENDING, unschedulable="insufficient nvidia.com/gpu"))
    status = judge(spec, Status(), Facts()).status
    decision = judge(spec, status, waiting, seconds=1_000_000)
    assert decision.status.fsm_state == State.INIT
    assert decision.effects == ()


def test_quota_waits_and_policy_ends(make_spec: MakeSpec, judge: Judge) -> None:
    status = judge(make_spec(), Status(), Facts()).status
    quota = judge(make_spec(), status, Facts(refusal=Refusal(RefusalKind.QUOTA, "exceeded quota: gpus")))
    assert (quota.status.fsm_state, quota.status.reason, quota.status.retries) == (State.INIT, "QuotaExceeded", 0)
    assert quota.wake_at is not None
    policy = judge(make_spec(), status, Facts(refusal=Refusal(RefusalKind.POLICY, "violates PodSecurity"))).status
    assert (policy.fsm_state, policy.reason) == (State.TERM, "PolicyRefused")
    assert policy.message == "violates PodSecurity"
    silent = judge(make_spec(), status, Facts(refusal=Refusal(RefusalKind.NAMESPACE, "terminating")))
    assert (silent.status.fsm_state, silent.effects, silent.events) == (State.INIT, (), ())


def test_an_image_error_is_given_five_minutes(make_spec: MakeSpec, judge: Judge) -> None:
    facts = Facts(pod=pod(PodSituation.IMAGE_ERROR, message="not found"))
    status = judge(make_spec(), Status(), Facts()).status
    assert judge(make_spec(), status, facts, seconds=10).status.fsm_state == State.INIT
    assert judge(make_spec(), status, facts, seconds=301).status.reason == "ImageError"


def test_a_pod_of_the_same_name_by_somebody_else_ends_the_run(make_spec: MakeSpec, judge: Judge) -> None:
    status = judge(make_spec(), Status(), Facts()).status
    facts = Facts(pod=PodFacts(situation=PodSituation.FOREIGN))
    assert judge(make_spec(), status, facts).status.reason == "NameTaken"


def test_an_end_without_a_record_is_not_a_success(make_spec: MakeSpec, judge: Judge) -> None:
    status = judge(make_spec(), Status(), Facts()).status
    status = judge(make_spec(), status, ended(exit_code=0)).status
    assert (status.fsm_state, status.reason) == (State.FAULT, "NoHandshake")


def test_ttl_cleans_up_and_never_starts_again(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    spec = make_spec(ttlSecondsAfterFinished=60)
    term = arrive(State.TERM)
    assert judge(spec, term, Facts(), seconds=30).effects == ()
    late = judge(spec, term, Facts(), seconds=61)
    assert late.effects == (CleanUp(),)
    assert late.status.fsm_state == State.TERM


def test_the_end_itself_sets_the_alarm_for_the_cleaning_up(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    for spec, facts in (
        (make_spec(ttlSecondsAfterFinished=60), COMPLETED),
        (make_spec(ttlSecondsAfterFinished=60, cancel=True), GONE),
    ):
        end = judge(spec, arrive(State.EXEC), facts, seconds=10)
        assert end.status.fsm_state == State.TERM
        assert end.wake_at == START + timedelta(seconds=70), "no news of the run may come any more"


def test_a_lost_claim_ends_the_run_and_never_starts_it_afresh(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    fault = judge(make_spec(), arrive(State.EXEC), ended()).status
    end = judge(make_spec(), fault, Facts(claim_lost="Claim run-1 is gone."), seconds=3600)
    assert (end.status.fsm_state, end.status.outcome) == (State.TERM, Outcome.FAILED)
    assert (end.status.reason, end.status.message) == ("ClaimLost", "Claim run-1 is gone.")
    assert end.effects == ()


def test_no_new_pod_while_an_earlier_one_may_still_write(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    fault = judge(make_spec(), arrive(State.EXEC), ended()).status
    waiting = judge(make_spec(), fault, Facts(predecessor="run-1"), seconds=3600)
    assert (waiting.status.fsm_state, waiting.status.reason) == (State.INIT, "WaitingForPod")
    assert waiting.effects == ()
    assert waiting.wake_at is not None
    assert judge(make_spec(), waiting.status, Facts(), seconds=3600).effects == (CreatePod(2),)


def test_an_image_error_keeps_its_pod_until_that_is_gone(make_spec: MakeSpec, judge: Judge) -> None:
    facts = Facts(pod=pod(PodSituation.IMAGE_ERROR, message="not found"))
    status = judge(make_spec(), Status(), Facts()).status
    fault = judge(make_spec(), status, facts, seconds=301)
    assert (fault.status.fsm_state, fault.status.pod_uid) == (State.FAULT, UID)
    assert fault.effects == (DeletePod(UID),)
    assert judge(make_spec(), fault.status, facts, seconds=3600).status.fsm_state == State.FAULT
    gone = judge(make_spec(), fault.status, GONE, seconds=3600)
    assert gone.status.retries == 1, "its own deletion must not count as a second failure"


def test_a_withdrawn_suspend_is_carried_through_and_costs_nothing(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    asked = judge(make_spec(suspend=True), arrive(State.EXEC), STARTED)
    assert asked.desired.stop
    withdrawn = judge(make_spec(), asked.status, STARTED, seconds=1)
    assert (withdrawn.desired.stop, withdrawn.desired.stop_reason) == (True, "suspend")
    stopped = judge(make_spec(), withdrawn.status, STOPPED, seconds=2).status
    assert (stopped.fsm_state, stopped.retries, stopped.pod_uid) == (State.INIT, 0, None)
    assert judge(make_spec(), stopped, Facts(), seconds=3).effects == (CreatePod(2),)


def test_what_would_only_happen_again_ends_a_suspended_run_too(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    end = judge(make_spec(suspend=True), arrive(State.EXEC), ended(exit_code=2, outcome="failed")).status
    assert (end.fsm_state, end.reason) == (State.TERM, "BadConfig")


def test_silence_and_a_kill_by_the_kubelet_is_a_lost_heartbeat(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    killed = replace(ended(exit_code=137), session=session(started_at=START, late_seconds=500))
    assert judge(make_spec(), arrive(State.EXEC), killed).status.reason == "HeartbeatLost"


def test_the_same_facts_twice_change_nothing(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    status = judge(make_spec(), arrive(State.EXEC), STARTED, seconds=5).status
    assert judge(make_spec(), status, STARTED, seconds=500).status.dump() == status.dump()


def test_a_limit_that_is_over_does_not_keep_waking_the_operator(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    over = judge(make_spec(maxWallclockMinutes=1), arrive(State.EXEC), STARTED, seconds=61)
    assert over.wake_at is not None
    assert over.wake_at > START + timedelta(seconds=61)


def test_gpu_time_is_counted_when_the_pod_ends(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    spec = make_spec(resources={"gpus": {"requested": 2}})
    end = judge(spec, arrive(State.EXEC), after(100, COMPLETED), seconds=101).status
    assert end.gpu_seconds == 200


def test_gpu_time_is_counted_however_often_the_run_was_paused(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge
) -> None:
    gpus = {"gpus": {"requested": 2}}
    paused = replace(STARTED, session=session(started_at=START, paused=True))
    status = arrive(State.EXEC)
    for second in range(1, 15):
        status = judge(make_spec(resources=gpus, pause=True), status, paused, seconds=second).status
        status = judge(make_spec(resources=gpus), status, STARTED, seconds=second).status
    assert State.HSHK not in [step.to for step in status.transitions or []]
    assert judge(make_spec(resources=gpus), status, after(100, COMPLETED), seconds=101).status.gpu_seconds == 200


EVERY_FACT = [
    Facts(),
    *(Facts(pod=pod(situation)) for situation in PodSituation if situation is not PodSituation.ENDED),
    *(ended(exit_code=code, outcome=outcome) for code, outcome in product((0, 1, 2, 3, 137), (None, "completed"))),
    *(ended(outcome=outcome) for outcome in ("failed", "suspended", "canceled", "deadline_exceeded")),
    STARTED,
    REGISTERED,
    replace(STARTED, node_ready=False),
    *(Facts(refusal=Refusal(kind, "no")) for kind in RefusalKind),
    Facts(config_error="bad"),
    Facts(source_pending="not yet"),
    ended(reason=EndReason.DEPENDENCIES),
    Facts(claim_lost="the claim is gone"),
    Facts(predecessor="run-1"),
]
VERBS: list[dict[str, Any]] = [
    {},
    {"suspend": True},
    {"pause": True},
    {"cancel": True},
    {"maxWallclockMinutes": 1},
    {"dryRun": True},
]


@pytest.mark.parametrize("state", list(State))
def test_every_state_has_an_answer_to_every_fact(
    arrive: Callable[[State], Status], make_spec: MakeSpec, judge: Judge, forward_path: Follows, state: State
) -> None:
    for facts, verb in product(EVERY_FACT, VERBS):
        before = arrive(state)
        decision = judge(make_spec(**verb), before, facts, seconds=5)
        walked = [transition.to for transition in decision.status.transitions or []]
        assert forward_path(walked), f"{state} with {facts} and {verb} walked {walked}"
        if state is State.TERM:
            assert decision.status.fsm_state == State.TERM
            assert decision.status.outcome == before.outcome
        again = judge(make_spec(**verb), decision.status, Facts(), seconds=5)
        assert forward_path(transition.to for transition in again.status.transitions or [])

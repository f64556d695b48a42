"""Memory, disk, GPUs, time: what a run had too little of is named in its status, with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Outcome, State, Status
from cleanrl_operator.conditions import message_of
from cleanrl_operator.decision import CreatePod, Decision, DeletePod
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
from cleanrl_operator.policies.failure import classify
from cleanrl_operator.policies.gpu import gpus_held
from cleanrl_operator.policies.retry import verdict

START = datetime(2026, 1, 1, tzinfo=UTC)
SHORT = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate"
MakeSpec = Callable[..., Spec]
Judge = Callable[..., Decision]


def running(**fields: Any) -> Facts:
    session = SessionFacts(registered_at=START, started_at=START, step=10, **fields)
    return Facts(pod=PodFacts(situation=PodSituation.RUNNING, uid="p", since=START), session=session)


def ended(**fields: Any) -> Facts:
    return Facts(pod=PodFacts(situation=PodSituation.ENDED, uid="p", end=WorkerEnd(**{"exit_code": 0, **fields})))


def waiting(message: str) -> Facts:
    return Facts(pod=PodFacts(situation=PodSituation.PENDING, uid="p", since=START, unschedulable=message))


@pytest.mark.parametrize("witness", [{"kubelet_reason": "OOMKilled"}, {"reason": "OOMKilled", "outcome": "failed"}])
def test_memory_is_named_whoever_saw_it_run_out(witness: dict[str, Any]) -> None:
    reason, message = classify(WorkerEnd(exit_code=137, **witness), None, memory="2Gi")
    assert reason is EndReason.OOM_KILLED
    assert "more than its memory of 2Gi" in message
    assert "raise resources.memory" in message


def test_a_full_claim_is_tried_again_and_says_what_to_do() -> None:
    end = WorkerEnd(exit_code=1, outcome="failed", reason="DiskFull", message="No space left on device")
    reason, message = classify(end, None)
    assert reason is EndReason.CLAIM_FULL
    assert "Enlarge the claim" in message
    assert "No space left on device" in message
    assert (verdict(reason).retryable, verdict(reason).spends) == (True, True)


def test_a_checkpoint_that_failed_is_a_condition_and_one_event(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec()
    status = judge(spec, judge(spec, Status(), Facts()).status, running()).status
    failing = running(checkpoint_failure="No space left. Free space on the volume.")
    first = judge(spec, status, failing)
    assert [event.reason for event in first.events] == ["CheckpointFailed"]
    told = [each for each in first.status.conditions or [] if each.type == "CheckpointFailed"]
    assert [(each.status, each.message) for each in told] == [("True", "No space left. Free space on the volume.")]
    assert judge(spec, first.status, failing).events == ()
    assert "CheckpointFailed" not in [
        each.type for each in judge(spec, first.status, running()).status.conditions or []
    ]


def test_a_checkpoint_that_failed_is_still_known_to_an_operator_that_has_not_heard_the_worker_yet(
    make_spec: MakeSpec, judge: Judge
) -> None:
    spec = make_spec()
    status = judge(spec, judge(spec, Status(), Facts()).status, running()).status
    warned = judge(spec, status, running(checkpoint_failure="No space left.")).status
    unheard = replace(running(), session=None)
    after = judge(spec, warned, unheard)
    assert message_of(after.status, "CheckpointFailed") == "No space left."
    assert after.events == ()
    assert warned.session is not None
    unregistered = warned.model_copy(update={"session": warned.session.model_copy(update={"registered_at": None})})
    assert message_of(judge(spec, unregistered, unheard).status, "CheckpointFailed") == "", (
        "that was the last attempt's"
    )


@pytest.mark.parametrize(("step", "reason"), [(5, "Suspended"), (9, "SuspendUnconfirmed")])
def test_a_suspend_is_confirmed_by_a_checkpoint_of_its_step_alone(
    step: int, reason: str, make_spec: MakeSpec, judge: Judge
) -> None:
    status = judge(make_spec(), judge(make_spec(), Status(), Facts()).status, running()).status
    asked = judge(make_spec(suspend=True), status, running()).status
    left = ended(outcome="suspended", step=step, checkpoint_path="c/5", checkpoint_step=5)
    assert judge(make_spec(suspend=True), asked, left).status.reason == reason


def test_a_run_that_waits_for_gpus_says_so_and_what_comes_next(make_spec: MakeSpec, judge: Judge) -> None:
    for mandatory, then in (
        (True, "it starts when they are free"),
        (False, "from 00:01:00 UTC it goes on with the CPU"),
    ):
        gpus = {"requested": 1, "mandatory": mandatory, "fallbackAfterSeconds": 60}
        spec = make_spec(resources={"gpus": gpus})
        accepted = judge(spec, Status(), Facts()).status
        status = judge(spec, accepted, waiting(SHORT)).status
        assert (status.fsm_state, status.reason) == (State.INIT, "NoGPU")
        assert then in (status.message or "")
        assert SHORT in (status.message or ""), "the scheduler's own words stay"
        assert judge(spec, accepted, waiting("0/1 nodes: 1 Insufficient cpu")).status.reason == "Unschedulable"
        lost = judge(spec, status, Facts(pod=PodFacts(situation=PodSituation.GONE))).status
        assert lost.reason == "PodLost", "a pod that is taken away while it waits is lost like any other"


def test_a_fallback_is_told_as_long_as_the_run_lives(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(resources={"gpus": {"requested": 1, "fallbackAfterSeconds": 0}})
    fallen = judge(spec, judge(spec, Status(), Facts()).status, waiting(SHORT)).status
    assert fallen.gpu_fallback
    alone = judge(spec, judge(spec, fallen, Facts(pod=PodFacts(situation=PodSituation.GONE))).status, running()).status
    assert "GPUFallback" in [each.type for each in alone.conditions or []]


def test_a_clock_that_ran_out_names_its_field(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(maxWallclockMinutes=1)
    status = judge(spec, judge(spec, Status(), Facts()).status, running()).status
    over = judge(spec, status, ended(outcome="deadline_exceeded"), seconds=61).status
    assert over.outcome is Outcome.DEADLINE_EXCEEDED
    assert "maxWallclockMinutes (1) is over" in (over.message or "")


@pytest.mark.parametrize(
    ("reason", "words"),
    [(EndReason.EVICTED, "drained"), (EndReason.PREEMPTED, "made room"), (EndReason.NODE_LOST, "went away")],
)
def test_what_the_cluster_did_is_said_in_words(reason: EndReason, words: str) -> None:
    stopped = WorkerEnd(exit_code=143, outcome="canceled", message="stopped by SIGTERM")
    assert classify(stopped, reason)[0] is reason
    assert words in classify(stopped, reason)[1]
    assert "SIGTERM" not in classify(stopped, reason)[1]
    assert "low on memory" in classify(WorkerEnd(exit_code=1, message="low on memory"), reason)[1]


@pytest.mark.parametrize("kind", [RefusalKind.QUOTA, RefusalKind.NOT_YET])
def test_a_pod_that_may_not_be_made_is_not_waited_for_longer_than_asked(
    kind: RefusalKind, make_spec: MakeSpec, judge: Judge
) -> None:
    spec = make_spec(pendingDeadlineSeconds=60)
    status = judge(spec, Status(), Facts()).status
    refused = Facts(refusal=Refusal(kind, "exceeded quota: team", since=START))
    waits = judge(spec, status, refused, seconds=59)
    assert waits.status.fsm_state == State.INIT
    assert waits.wake_at == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    over = judge(spec, waits.status, refused, seconds=60).status
    assert (over.outcome, over.reason, over.message) == (
        Outcome.FAILED,
        "PendingDeadlineExceeded",
        "exceeded quota: team",
    )
    assert judge(make_spec(), status, refused, seconds=10**6).status.fsm_state == State.INIT, "0 waits for ever"
    fresh = Facts(refusal=Refusal(kind, "exceeded quota: team"))
    assert judge(spec, status, fresh, seconds=10**6).status.fsm_state == State.INIT, "it has just begun to wait"


def test_nor_is_one_that_its_queue_holds_back(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(pendingDeadlineSeconds=60)
    held = Facts(pod=PodFacts(situation=PodSituation.GATED, uid="p", since=START))
    queued = judge(spec, judge(spec, Status(), Facts()).status, held, seconds=59)
    assert queued.status.reason == "Queued"
    over = judge(spec, queued.status, held, seconds=60)
    assert (over.status.reason, over.effects) == ("PendingDeadlineExceeded", (DeletePod("p"),))


OPTIONAL = {"gpus": {"requested": 1, "fallbackAfterSeconds": 60}}


@pytest.mark.parametrize(
    "message",
    ["0/1 nodes are available: 1 Insufficient memory.", "pod has unbound immediate PersistentVolumeClaims"],
)
def test_a_gpu_is_not_given_up_for_want_of_something_else(message: str, make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(resources=OPTIONAL)
    status = judge(spec, judge(spec, Status(), Facts()).status, waiting(message), seconds=3600)
    assert (status.status.reason, status.status.gpu_fallback, status.effects) == ("Unschedulable", None, ())
    for want in (
        f"0/2 nodes are available: 1 Insufficient nvidia.com/gpu, {message}",
        "no nodes available to schedule pods",
    ):
        begun = judge(spec, status.status, waiting(want), seconds=3600)
        assert begun.wake_at == START + timedelta(seconds=3660)
        assert not judge(spec, begun.status, waiting(want), seconds=3659).status.gpu_fallback
        assert judge(spec, begun.status, waiting(want), seconds=3660).status.gpu_fallback


def test_nor_because_a_queue_has_held_the_pod_back(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(resources=OPTIONAL)
    held = Facts(pod=PodFacts(situation=PodSituation.GATED, uid="p", since=START))
    short = Facts(refusal=Refusal(RefusalKind.QUOTA, "exceeded quota: q, requested: requests.nvidia.com/gpu=1"))
    refused = judge(
        spec, judge(spec, Status(), Facts()).status, short
    ).status  # the quota made it wait first, for a moment
    queued = judge(spec, refused, held, seconds=3600).status
    admitted = judge(spec, queued, waiting(SHORT), seconds=3601)
    assert (admitted.status.reason, admitted.status.gpu_fallback, admitted.effects) == ("NoGPU", None, ())
    running = Facts(pod=PodFacts(PodSituation.RUNNING, uid="p", since=START))
    started = judge(spec, admitted.status, running, seconds=3630)
    assert (started.status.fsm_state, started.status.gpu_awaited_since) == (State.HSHK, None)


def test_a_quota_that_has_no_gpus_left_is_waited_for_no_longer_than_a_gpu(make_spec: MakeSpec, judge: Judge) -> None:
    def refused(short: str) -> Facts:
        message = f"exceeded quota: team, requested: {short}=1, used: {short}=0, limited: {short}=0"
        return Facts(refusal=Refusal(RefusalKind.QUOTA, message, since=START))

    spec, gpus = make_spec(resources=OPTIONAL), refused("requests.nvidia.com/gpu")
    status = judge(spec, Status(), Facts()).status
    waits = judge(spec, judge(spec, status, gpus).status, gpus, seconds=59)
    assert (waits.status.reason, waits.status.gpu_fallback) == ("QuotaExceeded", None)
    assert waits.wake_at == START + timedelta(seconds=60)
    fallen = judge(spec, waits.status, gpus, seconds=60)
    assert (fallen.status.reason, gpus_held(spec, fallen.status)) == ("GPUFallback", 0)
    assert [event.reason for event in fallen.events] == ["GPUFallback"]
    assert judge(spec, fallen.status, Facts(), seconds=60).effects == (CreatePod(1),)
    mandatory = make_spec(resources={"gpus": {"requested": 1, "mandatory": True}})
    for wanted, facts in ((mandatory, gpus), (spec, refused("requests.memory"))):
        assert judge(wanted, status, facts, seconds=10**6).status.reason == "QuotaExceeded"


def test_what_is_asked_for_after_a_suspend_counts(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(resources=OPTIONAL)
    waits = judge(spec, judge(spec, Status(), Facts()).status, waiting(SHORT)).status
    fallen = judge(spec, waits, waiting(SHORT), seconds=60).status
    assert gpus_held(spec, fallen) == 0
    without = judge(spec, fallen, Facts(pod=PodFacts(situation=PodSituation.GONE)), seconds=61).status
    suspended = judge(make_spec(resources=OPTIONAL, suspend=True), without, Facts(), seconds=62).status
    assert (suspended.fsm_state, suspended.gpu_fallback) == (State.PAUSE, None)
    assert "GPUFallback" not in [each.type for each in suspended.conditions or []]
    must_have = make_spec(resources={"gpus": {"requested": 2, "mandatory": True}})
    resumed = judge(must_have, suspended, Facts(), seconds=63).status
    assert (resumed.fsm_state, gpus_held(must_have, resumed)) == (State.INIT, 2)

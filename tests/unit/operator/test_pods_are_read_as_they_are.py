"""Pods as the API server shows them, turned into facts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from cleanrl_operator.facts import EndReason, PodSituation
from cleanrl_operator.observe import observe_departed, observe_pod
from cleanrl_operator.policies.failure import classify
from cleanrl_operator.policies.retry import verdict
from cleanrl_operator.run import ATTEMPT_LABEL, Run

from cleanrl_protocol.record import TerminationRecord, dump

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


@pytest.fixture
def run() -> Run:
    metadata = {"namespace": "ns", "name": "run", "uid": "u1", "resourceVersion": "1", "creationTimestamp": EARLY}
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10}
    return Run.parse({"metadata": metadata, "spec": spec})


def pod(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ns", "name": "pod", "uid": "p1", "creationTimestamp": EARLY, "labels": {ATTEMPT_LABEL: "1"},
            "ownerReferences": [{"uid": "u1", "controller": True}],
        },
        "spec": spec or {},
        "status": status,
    }  # fmt: skip


def worker(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "worker", "state": state}]}


def condition(kind: str, status: str, **fields: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, **fields}]}


@pytest.mark.parametrize(
    ("body", "situation"),
    [
        (pod(), PodSituation.PENDING),
        (pod({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}), PodSituation.GATED),
        (pod(**worker(running={"startedAt": LATE})), PodSituation.RUNNING),
        (pod(**worker(waiting={"reason": "ErrImagePull"})), PodSituation.IMAGE_ERROR),
        (pod(initContainerStatuses=[{"name": "tensorboard", "state": {"waiting": {"reason": "InvalidImageName"}}}]),
         PodSituation.IMAGE_ERROR),
        (pod(**worker(waiting={"reason": "PodInitializing"})), PodSituation.PENDING),
        (pod(**worker(terminated={"exitCode": 1})), PodSituation.ENDED),
        (pod(phase="Failed", reason="Evicted"), PodSituation.ENDED),
    ],
)  # fmt: skip
def test_where_a_pod_stands(run: Run, body: dict[str, Any], situation: PodSituation) -> None:
    assert observe_pod(run, body).situation is situation


@pytest.mark.parametrize(
    "change",
    [
        {"ownerReferences": []},
        {"ownerReferences": [{"uid": "u1"}]},
        {"ownerReferences": [{"uid": "other", "controller": True}]},
        {"labels": {ATTEMPT_LABEL: "2"}},
        {"namespace": "elsewhere"},
    ],
)
def test_a_pod_is_ours_by_controller_namespace_and_attempt(run: Run, change: dict[str, Any]) -> None:
    body = pod()
    assert observe_pod(run, body).uid == "p1"
    body["metadata"] |= change
    assert (observe_pod(run, body).situation, observe_pod(run, body).uid) == (PodSituation.FOREIGN, None)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, EndReason.EVICTED),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource: memory. Container worker was "
                "using 2Gi, request is 1Gi, has larger consumption of memory. ",
            },
            EndReason.EVICTED,
        ),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". ',
            },
            EndReason.SCRATCH,
        ),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            },
            EndReason.SCRATCH,
        ),
        (
            {
                "phase": "Failed",
                "reason": "Evicted",
                "message": 'Container worker exceeded its local ephemeral storage limit "1Gi". ',
            },
            EndReason.SCRATCH,
        ),
        ({"phase": "Failed", "reason": "NodeShutdown"}, EndReason.NODE_LOST),
        (condition("DisruptionTarget", "True", reason="PreemptionByScheduler"), EndReason.PREEMPTED),
        (condition("DisruptionTarget", "True", reason="DeletionByTaintManager"), EndReason.EVICTED),
        (condition("DisruptionTarget", "True", reason="DeletionByPodGC"), EndReason.NODE_LOST),
        (condition("TerminationTarget", "True", reason="StoppedByKueue"), EndReason.PREEMPTED),
        (condition("DisruptionTarget", "False", reason="PreemptionByScheduler"), None),
    ],
)
def test_who_ended_it(run: Run, status: dict[str, Any], reason: EndReason | None) -> None:
    assert observe_pod(run, pod(**status)).disrupted is reason


def test_the_wait_for_an_image_begins_when_the_pod_has_a_node(run: Run) -> None:
    scheduled = condition("PodScheduled", "True", lastTransitionTime=LATE)
    body = pod(**worker(waiting={"reason": "ErrImagePull"}), **scheduled)
    since = observe_pod(run, body).since
    assert since is not None
    assert since.hour == 1


def test_a_record_is_believed_only_if_it_speaks_of_this_run_and_attempt(run: Run) -> None:
    good = dump(TerminationRecord(run_id=run.run_id, attempt=1, outcome="completed")).decode()
    other = dump(TerminationRecord(run_id=run.run_id, attempt=2, outcome="completed")).decode()
    for message, outcome in ((good, "completed"), (other, None), ("", None), ("{", None), ("[]", None)):
        end = observe_pod(run, pod(**worker(terminated={"exitCode": 0, "message": message}))).end
        assert end is not None
        assert end.outcome == outcome


def test_a_worker_that_left_no_record_is_told_with_its_exit_code(run: Run) -> None:
    for code, reason in ((1, EndReason.EXIT_CODE), (2, EndReason.BAD_CONFIG), (137, EndReason.EXIT_CODE)):
        end = observe_pod(run, pod(phase="Failed", **worker(terminated={"exitCode": code}))).end
        assert end is not None
        told, message = classify(end, None)
        assert told is reason
        assert f"exit code {code}, and the container left no termination record" in message


def test_a_pod_that_is_gone_still_tells_how_it_ended(run: Run) -> None:
    record = dump(TerminationRecord(run_id=run.run_id, attempt=1, outcome="suspended")).decode()
    ended = observe_departed(run, pod(**worker(terminated={"exitCode": 0, "message": record})))
    assert ended.end is not None
    assert ended.end.outcome == "suspended"
    preempted = condition("DisruptionTarget", "True", reason="PreemptionByScheduler")
    gone = observe_departed(run, pod(**worker(running={}), **preempted))
    assert (gone.situation, gone.disrupted, gone.uid) == (PodSituation.GONE, EndReason.PREEMPTED, None)


def test_an_installation_that_failed_is_told_in_the_installers_last_words(run: Run) -> None:
    def installing(**state: Any) -> dict[str, Any]:
        return {"initContainerStatuses": [{"name": "requirements", "state": state}]}

    waits = observe_pod(run, pod(phase="Pending", **installing(running={"startedAt": EARLY})))
    assert waits.situation is PodSituation.PENDING
    done = observe_pod(run, pod(phase="Pending", **installing(terminated={"exitCode": 0, "reason": "Completed"})))
    assert done.situation is PodSituation.PENDING
    words = "x" * 9000 + "\nERROR: no wheel\x1b[0m\n"
    failed = {"exitCode": 1, "reason": "Error", "message": words, "finishedAt": LATE}
    facts = observe_pod(run, pod(phase="Failed", **installing(terminated=failed)))
    assert facts.situation is PodSituation.ENDED
    assert facts.end is not None
    assert (facts.end.reason, facts.end.exit_code) == (EndReason.DEPENDENCIES, 1)
    assert facts.end.message.endswith("ERROR: no wheel [0m")
    assert len(facts.end.message) < 2100
    silent = observe_pod(run, pod(phase="Failed", **installing(terminated={"exitCode": 137, "reason": "OOMKilled"})))
    assert silent.end is not None
    assert silent.end.kubelet_reason == "OOMKilled"
    assert "exit code 137 and said nothing" in silent.end.message


def test_an_injected_container_that_fails_before_the_worker_is_named(run: Run) -> None:
    failed = {"name": "mesh-init", "state": {"terminated": {"exitCode": 255, "reason": "Error"}}}
    waits = worker(waiting={"reason": "PodInitializing"})
    end = observe_pod(run, pod(phase="Failed", initContainerStatuses=[failed], **waits)).end
    assert end is not None
    reason, message = classify(end, None)
    assert reason is EndReason.EXIT_CODE
    assert message == "The worker never ran: init container mesh-init ended with exit code 255 (Error)."


def test_the_sidecar_answers_when_it_is_ready(run: Run) -> None:
    for ready in (True, False):
        sidecar = {"initContainerStatuses": [{"name": "tensorboard", "ready": ready, "state": {"running": {}}}]}
        assert observe_pod(run, pod(phase="Running", **worker(running={}), **sidecar)).tensorboard_ready is ready


NO_PYTHON = 'exec: "python": executable file not found in $PATH'


@pytest.mark.parametrize(
    ("state", "last"),
    [
        ({"reason": "RunContainerError", "message": NO_PYTHON}, None),
        ({"reason": "CrashLoopBackOff", "message": "back-off 20s"}, {"reason": "StartError", "message": NO_PYTHON}),
    ],
)
def test_a_sidecar_that_does_not_start_holds_the_worker_up_and_says_why(
    run: Run, state: dict[str, Any], last: dict[str, Any] | None
) -> None:
    sidecar = {"name": "tensorboard", "state": {"waiting": state}, "lastState": {"terminated": last} if last else {}}
    waits = worker(waiting={"reason": "PodInitializing"})
    facts = observe_pod(run, pod(initContainerStatuses=[sidecar], **waits))
    assert (facts.situation, facts.message) == (PodSituation.IMAGE_ERROR, NO_PYTHON)
    runs = worker(running={"startedAt": LATE})
    assert observe_pod(run, pod(initContainerStatuses=[sidecar], **runs)).situation is PodSituation.RUNNING


def test_the_wait_for_a_container_that_does_not_start_begins_when_the_installer_is_done(run: Run) -> None:
    installed = {"name": "requirements", "state": {"terminated": {"exitCode": 0, "finishedAt": LATE}}}
    sidecar = {"name": "tensorboard", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    scheduled = condition("PodScheduled", "True", lastTransitionTime=EARLY)
    waits = worker(waiting={"reason": "PodInitializing"})
    facts = observe_pod(run, pod(initContainerStatuses=[installed, sidecar], **waits, **scheduled))
    assert facts.situation is PodSituation.IMAGE_ERROR
    assert facts.since == datetime.fromisoformat(LATE)


def test_a_worker_whose_program_is_not_in_the_image_never_ran(run: Run) -> None:
    done = {"exitCode": 128, "reason": "StartError", "message": NO_PYTHON, "startedAt": "1970-01-01T00:00:00Z"}
    end = observe_pod(run, pod(phase="Failed", **worker(terminated=done))).end
    assert end is not None
    assert (end.ran_at, classify(end, None)) == (None, (EndReason.IMAGE, NO_PYTHON))


def test_a_node_that_does_not_take_the_pod_is_no_exit_code(run: Run) -> None:
    rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
    end = observe_pod(run, pod(**rejected)).end
    assert end is not None
    reason, message = classify(end, None)
    assert reason is EndReason.REJECTED
    assert message == "The node did not take the pod (UnexpectedAdmissionError): no healthy devices present"
    evicted = observe_pod(run, pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory. "))
    assert evicted.end is not None
    assert classify(evicted.end, evicted.disrupted)[0] is EndReason.EVICTED
    died = observe_pod(run, pod(phase="Failed", **worker(terminated={"exitCode": 1}))).end
    assert died is not None
    assert classify(died, None)[0] is EndReason.EXIT_CODE


def test_a_pod_that_writes_too_much_spends_a_retry() -> None:
    assert (verdict(EndReason.SCRATCH).retryable, verdict(EndReason.SCRATCH).spends) == (True, True)
    assert not verdict(EndReason.EVICTED).spends

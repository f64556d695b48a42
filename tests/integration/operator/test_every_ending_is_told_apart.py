"""How runs end, or wait: each cause has its own reason, costs what it should, and is tried again or not as the table says."""

from __future__ import annotations

import time
from copy import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from devcluster.api import ApiError

RETRIED = {
    "OOMKilled": {"exit_code": 137, "reason": "OOMKilled"},
    "ExitCode": {"exit_code": 1, "outcome": "failed", "message": "IndexError: list index out of range"},
    "NoHandshake": {"exit_code": 0},
    "PodLost": {"exit_code": 143, "outcome": "canceled"},
}
FINAL = {
    "BadConfig": {"exit_code": 2, "outcome": "failed", "reason": "Error", "message": "no such flag"},
    "NaN": {"exit_code": 3, "outcome": "failed"},
}


@pytest.mark.parametrize("reason", RETRIED)
def test_a_failure_costs_a_retry_and_is_tried_again(lab: Any, reason: str) -> None:
    lab.create("run", retry={"limit": 1, "backoffSeconds": 1})
    lab.start_pod("run")
    lab.end_pod("run", **RETRIED[reason])
    lab.until("run", fsmState="INIT", attempt=2)
    assert lab.status("run")["retries"] == 1
    assert [step["reason"] for step in lab.status("run")["transitions"]].count(reason) == 1
    lab.start_pod("run")
    lab.end_pod("run", **RETRIED[reason])
    end = lab.until("run", fsmState="TERM")
    assert (end["outcome"], end["reason"], end["attempt"]) == ("failed", reason, 2)


@pytest.mark.parametrize("reason", FINAL)
def test_what_would_only_happen_again_is_not_tried_again(lab: Any, reason: str) -> None:
    lab.create("run")
    lab.start_pod("run")
    lab.end_pod("run", **FINAL[reason])
    end = lab.until("run", fsmState="TERM", outcome="failed")
    assert (end["reason"], end["attempt"]) == (reason, 1)


def test_what_the_cluster_did_costs_no_retry(lab: Any) -> None:
    lab.create("run", retry={"limit": 0, "backoffSeconds": 1})
    lab.start_pod("run")
    lab.set_pod("run", phase="Failed", reason="Evicted", message="The node was low on memory.")
    lab.until("run", fsmState="INIT", attempt=2)
    lab.start_pod("run")
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    # An old one is set back to False by the cluster's own disruption controller.
    fresh = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lab.set_pod("run", conditions=[{**disrupted, "lastTransitionTime": fresh}])
    lab.delete_pod("run")
    lab.until("run", fsmState="INIT", attempt=3)
    reasons = [step["reason"] for step in lab.status("run")["transitions"]]
    assert "Evicted" in reasons
    assert "Preempted" in reasons
    assert lab.status("run").get("retries", 0) == 0


def test_a_pod_deleted_by_hand_is_followed_by_the_next(lab: Any) -> None:
    lab.create("run", retry={"limit": 1, "backoffSeconds": 1})
    lab.execute("run")
    lab.delete_pod("run")
    after = lab.until("run", fsmState="INIT", attempt=2)
    assert after["retries"] == 1
    assert [pod["metadata"]["labels"]["mosaic.dev/attempt"] for pod in lab.pods("run")] == ["2"]


def test_no_second_pod_while_the_first_may_still_write(lab: Any) -> None:
    lab.create("run", retry={"limit": 3, "backoffSeconds": 1})
    lab.start_pod("run")
    first = lab.pod_path("run")
    lab.end_pod("run", exit_code=1, phase="Running")  # its sidecar is still alive
    lab.until("run", fsmState="INIT", reason="WaitingForPod")
    assert len(lab.pods("run")) == 1
    lab.api.merge(f"{first}/status", {"status": {"phase": "Failed"}})
    lab.until("run", attempt=2)


def test_quota_waits_and_says_so(lab: Any) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    lab.api.create(f"/api/v1/namespaces/{lab.namespace}/resourcequotas", quota)
    path = f"/api/v1/namespaces/{lab.namespace}/resourcequotas/none"
    deadline = time.monotonic() + 30
    while "hard" not in (lab.api.get(path).get("status") or {}):
        assert time.monotonic() < deadline
    lab.create("run")
    waiting = lab.until("run", fsmState="INIT", reason="QuotaExceeded")
    assert "exceeded quota: none" in waiting["message"]
    assert waiting.get("retries", 0) == 0
    assert lab.pods("run") == []
    lab.create("impatient", suspend=True, pendingDeadlineSeconds=2)
    lab.until("impatient", fsmState="PAUSE")
    time.sleep(3)
    lab.edit("impatient", suspend=False)
    lab.until("impatient", fsmState="INIT", reason="QuotaExceeded")  # however long it was suspended before
    end = lab.until("impatient", fsmState="TERM", outcome="failed")
    assert (end["reason"], "exceeded quota: none" in end["message"]) == ("PendingDeadlineExceeded", True)


def test_a_quota_that_counts_limits_lets_a_run_in(lab: Any) -> None:
    hard = {"limits.cpu": "4", "limits.memory": "8Gi", "requests.cpu": "4", "requests.memory": "8Gi"}
    quotas = f"/api/v1/namespaces/{lab.namespace}/resourcequotas"
    lab.api.create(quotas, {"metadata": {"name": "compute"}, "spec": {"hard": hard}})
    deadline = time.monotonic() + 30
    while "hard" not in (lab.api.get(f"{quotas}/compute").get("status") or {}):
        assert time.monotonic() < deadline
    lab.create("run")
    assert lab.until("run", attempt=1)["fsmState"] == "INIT"


def test_a_quota_without_gpus_keeps_no_run_that_can_do_without(lab: Any) -> None:
    quotas = f"/api/v1/namespaces/{lab.namespace}/resourcequotas"
    lab.api.create(quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}})
    deadline = time.monotonic() + 30
    while "hard" not in (lab.api.get(f"{quotas}/none").get("status") or {}):
        assert time.monotonic() < deadline
    lab.create("run", resources={"gpus": {"requested": 1, "fallbackAfterSeconds": 2}})
    waiting = lab.until("run", fsmState="INIT", reason="QuotaExceeded")
    assert "requests.nvidia.com/gpu" in waiting["message"]
    begun = lab.until("run", gpuFallback=True, attempt=1)
    assert begun.get("retries", 0) == 0


def test_a_webhook_that_does_not_answer_is_told_and_waited_for(lab: Any) -> None:
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    made = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods", "configmaps"]}
    hook = {
        "name": "away.example.org",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [made],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": lab.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    lab.api.create(hooks, {"metadata": {"name": lab.namespace}, "webhooks": [hook]})
    deadline = time.monotonic() + 30
    with pytest.raises(ApiError, match="failed calling webhook"):
        while time.monotonic() < deadline:  # the API server learns of it in a moment
            lab.api.create(f"/api/v1/namespaces/{lab.namespace}/configmaps?dryRun=All", {"metadata": {"name": "probe"}})
            time.sleep(0.05)
    lab.create("run")
    waiting = lab.until("run", fsmState="INIT", reason="NotAdmittedYet")
    assert 'failed calling webhook "away.example.org"' in waiting["message"]
    lab.api.delete(f"{hooks}/{lab.namespace}")
    assert lab.until("run", attempt=1).get("retries", 0) == 0


def test_an_account_that_is_applied_after_the_run_is_waited_for(lab: Any) -> None:
    lab.create("run", podTemplate={"serviceAccountName": "late"})
    waiting = lab.until("run", fsmState="INIT", reason="NotAdmittedYet")
    assert 'serviceaccount "late" not found' in waiting["message"]
    lab.api.create(f"/api/v1/namespaces/{lab.namespace}/serviceaccounts", {"metadata": {"name": "late"}})
    begun = lab.until("run", attempt=1)
    assert begun.get("retries", 0) == 0
    assert begun["reason"] != "NotAdmittedYet"


def test_a_run_that_comes_with_its_namespace_is_not_refused(lab: Any) -> None:
    new = copy(lab)
    new.namespace = f"{lab.namespace}-new"
    lab.api.create("/api/v1/namespaces", {"metadata": {"name": new.namespace}})
    new.create("run")
    new.until("run", attempt=1)
    lab.api.delete(f"/api/v1/namespaces/{new.namespace}")


def test_a_policys_refusal_ends_the_run_with_its_own_sentence(lab: Any) -> None:
    limit = {"type": "Container", "max": {"memory": "1Gi"}}
    body = {"metadata": {"name": "small"}, "spec": {"limits": [limit]}}
    lab.api.create(f"/api/v1/namespaces/{lab.namespace}/limitranges", body)
    lab.create("run", resources={"memory": "8Gi"})
    end = lab.until("run", fsmState="TERM", outcome="failed")
    assert end["reason"] == "PolicyRefused"
    assert "maximum memory usage per Container is 1Gi" in end["message"]


def test_a_misspelt_affinity_ends_the_run_instead_of_placing_it_anywhere(lab: Any) -> None:
    lab.create("run", podTemplate={"affinity": {"nodeAfinity": {}}})
    end = lab.until("run", fsmState="TERM", outcome="failed")
    assert end["reason"] == "PolicyRefused"
    assert 'unknown field "spec.affinity.nodeAfinity"' in end["message"]


def test_an_image_that_never_comes_is_a_fault_after_a_while(lab: Any) -> None:
    lab.create("run", retry={"limit": 0})
    lab.until("run", reason="Unschedulable")
    waiting = {
        "name": "worker", "ready": False, "restartCount": 0, "image": "worker", "imageID": "",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }  # fmt: skip
    lab.set_pod("run", conditions=[scheduled(10)], containerStatuses=[waiting])
    assert lab.until("run", reason="ImageError")["fsmState"] == "INIT"
    lab.set_pod("run", conditions=[scheduled(1000)])
    end = lab.until("run", fsmState="TERM")
    assert (end["outcome"], end["reason"], end["message"]) == ("failed", "ImageError", "no such image")
    assert lab.pods("run") == []


def test_a_pod_that_does_not_start_in_time_ends_the_run(lab: Any) -> None:
    lab.create("run", pendingDeadlineSeconds=1)
    end = lab.until("run", fsmState="TERM", outcome="failed")
    assert end["reason"] == "PendingDeadlineExceeded"
    assert "nodes" in end["message"], "the scheduler's own sentence"


def test_an_optional_gpu_is_given_up_and_the_run_goes_on(lab: Any) -> None:
    lab.create("run", resources={"gpus": {"requested": 1, "fallbackAfterSeconds": 1}})
    after = lab.until("run", gpuFallback=True, attempt=2)
    assert after.get("retries", 0) == 0
    (pod,) = lab.pods("run")
    assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"]["limits"]
    assert "GPUFallback" in lab.events("run")


def test_the_wall_clock_ends_a_run(lab: Any) -> None:
    lab.create("run", maxWallclockMinutes=1)
    worker = lab.execute("run")
    lab.edit_status("run", wallclockSince=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 3600)))
    deadline = time.monotonic() + 30
    while not (worker.wishes and worker.wishes[-1].stop):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert worker.wishes[-1].stop_reason == "deadline"
    lab.end_pod("run", outcome="deadline_exceeded", exit_code=1)
    lab.until("run", fsmState="TERM", outcome="deadline_exceeded")


def test_ttl_removes_the_pod_and_never_starts_the_run_again(lab: Any) -> None:
    lab.create("run", ttlSecondsAfterFinished=1)
    lab.start_pod("run")
    lab.end_pod("run", outcome="completed")
    before = lab.until("run", fsmState="TERM")
    deadline = time.monotonic() + 30
    while lab.pods("run"):
        assert time.monotonic() < deadline, "the pod stays"
        time.sleep(0.1)
    assert lab.status("run") == before


def test_a_claim_that_is_gone_is_never_replaced_by_an_empty_one(lab: Any) -> None:
    lab.create("run", retry={"limit": 3, "backoffSeconds": 1})
    lab.start_pod("run")
    name = lab.until("run", fsmState="HSHK")["analytics"]["claimName"]
    claim = f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims/{name}"
    lab.edit("run", suspend=True)
    lab.until("run", fsmState="PAUSE")
    lab.api.merge(claim, {"metadata": {"finalizers": []}})
    lab.api.delete(claim)
    lab.edit("run", suspend=False)
    end = lab.until("run", fsmState="TERM", outcome="failed")
    assert end["reason"] == "ClaimLost"
    assert f"Claim {name}" in end["message"]
    assert lab.pods("run") == []


def test_a_shared_claim_that_was_replaced_is_noticed(lab: Any) -> None:
    path = f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "shared"}, "spec": spec}
    lab.api.create(path, claim)
    lab.create("run", artifacts={"storage": {"claimName": "shared"}})
    lab.start_pod("run")
    assert lab.status("run")["claimUID"] == lab.api.get(f"{path}/shared")["metadata"]["uid"]
    lab.edit("run", suspend=True)
    lab.until("run", fsmState="PAUSE")
    lab.api.merge(f"{path}/shared", {"metadata": {"finalizers": []}})
    lab.api.delete(f"{path}/shared")
    while not lab.api.create(path, claim):  # the old one may take a moment to go
        time.sleep(0.05)
    lab.edit("run", suspend=False)
    end = lab.until("run", fsmState="TERM", outcome="failed")
    assert end["reason"] == "ClaimLost"
    assert "is not the one that held the run's data" in end["message"]


def test_a_pod_of_the_right_name_by_somebody_else_ends_the_run(lab: Any) -> None:
    lab.create("run", retry={"limit": 1, "backoffSeconds": 1})
    taken = lab.until("run", fsmState="INIT", attempt=1)["podName"]
    assert taken.endswith("-1")
    other = {
        "metadata": {"name": taken[:-1] + "2", "labels": {"mosaic.dev/run-uid": lab.run("run")["metadata"]["uid"]}},
        "spec": lab.pods("run")[0]["spec"] | {"nodeName": None},
    }
    lab.api.create(f"/api/v1/namespaces/{lab.namespace}/pods", other)
    lab.delete_pod("run")
    end = lab.until("run", fsmState="TERM", outcome="failed")
    assert end["reason"] == "NameTaken"
    assert [pod["metadata"]["name"] for pod in lab.pods("run")] == []


def scheduled(seconds_ago: float) -> dict[str, str]:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))
    return {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}

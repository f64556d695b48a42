"""A pod that is going and does not go: the next attempt waits for it, and comes once it is gone; a lost node costs no retry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

UNREACHABLE = "node.kubernetes.io/unreachable"
FINALIZER = "example.org/holds-on"


@pytest.fixture(scope="module")
def operator(make_operator: Any) -> Iterator[Any]:
    running = make_operator("outlive", operator_class="outlive").start()
    yield running
    assert running.stop() == 0


@pytest.fixture
def lab(make_lab: Any, operator: Any) -> Any:
    return make_lab(operator.gateway_port, operator_class="outlive")


def pods(lab: Any, name: str) -> dict[str, Any]:
    return {pod["metadata"]["labels"]["mosaic.dev/attempt"]: pod for pod in lab.pods(name)}


def test_a_pod_stuck_in_terminating_keeps_the_next_one_away(lab: Any, until: Any) -> None:
    lab.create("run", retry={"limit": 3, "backoffSeconds": 1})
    lab.execute("run")
    path = lab.pod_path("run")
    lab.api.merge(path, {"metadata": {"finalizers": [FINALIZER]}})
    lab.delete_pod("run")
    until(lambda: "deletionTimestamp" in pods(lab, "run")["1"]["metadata"], "the pod is going")
    lab.edit("run", suspend=True)
    lab.edit("run", suspend=False)
    time.sleep(2)  # longer than the retry's backoff: were there to be a second pod, it would be there
    assert list(pods(lab, "run")) == ["1"]
    assert lab.status("run")["attempt"] == 1
    lab.api.merge(path, {"metadata": {"finalizers": []}})
    lab.until("run", fsmState="INIT", attempt=2)
    assert list(pods(lab, "run")) == ["2"]


def test_a_lost_node_costs_no_retry_and_makes_no_second_pod(lab: Any, until: Any) -> None:
    node = f"node-{lab.namespace}"
    where = f"/api/v1/nodes/{node}"
    lab.api.create("/api/v1/nodes", {"metadata": {"name": node}})
    try:
        tolerations = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}]
        lab.create("run", retry={"limit": 0}, podTemplate={"tolerations": tolerations})
        until(lambda: lab.status("run").get("podUID"), "it has a pod")
        binding = {"metadata": {"name": lab.status("run")["podName"]}, "target": {"kind": "Node", "name": node}}
        lab.api.request("POST", f"{lab.pod_path('run')}/binding", binding)
        lab.start_pod("run")

        def evicted() -> bool:
            # The only node of a cluster is no proof that nodes are lost: the node controller may take the taint off once.
            if UNREACHABLE not in [taint["key"] for taint in lab.api.get(where)["spec"].get("taints", [])]:
                lab.api.merge(where, {"spec": {"taints": [{"key": UNREACHABLE, "effect": "NoExecute"}]}})
            return "deletionTimestamp" in pods(lab, "run")["1"]["metadata"]

        until(evicted, "the cluster evicts it")
        assert list(pods(lab, "run")) == ["1"], "it may still write there, for all anybody knows"
        lost = lab.until("run", fsmState="FAULT", reason="NodeLost")
        assert lost["attempt"] == 1
        lab.delete_pod("run")  # what the cluster does once the node is known to be gone
        after = lab.until("run", attempt=2)
        assert after.get("retries", 0) == 0
        assert list(pods(lab, "run")) == ["2"]
    finally:
        lab.api.delete(where)


def test_a_pod_that_has_only_lost_its_labels_is_not_gone(lab: Any, until: Any) -> None:
    lab.create("run", retry={"limit": 0})
    worker = lab.execute("run")
    first = lab.pod_path("run")
    ours = dict.fromkeys(lab.api.get(first)["metadata"]["labels"])
    lab.api.merge(first, {"metadata": {"labels": ours}})
    worker.checkpoint(700)
    until(lambda: (lab.status("run").get("checkpoint") or {}).get("step") == 700, "it is still heard")
    found = lab.status("run")
    assert (found["fsmState"], found["attempt"], found.get("retries", 0)) == ("EXEC", 1, 0)
    worker.emit("run_completed")
    lab.end_pod("run", outcome="completed")
    worker.scalars(1000)
    lab.until("run", fsmState="TERM", outcome="completed")
    assert lab.status("run")["attempt"] == 1


def test_a_pod_that_goes_on_without_its_worker_is_removed(make_lab: Any, jumping_operator: Any, until: Any) -> None:
    operator, jump = jumping_operator
    lab = make_lab(operator.gateway_port, operator_class="jumping")
    pods = {}
    for how in ("suspended", "failed", "completed"):
        lab.create(how, retry={"limit": 3, "backoffSeconds": 1})
        lab.execute(how)
        if how == "suspended":
            lab.edit(how, suspend=True)
            lab.until(how, reason="Suspending")
        pods[how] = lab.status(how)["podUID"]
        lab.end_pod(how, int(how == "failed"), phase="Running", outcome=how)  # what was injected into it goes on
    lab.until("suspended", fsmState="PAUSE")
    lab.until("failed", fsmState="INIT", reason="WaitingForPod")
    lab.until("completed", fsmState="TERM")
    assert [len(lab.pods(how)) for how in pods] == [1, 1, 1], "our own sidecar has its time"
    jump(3600)
    for how in pods:
        lab.edit(how, ttlSecondsAfterFinished=10**6)  # a reason to look, long before the time is over
    for how, uid in pods.items():
        until(
            lambda how=how, uid=uid: uid not in [pod["metadata"]["uid"] for pod in lab.pods(how)],
            f"{how}'s pod is gone",
        )
    lab.until("failed", attempt=2)
    assert lab.status("suspended")["fsmState"] == "PAUSE"
    assert lab.status("completed")["outcome"] == "completed"

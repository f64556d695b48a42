"""What the status says of a run's analytics, whoever finished them, and that a key is nowhere where people read."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "ab" * 32
URL = "https://wandb.example.org/team/cleanRL/runs/r"


def wait_for(condition: Callable[[], Any], complaint: Callable[[], object]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.1)
    return found


def analytics(lab: Any, name: str) -> dict[str, Any]:
    return dict(lab.status(name).get("analytics") or {})


def end_sidecar(lab: Any, name: str, message: str, container: str = "tensorboard") -> None:
    done = {
        "exitCode": 0,
        "finishedAt": "2026-01-01T00:00:00Z",
        "startedAt": "2026-01-01T00:00:00Z",
        "message": message,
    }
    described = {"name": container, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    lab.set_pod(name, initContainerStatuses=[{**described, "state": {"terminated": done}}])


def test_a_manifest_that_the_sidecar_finished_is_vouched_for_even_after_the_end(lab: Any, operator: Any) -> None:
    before = operator.metric('cleanrl_operator_runs_finished_total{outcome="failed"}')
    lab.create("killed", retry={"limit": 0})
    lab.execute("killed")
    lab.end_pod("killed", exit_code=137)
    lab.until("killed", fsmState="TERM", outcome="failed")
    assert analytics(lab, "killed")["reason"] == "NoRecord"
    assert operator.metric('cleanrl_operator_runs_finished_total{outcome="failed"}') == before + 1
    end_sidecar(lab, "killed", json.dumps({"manifestSha256": "nonsense"}))
    end_sidecar(lab, "killed", json.dumps({"manifestSha256": DIGEST}))
    wait_for(lambda: analytics(lab, "killed").get("manifestDigest") == DIGEST, lambda: lab.status("killed"))
    assert "reason" not in analytics(lab, "killed")
    assert lab.status("killed")["outcome"] == "failed"


def test_it_is_vouched_for_without_tensorboard_as_well(lab: Any) -> None:
    lab.create("bare", retry={"limit": 0}, artifacts={"tensorboard": {"enabled": False}})
    lab.execute("bare")
    lab.end_pod("bare", exit_code=137)
    lab.until("bare", fsmState="TERM", outcome="failed")
    assert analytics(lab, "bare")["tensorboard"]["reason"] == "Disabled"
    end_sidecar(lab, "bare", json.dumps({"manifestSha256": DIGEST}), "finisher")
    wait_for(lambda: analytics(lab, "bare").get("manifestDigest") == DIGEST, lambda: lab.status("bare"))
    assert "reason" not in analytics(lab, "bare")


def test_the_address_of_a_tracked_run_is_in_the_status_and_its_key_nowhere(lab: Any, operator: Any) -> None:
    secret = {"metadata": {"name": "wandb"}, "data": {"api-key": base64.b64encode(KEY.encode()).decode()}}
    lab.api.request(
        "POST", f"/api/v1/namespaces/{lab.namespace}/secrets", {"apiVersion": "v1", "kind": "Secret", **secret}
    )
    tracking = {"enabled": True, "group": "g", "tags": ["a", "b"], "apiKeySecretRef": {"name": "wandb"}}
    tracking["baseUrl"] = "https://wandb.example.org/"
    lab.create("tracked", artifacts={"wandb": tracking})
    worker = lab.execute("tracked")
    worker.emit("wandb_linked", url=f"http://user:{KEY}@host/x")
    worker.emit("wandb_linked", url=URL)
    wait_for(lambda: analytics(lab, "tracked").get("wandbUrl") == URL, lambda: lab.status("tracked"))
    worker.session.close(10)
    lab.end_pod("tracked", outcome="completed", manifest_sha256=DIGEST, wandb_url=f"{URL}2")
    status = lab.until("tracked", fsmState="TERM", outcome="completed")
    assert (status["analytics"]["wandbUrl"], status["analytics"]["manifestDigest"]) == (f"{URL}2", DIGEST)

    listed = f"/api/v1/namespaces/{lab.namespace}"
    pods = lab.api.get(f"{listed}/pods")
    (pod,) = [each for each in pods["items"] if each["metadata"]["name"] == status["podName"]]
    named = {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}
    assert named["WANDB_API_KEY"] == {
        "name": "WANDB_API_KEY",
        "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api-key"}},
    }
    assert named["WANDB_BASE_URL"]["value"] == "https://wandb.example.org"
    everything = [lab.run("tracked"), pods, lab.api.get(f"{listed}/events?limit=500"), operator.get("/metrics")[1]]
    for each in (*map(json.dumps, everything), operator.log.read_text()):
        assert KEY not in each
        assert secret["data"]["api-key"] not in each  # type: ignore[index]

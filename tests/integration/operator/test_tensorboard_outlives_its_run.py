"""`serve: always`: one address over the run's whole life and after it, and never one that does not answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

ALWAYS = {"tensorboard": {"serve": "always"}}
APPS = "/apis/apps/v1/namespaces"


@pytest.fixture(scope="module")
def routed(make_operator: Any) -> Any:
    """An operator whose TensorBoards are reached through an Ingress."""
    settings = {
        "tensorboard_route": "Ingress",
        "tensorboard_host": "boards.example",
        "tensorboard_ingress_class": "web",
    }
    return make_operator("routed", operator_class="routed", **settings).start()


def until(ask: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"did not happen: {what}"
        time.sleep(0.1)
    return answer


def board(lab: Any, name: str) -> dict[str, Any]:
    return (lab.status(name).get("analytics") or {}).get("tensorboard") or {}


def says(lab: Any, name: str, reason: str) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        found = board(lab, name)
        return found if found.get("reason") == reason else None

    return until(there, f"{name} says {reason}; it says {board(lab, name)}")


def served_at(lab: Any, name: str) -> str:
    return str(until(lambda: board(lab, name).get("url"), f"{name} is served; it says {board(lab, name)}"))


def owned(lab: Any, path: str, name: str) -> list[dict[str, Any]]:
    uid = lab.run(name)["metadata"]["uid"]
    items = lab.api.get(path)["items"]
    return [each for each in items if uid in [o["uid"] for o in each["metadata"].get("ownerReferences") or []]]


def services(lab: Any, name: str) -> list[dict[str, Any]]:
    return owned(lab, f"/api/v1/namespaces/{lab.namespace}/services", name)


def deployments(lab: Any, name: str) -> list[dict[str, Any]]:
    return owned(lab, f"{APPS}/{lab.namespace}/deployments", name)


def replicas(lab: Any, name: str) -> list[int]:
    return [each["spec"]["replicas"] for each in deployments(lab, name)]


def sidecar(ready: bool) -> dict[str, Any]:
    status = {"name": "tensorboard", "ready": ready, "restartCount": 0, "image": "", "imageID": "", "started": ready}
    return {**status, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


def make_ready(lab: Any, name: str) -> None:
    """What a kubelet would say of the Deployment's pod."""
    uid = lab.run(name)["metadata"]["uid"]
    selector = f"app.kubernetes.io/name%3Dcleanrl-tensorboard,mosaic.dev/tensorboard-of%3D{uid}"
    path = f"/api/v1/namespaces/{lab.namespace}/pods"
    (pod,) = until(lambda: lab.api.get(f"{path}?labelSelector={selector}")["items"], "the Deployment makes its pod")
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": moment}]
    lab.api.merge(f"{path}/{pod['metadata']['name']}/status", {"status": {"phase": "Running", "conditions": ready}})


def make_claim(lab: Any, name: str, mode: str) -> None:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims"
    lab.api.create(claims, {"metadata": {"name": name}, "spec": spec})


def finish(lab: Any, name: str) -> None:
    lab.start_pod(name)
    lab.end_pod(name, outcome="completed", checkpoint=10)
    lab.until(name, fsmState="TERM")


def test_one_address_from_the_sidecar_to_the_deployment_and_gone_with_its_ttl(lab: Any) -> None:
    lab.create("run", artifacts=ALWAYS)
    lab.start_pod("run")
    says(lab, "run", "NotAvailableYet")
    (service,) = services(lab, "run")
    (pod,) = lab.pods("run")
    labels = pod["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items(), "the sidecar is behind the Service"
    assert deployments(lab, "run") == []

    lab.set_pod("run", initContainerStatuses=[sidecar(ready=True)])
    address = served_at(lab, "run")
    host = f"{service['metadata']['name']}.{lab.namespace}.svc:6006"
    assert address == f"http://{host}/tb/{lab.namespace}/run/"
    assert "reason" not in board(lab, "run"), "nothing of what was said before is left"

    lab.end_pod("run", outcome="completed")
    lab.until("run", fsmState="TERM")
    says(lab, "run", "NotAvailableYet")
    make_ready(lab, "run")
    assert served_at(lab, "run") == address
    (deployment,) = deployments(lab, "run")
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert "mosaic.dev/run-uid" not in template["metadata"]["labels"], "it is none of the run's own pods"
    (mount, _) = template["spec"]["containers"][0]["volumeMounts"]
    assert (mount["readOnly"], mount["subPath"]) == (True, f"runs/{lab.status('run')['runId']}")

    lab.edit("run", ttlSecondsAfterFinished=0)
    says(lab, "run", "Removed")
    assert (services(lab, "run"), deployments(lab, "run")) == ([], [])
    assert lab.status("run")["outcome"] == "completed", "the run itself stays"


def test_a_suspended_run_is_shown_and_gives_way_to_its_own_pod(lab: Any) -> None:
    lab.create("nap", artifacts=ALWAYS)
    lab.execute("nap")
    lab.edit("nap", suspend=True)
    until(lambda: "stopRequestedAt" in lab.status("nap"), "it is asked to stop")
    lab.end_pod("nap", outcome="suspended", checkpoint=5)
    lab.until("nap", fsmState="PAUSE")
    make_ready(lab, "nap")
    served_at(lab, "nap")
    assert replicas(lab, "nap") == [1]
    lab.edit("nap", suspend=False)
    lab.until("nap", attempt=2)
    assert replicas(lab, "nap") == [0], "scaled down before the pod was made"
    says(lab, "nap", "NotAvailableYet")


def test_a_shared_claim_is_given_up_to_a_pod_and_taken_back(lab: Any) -> None:
    claim = {
        "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    lab.api.create(f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims", claim)
    storage = {"storage": {"claimName": "shared"}}
    lab.create("first", artifacts={**ALWAYS, **storage})
    finish(lab, "first")
    make_ready(lab, "first")
    served_at(lab, "first")
    lab.create("second", artifacts=storage)
    until(lambda: lab.status("second").get("podUID"), "the second run has a pod")
    assert replicas(lab, "first") == [0]
    assert "shared" in says(lab, "first", "ClaimInUse")["message"]
    lab.edit("second", cancel=True)
    lab.until("second", fsmState="TERM")
    until(lambda: replicas(lab, "first") == [1], "it is back")


def test_a_claim_for_many_is_shared(lab: Any) -> None:
    claim = {
        "metadata": {"name": "many"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    lab.api.create(f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims", claim)
    storage = {"storage": {"claimName": "many"}}
    lab.create("first", artifacts={**ALWAYS, **storage})
    finish(lab, "first")
    make_ready(lab, "first")
    served_at(lab, "first")
    lab.create("second", artifacts=storage)
    until(lambda: lab.status("second").get("podUID"), "the second run has a pod")
    assert replicas(lab, "first") == [1]
    assert board(lab, "first").get("url")


def test_a_name_that_is_taken_is_said_and_nothing_is_touched(lab: Any) -> None:
    lab.create("run", artifacts=ALWAYS)
    lab.start_pod("run")
    (service,) = services(lab, "run")
    name = service["metadata"]["name"]
    foreign = {
        "metadata": {"name": name, "labels": {"app": "mine"}},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "mine"}}, "template": {
            "metadata": {"labels": {"app": "mine"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    }  # fmt: skip
    lab.api.create(f"{APPS}/{lab.namespace}/deployments", foreign)
    lab.end_pod("run", outcome="completed")
    lab.until("run", fsmState="TERM")
    assert name in says(lab, "run", "NameTaken")["message"]
    lab.edit("run", ttlSecondsAfterFinished=0)
    says(lab, "run", "Removed")
    assert lab.api.get(f"{APPS}/{lab.namespace}/deployments/{name}")["spec"]["replicas"] == 0


def test_a_restart_looks_and_writes_nothing(make_operator: Any, make_lab: Any) -> None:
    operator = make_operator("boards", operator_class="boards").start()
    lab = make_lab(operator.gateway_port, operator_class="boards")
    lab.create("run", artifacts=ALWAYS)
    finish(lab, "run")
    make_ready(lab, "run")
    served_at(lab, "run")
    operator.kill()
    version = lab.run("run")["metadata"]["resourceVersion"]
    operator.start()
    until(lambda: operator.metric("cleanrl_operator_reconciles_total") >= 1, "the operator looks at it")
    assert operator.stop() == 0
    assert lab.run("run")["metadata"]["resourceVersion"] == version


def test_a_route_leads_there_from_outside(routed: Any, make_lab: Any) -> None:
    lab = make_lab(routed.gateway_port, operator_class="routed")
    lab.create("run", artifacts=ALWAYS, ttlSecondsAfterFinished=0)
    lab.start_pod("run")
    lab.set_pod("run", initContainerStatuses=[sidecar(ready=True)])
    path = f"/tb/{lab.namespace}/run"
    assert served_at(lab, "run") == f"https://boards.example{path}/"
    (ingress,) = owned(lab, f"/apis/networking.k8s.io/v1/namespaces/{lab.namespace}/ingresses", "run")
    (rule,) = ingress["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (ingress["spec"]["ingressClassName"], rule["host"]) == ("web", "boards.example")
    assert rule["http"]["paths"][0]["path"] == path
    assert backend["name"] == services(lab, "run")[0]["metadata"]["name"]
    (pod,) = lab.pods("run")
    (container,) = pod["spec"]["initContainers"]
    assert container["command"][-2:] == ["--path_prefix", path]
    lab.end_pod("run", outcome="completed")
    lab.until("run", fsmState="TERM")
    says(lab, "run", "Removed")
    assert owned(lab, f"/apis/networking.k8s.io/v1/namespaces/{lab.namespace}/ingresses", "run") == []


def test_while_running_the_status_tells_what_to_forward(lab: Any) -> None:
    lab.create("run")
    lab.start_pod("run")
    assert board(lab, "run") == {"portForward": f"pod/{lab.status('run')['podName']} 6006:6006"}
    assert services(lab, "run") == []
    lab.end_pod("run", outcome="completed")
    lab.until("run", fsmState="TERM")
    assert board(lab, "run")["reason"] == "NoPod"
    assert "portForward" not in json.dumps(lab.status("run"))

"""Whatever a tenant writes into a run, its pod stays confined: refused at apply, or without effect on what is built."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cleanrl_operator.api import GROUP, KIND, PLURAL, VERSION
from cleanrl_operator.desired import pod, tensorboard
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

from devcluster import Cluster
from devcluster.api import ApiError

PROJECT = Path(__file__).parents[3]
GOOD: dict[str, Any] = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000}
VOLUME = {"name": "data", "mountPath": "/mnt/data"}
NAMESPACE = "tenant"
RUNS = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{PLURAL}"


@pytest.fixture(scope="module")
def server(api_server: Cluster) -> Iterator[Cluster]:
    api_server.kubectl("apply", "-f", str(PROJECT / "crds"))
    deadline = time.monotonic() + 30
    while api_server.kubectl("get", PLURAL, check=False).returncode != 0:
        assert time.monotonic() < deadline, "the API server did not take the CRD up"
        time.sleep(0.2)
    api_server.api().create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    while not api_server.api().answers(path):
        assert time.monotonic() < deadline, "the namespace has no account"
        time.sleep(0.2)
    yield api_server
    api_server.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def body(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"generateName": "run-"}, "spec": spec}


def posted(server: Cluster, spec: dict[str, Any]) -> Run:
    """The run as the API server keeps it, from a client that asks for no validation of its own."""
    stored = server.api().request("POST", f"{RUNS}?fieldValidation=Ignore", body(spec))
    return Run.parse(stored)


def templated(**fields: Any) -> dict[str, Any]:
    """A run of a class that no operator handles: other tests' operators may still be there."""
    return {**copy.deepcopy(GOOD), "operatorClass": "nobody", "podTemplate": fields}


UNKNOWN = {
    "host network": templated(hostNetwork=True),
    "host processes": templated(hostPID=True, hostIPC=True, shareProcessNamespace=True),
    "privilege": templated(securityContext={"runAsUser": 0, "runAsNonRoot": False}),
    "a container": templated(containers=[{"name": "worker", "image": "x", "securityContext": {"privileged": True}}]),
    "an init container": templated(initContainers=[{"name": "x", "image": "x"}]),
    "a token": templated(automountServiceAccountToken=True),
    "a host path beside a harmless kind": templated(volumes=[{**VOLUME, "emptyDir": {}, "hostPath": {"path": "/"}}]),
    "a secret beside a harmless kind": templated(volumes=[{**VOLUME, "emptyDir": {}, "secret": {"secretName": "s"}}]),
    "a node": templated(nodeName="control-plane"),
    "host aliases": templated(hostAliases=[{"ip": "1.2.3.4", "hostnames": ["kubernetes.default"]}]),
    "a security context of the spec": {**GOOD, "securityContext": {"privileged": True}},
    "a status": {**GOOD, "status": {"podUID": "somebody's"}},
}


@pytest.mark.parametrize("wish", UNKNOWN)
def test_a_wish_for_more_is_refused_by_kubectl_and_lost_otherwise(server: Cluster, wish: str) -> None:
    manifest = json.dumps(body(UNKNOWN[wish]))
    refused = server.kubectl("create", "-n", NAMESPACE, "--dry-run=server", "-f", "-", stdin=manifest, check=False)
    assert "unknown field" in refused.stderr
    run = posted(server, UNKNOWN[wish])
    confined(pod.build(run, Settings(worker_image="worker"))["spec"])
    confined(tensorboard.deployment(run, Settings(worker_image="worker"))["spec"]["template"]["spec"])


def confined(spec: dict[str, Any]) -> None:
    """The restricted profile, and nothing of the node, the cluster or other accounts."""
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostAliases", "nodeName", "shareProcessNamespace"} & set(spec)
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        assert container["name"] in ("worker", "tensorboard")
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in context
        for mount in container["volumeMounts"]:
            assert ".." not in mount.get("subPath", "").split("/")
    for volume in spec["volumes"]:
        kinds = set(volume) - {"name"}
        assert kinds <= {"emptyDir", "persistentVolumeClaim", "downwardAPI", "projected", "configMap", "csi"}
        if "projected" in volume:
            assert [list(source) for source in volume["projected"]["sources"]] == [["serviceAccountToken"]]


REFUSED = {
    "spec.podTemplate.volumes[0]": [
        templated(volumes=[{**VOLUME, "hostPath": {"path": "/"}}]),
        templated(volumes=[{**VOLUME, "secret": {"secretName": "s"}}]),
        templated(volumes=[{**VOLUME, "projected": {"sources": []}}]),
        *(
            templated(volumes=[{**VOLUME, "emptyDir": {}, "mountPath": path}])
            for path in (
                "/./run-data", "//run-data", "/run-data/", "/mnt/../run-data", "/.", "/", "/dev/shm", "/tmp", "mnt", "/a b",
            )
        ),
        *(
            templated(volumes=[{**VOLUME, "emptyDir": {}, "subPath": path}])
            for path in ("../..", "/etc", "a/../../b", "")
        ),
    ],
    "spec.artifacts.storage.claimName": [
        {**GOOD, "artifacts": {"storage": {"claimName": name}}} for name in ("../other", "a/b", "/etc", "A", "", "a" * 300)
    ],
    "spec.from.path": [
        {**GOOD, "mode": "resume", "from": {"path": path}} for path in ("/etc/x", "../x", "a/../../b", "", "a b", "x" * 600)
    ],
    "spec.from.run": [{**GOOD, "mode": "resume", "from": {"run": name}} for name in ("other/run", "../run", "", "UP")],
    "spec.script.key": [
        {"algo": "ppo", "envId": "x", "mode": "script", "script": {"configMapRef": {"name": "s"}, "key": key}}
        for key in ("../../etc/passwd", "a/b", "", "x" * 300)
    ],
    "spec.script.path": [
        {"algo": "ppo", "envId": "x", "mode": "script", "script": {"path": path}} for path in ("/opt/../../x", "x.sh", "/a b")
    ],
    "spec.envId": [{**GOOD, "envId": name} for name in ("../../etc", "/etc", "a;b", "x" * 201, "")],
    "spec.image": [{**GOOD, "image": image} for image in ("x" * 513, "worker: 1", " worker", "")],
    "spec.totalTimesteps": [{**GOOD, "totalTimesteps": number} for number in (2**63, -1, 0)],
    "spec.podTemplate.annotations": [
        templated(annotations={f"a{i}": "x" for i in range(33)}),
        templated(annotations={"a": "x" * 4097}),
    ],
    "spec.podTemplate.tolerations": [templated(tolerations=[{"key": "a"}] * 33)],
}  # fmt: skip


@pytest.mark.parametrize("field", REFUSED)
def test_paths_that_lead_out_and_giant_fields_are_refused_by_name(server: Cluster, field: str) -> None:
    for spec in REFUSED[field]:
        with pytest.raises(ApiError) as refusal:
            server.api().request("POST", f"{RUNS}?dryRun=All", body(spec))
        assert refusal.value.status in (400, 422), spec
        assert field in str(refusal.value), spec


def test_a_giant_run_is_refused_or_ends_as_a_bad_config(server: Cluster) -> None:
    with pytest.raises(ApiError) as refusal:
        server.api().request("POST", RUNS, body({**GOOD, "extras": {"notes": "x" * 4_000_000}}), timeout=30)
    assert refusal.value.status in (413, 422, 500), "larger than an object may be"
    from cleanrl_protocol.podconfig import BadPodConfig

    run = posted(server, {**GOOD, "extras": {"notes": "x" * 500_000}})
    with pytest.raises(BadPodConfig, match="is the most that fits"):
        pod.build(run, Settings(worker_image="worker"))


def test_a_status_that_is_sent_along_is_not_taken(server: Cluster) -> None:
    forged = {**body(GOOD), "status": {"fsmState": "EXEC", "podUID": "mine", "runId": "01FORGED"}}
    stored = server.api().request("POST", RUNS, forged)
    assert "status" not in stored


def test_the_api_server_takes_the_pod_under_the_strictest_profile(server: Cluster) -> None:
    """A built pod passes the restricted profile as it is: nothing of the operator's own asks for more."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    server.api().merge(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": labels}})
    run = posted(server, templated(volumes=[{**VOLUME, "emptyDir": {}}], labels={"team": "x"}))
    built = pod.build(run, Settings(worker_image="worker", service_account="default"))
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
    assert server.api().request("POST", path, built)["metadata"]["name"] == run.pod_name(1)

"""Pods on pretended nodes run at once, and their claims are bound, without a kubelet and without root."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from devcluster.cluster import Cluster

CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "busy"},
    "spec": {
        "initContainers": [{"name": "first", "image": "none"}],
        "containers": [{"name": "main", "image": "none"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


@pytest.fixture(scope="module")
def crowd() -> Iterator[Cluster]:
    with Cluster(kwok_nodes=3) as cluster:
        yield cluster


def test_nodes_are_ready(crowd: Cluster) -> None:
    nodes = crowd.api().get("/api/v1/nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["kwok-0", "kwok-1", "kwok-2"]


def test_a_pod_with_a_claim_runs_and_leaves_no_volume_behind(crowd: Cluster) -> None:
    crowd.kubectl("create", "-f", "-", stdin=json.dumps(CLAIM))
    crowd.kubectl("create", "-f", "-", stdin=json.dumps(POD))
    crowd.kubectl("wait", "pod/busy", "--for=condition=Ready", "--timeout=30s")
    claim = crowd.api().get("/api/v1/namespaces/default/persistentvolumeclaims/data")
    assert claim["status"]["phase"] == "Bound"
    folder = crowd.layout.volumes / claim["spec"]["volumeName"]
    assert folder.stat().st_mode & 0o777 == 0o777

    crowd.kubectl("delete", "pod/busy", "pvc/data", "--timeout=30s")
    deadline = time.monotonic() + 30
    while crowd.api().get("/api/v1/persistentvolumes")["items"] or folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)

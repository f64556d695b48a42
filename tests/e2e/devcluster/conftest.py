"""Namespaces and pods under the restricted profile, on the real node."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devcluster.cluster import Cluster
from devcluster.images import BASE

MakePod = Callable[..., dict[str, Any]]


@pytest.fixture
def namespace(node_cluster: Cluster) -> Iterator[str]:
    """A namespace that enforces the restricted profile."""
    name = f"e2e-{secrets.token_hex(4)}"
    node_cluster.kubectl("create", "namespace", name)
    node_cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield name
    node_cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def restricted_pod() -> MakePod:
    """A manifest of a pod that the restricted profile admits; it runs a Python program."""

    def make(
        name: str, program: str, *, claims: dict[str, str] | None = None, limits: dict[str, str] | None = None
    ) -> dict[str, Any]:
        mounts = [{"name": claim, "mountPath": path} for claim, path in (claims or {}).items()]
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims or {}]
        container = {
            "name": "main",
            "image": BASE,
            "command": ["python", "-c", program],
            "volumeMounts": mounts,
            "resources": {"limits": limits or {}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 4321,
                    "runAsGroup": 4321,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [container],
                "volumes": volumes,
            },
        }

    return make


@pytest.fixture
def create(node_cluster: Cluster, namespace: str) -> Callable[..., None]:
    """Create objects in the test's namespace."""

    def post(*objects: dict[str, Any]) -> None:
        node_cluster.kubectl("-n", namespace, "create", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    return post


@pytest.fixture
def finish(node_cluster: Cluster, namespace: str) -> Callable[[str], str]:
    """Wait until a pod has succeeded and return what it wrote."""

    def wait(name: str) -> str:
        phase = ""
        deadline = time.monotonic() + 60
        while phase not in {"Succeeded", "Failed"}:
            assert time.monotonic() < deadline, node_cluster.kubectl("-n", namespace, "describe", "pod", name).stdout
            phase = node_cluster.api().get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]["phase"]
            time.sleep(0.1)
        output = node_cluster.kubectl("-n", namespace, "logs", name).stdout
        assert phase == "Succeeded", output
        return output

    return wait


@pytest.fixture(scope="session")
def claim() -> Callable[..., dict[str, Any]]:
    """A manifest of a claim."""

    def make(name: str, size: str, *, storage_class: str | None = None, mode: str = "ReadWriteOnce") -> dict[str, Any]:
        spec: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
        if storage_class:
            spec["storageClassName"] = storage_class
        return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}

    return make

"""NetworkPolicy on a real node, with real packets between real pods."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from devcluster import netpol
from devcluster.cluster import Cluster
from devcluster.images import BASE

NAMESPACE = "policies"
PORT = 8080
PATIENCE = 60.0
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def cluster(node_cluster: Cluster) -> Iterator[Cluster]:
    """A server, a friend and a stranger in one namespace."""
    if (reason := netpol.supported()) is not None:
        pytest.skip(reason)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server", "namespace": NAMESPACE},
        "spec": {"selector": {"role": "server"}, "ports": [{"port": PORT}]},
    }
    apply(node_cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for document in (service, server(), *(pod(name, ["sleep", "infinity"]) for name in ("friend", "stranger"))):
        apply(node_cluster, document)
    node_cluster.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
    yield node_cluster
    node_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(autouse=True)
def no_policy(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.kubectl("-n", NAMESPACE, "delete", "networkpolicy", "--all")


def pod(name: str, command: list[str], **container: Any) -> dict[str, Any]:
    worker = {"name": "main", "image": BASE, "command": command, "securityContext": RESTRICTED, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"role": name}},
        "spec": {"containers": [worker], "terminationGracePeriodSeconds": 0},
    }


def server() -> dict[str, Any]:
    probe = {"httpGet": {"port": PORT, "path": "/"}, "periodSeconds": 1}
    command = ["python3", "-m", "http.server", str(PORT), "--directory", "/usr/share/zoneinfo"]
    return pod("server", command, readinessProbe=probe)


def policy(name: str, selector: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"podSelector": {"matchLabels": selector}, **spec},
    }


def apply(cluster: Cluster, document: dict[str, Any]) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def reaches(cluster: Cluster, source: str, host: str) -> bool:
    """Whether a new connection from one pod to the server opens."""
    script = f"import socket; socket.create_connection(({host!r}, {PORT}), 2).close()"
    command = cluster.kubectl_command("-n", NAMESPACE, "exec", source, "--", "python3", "-c", script)
    return subprocess.run(command, capture_output=True, check=False, env=cluster.client_environment()).returncode == 0


def becomes(cluster: Cluster, source: str, host: str, wanted: bool) -> bool:
    """Whether reachability gets to be as wanted: a policy takes a moment to arrive at the node."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if reaches(cluster, source, host) is wanted:
            return True
    return False


def address(cluster: Cluster, name: str) -> str:
    answer = cluster.kubectl("-n", NAMESPACE, "get", "pod", name, "-o", "jsonpath={.status.podIP}")
    return answer.stdout.strip()


def test_without_a_policy_everyone_reaches_the_server(cluster):
    for source in ("friend", "stranger"):
        assert reaches(cluster, source, address(cluster, "server"))
        assert reaches(cluster, source, f"server.{NAMESPACE}.svc.cluster.local")


def test_only_those_whom_the_policy_names_get_in_by_address_and_by_service(cluster):
    rule = {"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}], "ports": [{"port": PORT}]}
    apply(cluster, policy("friends", {"role": "server"}, policyTypes=["Ingress"], ingress=[rule]))
    for host in (address(cluster, "server"), f"server.{NAMESPACE}.svc.cluster.local"):
        assert becomes(cluster, "stranger", host, False)
        assert reaches(cluster, "friend", host)


def test_a_pod_that_may_not_send_reaches_nobody_until_the_policy_goes(cluster):
    apply(cluster, policy("silent", {"role": "friend"}, policyTypes=["Egress"]))
    host = address(cluster, "server")
    assert becomes(cluster, "friend", host, False)
    assert reaches(cluster, "stranger", host)
    cluster.kubectl("-n", NAMESPACE, "delete", "networkpolicy", "silent")
    assert becomes(cluster, "friend", host, True)


def test_the_kubelets_probes_pass_a_policy_that_lets_nobody_in(cluster):
    apply(cluster, policy("closed", {}, policyTypes=["Ingress"]))
    assert becomes(cluster, "friend", address(cluster, "server"), False)
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", "server", "--wait")
    apply(cluster, server())
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/server", "--timeout=120s")
    assert becomes(cluster, "stranger", address(cluster, "server"), False)

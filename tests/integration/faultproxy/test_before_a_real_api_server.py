"""A cluster's own fault proxy, with kubectl on one side and a real API server on the other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from devcluster.api import ApiError
from devcluster.cluster import Cluster

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(fault_proxy=True) as running:
        yield running


def through(cluster: Cluster) -> str:
    """The option that leads kubectl through the fault proxy."""
    return f"--kubeconfig={cluster.faulty_kubeconfig}"


def test_who_calls_stays_who_calls(cluster):
    def groups(*options: str) -> list[str]:
        answer = cluster.kubectl(*options, "auth", "whoami", "-o", "json")
        return json.loads(answer.stdout)["status"]["userInfo"].get("groups", [])

    assert "system:masters" in groups(through(cluster))
    cluster.kubectl("create", "serviceaccount", "plain")
    token = cluster.kubectl("create", "token", "plain").stdout.strip()
    # kubectl prefers the kubeconfig's certificate; a token counts only when no certificate is shown.
    server = [
        "--server",
        cluster.faults.url,
        "--kubeconfig",
        "/dev/null",
        "--insecure-skip-tls-verify",
        "--token",
        token,
    ]
    assert "system:masters" not in groups(*server)
    assert "system:serviceaccounts:default" in groups(*server)
    nobody = cluster.kubectl(*server[:-2], "get", "pods", check=False)
    assert nobody.returncode != 0


def test_a_client_that_heeds_retry_after_gets_through(cluster):
    with cluster.faults.fault(status=429, retry_after=0, path="/configmaps", times=2) as fault:
        cluster.kubectl(through(cluster), "get", "configmaps")
        assert fault.struck == 2


def test_a_conflict_is_seen_as_the_api_servers_own(cluster):
    cluster.kubectl(through(cluster), "create", "configmap", "contested")
    with cluster.faults.fault(status=409, verb="patch", path="/configmaps/contested"):
        answer = cluster.kubectl(through(cluster), "annotate", "configmap", "contested", "a=b", check=False)
    assert answer.returncode != 0
    assert "Conflict" in answer.stderr
    assert "annotations" not in cluster.api().get(f"{MAPS}/contested")["metadata"]


def test_a_lost_answer_leaves_the_object_behind(cluster):
    with cluster.faults.fault("lose-answer", verb="create", path="/configmaps") as fault:
        answer = cluster.kubectl(through(cluster), "create", "configmap", "orphan", check=False)
    assert answer.returncode != 0
    assert fault.struck == 1
    assert cluster.api().get(f"{MAPS}/orphan")["metadata"]["name"] == "orphan"


def test_a_cut_request_leaves_nothing_behind(cluster):
    with cluster.faults.fault("cut", verb="create", path="/configmaps"):
        assert cluster.kubectl(through(cluster), "create", "configmap", "never", check=False).returncode != 0
    with pytest.raises(ApiError) as missing:
        cluster.api().get(f"{MAPS}/never")
    assert missing.value.status == 404


def test_a_watch_is_cut_after_two_events(cluster):
    command = cluster.kubectl_command(through(cluster), "get", "configmaps", "--watch-only", "-o", "name")
    with (
        cluster.faults.fault("cut-stream", path="/configmaps", events=2, times=1) as fault,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=cluster.client_environment()) as watch,
    ):
        for number in range(500):
            cluster.api().create(MAPS, {"metadata": {"name": f"seen-{number}"}})
            if watch.poll() is not None:
                break
        watch.kill()
        assert watch.stdout is not None
        assert len(watch.stdout.read().split()) == 2
    assert fault.struck == 1

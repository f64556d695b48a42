"""A pod under the restricted profile writes to its claim and reaches the API by name; logs, exec and port-forward work."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from devcluster.cluster import Cluster

PROGRAM = """
import http.server, json, os, ssl, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
trust = ssl.create_default_context(cafile=f"{account}/ca.crt")
bearer = {"Authorization": "Bearer " + open(f"{account}/token").read()}
request = urllib.request.Request("https://kubernetes.default.svc/version", headers=bearer)
with urllib.request.urlopen(request, context=trust, timeout=20) as answer:
    version = json.load(answer)["gitVersion"]
with open("/data/written", "w") as file:
    file.write("by user %d" % os.getuid())
print(json.dumps({"version": version, "uid": os.getuid()}), flush=True)
os.chdir("/data")
http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.fixture
def pod(
    node_cluster: Cluster,
    namespace: str,
    create: Callable[..., None],
    claim: Callable[..., dict[str, Any]],
    restricted_pod: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    create(claim("data", "1Gi"), restricted_pod("show", PROGRAM, claims={"data": "/data"}))
    node_cluster.kubectl("-n", namespace, "wait", "pod/show", "--for=condition=Ready", "--timeout=60s")
    lines: list[str] = []
    deadline = time.monotonic() + 60
    while not lines:
        assert time.monotonic() < deadline
        lines = node_cluster.kubectl("-n", namespace, "logs", "show").stdout.splitlines()
    told: dict[str, Any] = json.loads(lines[0])
    return told


def test_the_show(node_cluster: Cluster, namespace: str, pod: dict[str, Any]) -> None:
    assert pod["uid"] == 4321
    assert pod["version"] == node_cluster.api().get("/version")["gitVersion"]

    inside = node_cluster.kubectl("-n", namespace, "exec", "show", "--", "cat", "/data/written")
    assert inside.stdout == "by user 4321"

    with forwarded(node_cluster, namespace) as address:
        assert urllib.request.urlopen(f"http://{address}/written", timeout=20).read() == b"by user 4321"

    volume = node_cluster.api().get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/data")["spec"]["volumeName"]
    assert (node_cluster.layout.volumes / volume / "written").read_text() == "by user 4321"


class forwarded:  # noqa: N801 - reads as what it does
    """`kubectl port-forward` for the length of a block."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._command = cluster.kubectl_command("-n", namespace, "port-forward", "pod/show", ":8000")
        self._env = cluster.client_environment()

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=self._env)
        assert self._process.stdout is not None
        match = re.search(r"Forwarding from (127\.0\.0\.1:\d+)", self._process.stdout.readline())
        assert match
        return match[1]

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

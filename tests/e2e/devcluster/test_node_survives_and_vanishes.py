"""A node comes back whichever part is killed, pods keep running where they can, and `down` leaves the machine as it was."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devcluster import processes
from devcluster.cluster import Cluster
from devcluster.layout import Layout, known_clusters
from devcluster.machine import SETTINGS
from devcluster.namespaces import HOLDER, PRIVATE
from devcluster.runner import Runner
from devcluster.spec import Spec
from devcluster.surroundings import install_missing, why_no_node

MINE = {"survivor"}
SLEEP = "import time; print('awake', flush=True); time.sleep(3600)"


def traces() -> dict[str, Any]:
    """What the machine shows of nodes: mounts, links, routes, packet filters, control groups, folders, kernel settings.

    Other clusters may come and go meanwhile; what is surely theirs is left out.
    """
    others = [spec for name in known_clusters() if name not in MINE and (spec := Spec.load(Layout.of(name)))]
    theirs = [word for spec in others if spec.node for word in (spec.link, spec.node_name, spec.pod_range)]

    def lines(*command: str) -> list[str]:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return sorted(line for line in output.splitlines() if not any(word in line for word in theirs))

    found: dict[str, Any] = {
        "mounts": lines("cat", "/proc/self/mounts"),
        "links": [re.sub(r"^\d+: |@.*", "", line) for line in lines("ip", "-o", "link")],
        "routes": lines("ip", "-4", "route", "show", "table", "all"),
        "rules": [line for line in lines("iptables-save") if line.startswith("-")],
        "network namespaces": sorted(path.name for path in Path("/run/netns").glob("*")),
        "control groups": lines("find", "/sys/fs/cgroup", "-maxdepth", "3", "-name", "devcluster-*"),
    }
    if not theirs:
        paths = [Path("/proc/sys", name) for name in SETTINGS]
        found["settings"] = {str(path): path.read_text() for path in paths if path.exists()}
        found["folders"] = [path for path in (*PRIVATE, "/run/devcluster") if Path(path).exists()]
    return found


def kill(cluster: Cluster, part: str) -> None:
    identity = Runner(cluster.layout).process(part)
    assert identity is not None
    os.kill(identity.pid, signal.SIGKILL)
    assert identity.wait(10)


def phase(cluster: Cluster) -> str:
    return str(cluster.api().get("/api/v1/namespaces/default/pods/sleeper")["status"]["phase"])


@pytest.mark.timeout(600)
def test_a_node_survives_kills_and_leaves_nothing(
    restricted_pod: Callable[..., dict[str, Any]], claim: Callable[..., dict[str, Any]]
) -> None:
    if reason := why_no_node():
        pytest.skip(f"no real pods on this machine: {reason}")
    install_missing()  # the traces are read by programs of these packages
    before = traces()
    with Cluster("survivor", node=True) as cluster:
        layout: Layout = cluster.layout
        link = cluster.spec.link
        small = claim("data", "8Mi", storage_class="devcluster-limited")
        pod = restricted_pod("sleeper", SLEEP, claims={"data": "/data"})
        cluster.kubectl("create", "-f", "-", stdin="\n---\n".join(map(json.dumps, [small, pod])))
        cluster.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=60s")
        assert link in str(traces()["links"])
        assert cluster.spec.pod_range in str(traces()["routes"])

        # One part after the other is killed and comes back; the pod never notices.
        for part in ("containerd", "kubelet", "kube-proxy", "coredns", "agent"):
            kill(cluster, part)
            cluster.up()
            assert all(line.health == "healthy" for line in cluster.status()), part
        assert phase(cluster) == "Running"
        assert cluster.kubectl("logs", "sleeper").stdout.strip() == "awake"

        # Without the holder of the namespaces the whole node starts over; what the API server knew is kept.
        kill(cluster, HOLDER)
        cluster.up()
        assert all(line.health == "healthy" for line in cluster.status())
        cluster.kubectl("delete", "pod/sleeper", "--timeout=60s")
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(pod))
        cluster.kubectl("wait", "pod/sleeper", "--for=condition=Ready", "--timeout=60s")
        kind = cluster.kubectl("exec", "sleeper", "--", "stat", "--file-system", "--format=%T", "/data").stdout
        assert kind.strip() == "tmpfs"  # the limited volume is limited again

        # Down must cope with parts that died without saying so.
        kill(cluster, "kubelet")
        kill(cluster, "containerd")
    assert processes.marked(layout.root) == []
    assert not layout.root.exists()
    assert not layout.run.exists()
    assert left_behind(before) == {}


def left_behind(before: dict[str, Any]) -> dict[str, Any]:
    """What differs from before, given a while: the kernel ends namespaces in its own time."""
    deadline = time.monotonic() + 15
    while True:
        now = traces()
        differing = {kind: now[kind] for kind in before.keys() & now.keys() if now[kind] != before[kind]}
        if not differing or time.monotonic() > deadline:
            return differing
        time.sleep(0.2)

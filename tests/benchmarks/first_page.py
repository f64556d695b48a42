"""How long after a run reaches EXEC its TensorBoard shows the first page, on a real node, through a port-forward.

    python tests/benchmarks/first_page.py [--runs 3]

A local cluster with a node, the operator by its chart, and one run after another; a port-forward is tried from the moment that
the pod exists, as an impatient user would. Zero means that the page was there before EXEC was. The same again on a full node,
where another pod has requested the rest of the CPUs and uses all that it can get, so that nobody has more than was requested.
Results go to docs/benchmarks/shows.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from jobs import saying_when_stopped
from operator_lab import Figure, note, publish, surroundings

from devcluster import Cluster, binaries, images

PROJECT = Path(__file__).parents[2]
SYSTEM, TEAM = "cleanrl-system", "team"
TARGET = 5.0
NEXT_TRY = 0.5
"""Seconds between two tries: each costs a kubectl's start, on the same cores on which TensorBoard starts."""
PATIENCE = 240.0
REQUESTED, RESERVE = 500, 300
"""Millicores: of a run's worker; of everything else that has to find room, the run's TensorBoard and the operator."""


def apply(cluster: Cluster, name: str) -> None:
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 50_000_000, "seed": 1}
    spec |= {"resources": {"cpus": {"requested": f"{REQUESTED}m"}, "memory": "1Gi"}}
    run = {"apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("apply", "-n", TEAM, "-f", "-", stdin=json.dumps(run))


class Forward:
    """A port-forward to a pod's TensorBoard, begun again whenever it breaks."""

    def __init__(self, cluster: Cluster, pod: str) -> None:
        self._command = cluster.kubectl_command("-n", TEAM, "port-forward", f"pod/{pod}", ":6006")
        self._environment = cluster.client_environment()
        self._process: subprocess.Popen[str] | None = None
        self._url = ""
        self._next = 0.0

    def answers(self) -> bool:
        """Whether the first page is there."""
        if time.monotonic() < self._next:
            return False
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert self._process.stdout is not None
            found = re.search(r"127\.0\.0\.1:(\d+)", self._process.stdout.readline())
            self._url = f"http://127.0.0.1:{found[1]}/" if found else ""
        if not self._url:
            return False
        try:
            with urllib.request.urlopen(self._url, timeout=5) as page:
                return b"TensorBoard" in page.read()
        except OSError:
            self.close()
            self._next = time.monotonic() + NEXT_TRY
            return False

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


BURN = "import os\nfor _ in range(os.cpu_count() - 1):\n    if not os.fork(): break\nwhile True: pass"


def fill(cluster: Cluster) -> str:
    """Another pod takes what is left of the node: how much that was."""
    node = cluster.api().get("/api/v1/nodes")["items"][0]["status"]["allocatable"]["cpu"]
    left = f"{millicores(node) - REQUESTED - RESERVE}m"
    burner: dict[str, Any] = {"name": "burner", "image": images.WORKER, "command": ["python", "-c", BURN]}
    burner |= {"resources": {"requests": {"cpu": left}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "burner"}, "spec": {"containers": [burner]}}
    cluster.kubectl("apply", "-n", TEAM, "-f", "-", stdin=json.dumps(pod))
    cluster.kubectl("wait", "-n", TEAM, "--for=condition=Ready", "pod/burner", "--timeout=60s")
    return left


def millicores(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)


def one(cluster: Cluster, name: str) -> tuple[float, float]:
    """Seconds from EXEC to the first page, and from `kubectl apply` to EXEC."""
    path = f"/apis/mosaic.dev/v1alpha1/namespaces/{TEAM}/cleanrlruns/{name}"
    api = cluster.api()
    began = time.monotonic()
    apply(cluster, name)
    forward: Forward | None = None
    executing = shown = 0.0
    while not (executing and shown):
        if time.monotonic() - began > PATIENCE:
            raise SystemExit(f"{name}: {api.get(path).get('status')}")
        status: dict[str, Any] = api.get(path).get("status") or {}
        if not executing and status.get("fsmState") == "EXEC":
            executing = time.monotonic()
        if forward is None and status.get("podName") and status.get("fsmState") in ("HSHK", "RDY", "EXEC"):
            forward = Forward(cluster, status["podName"])
        if forward is not None and not shown and forward.answers():
            shown = time.monotonic()
        time.sleep(0.1)
    if forward is not None:
        forward.close()
    cluster.kubectl("delete", "cleanrlrun", name, "-n", TEAM)
    return max(0.0, shown - executing), executing - began


def series(cluster: Cluster, prefix: str, runs: int) -> list[tuple[float, float]]:
    found = []
    for number in range(runs):
        found.append(one(cluster, f"{prefix}-{number}"))
        note(f"first page {found[-1][0]:.1f} s after EXEC, EXEC {found[-1][1]:.1f} s after apply")
    return found


def figures_of(where: str, found: list[tuple[float, float]]) -> list[Figure]:
    pages = ", ".join(f"{page:.1f}" for page, _ in found)
    starts = ", ".join(f"{executing:.1f}" for _, executing in found)
    good = max(page for page, _ in found) < TARGET
    return [
        Figure(f"TensorBoard's first page after EXEC{where}, each run", f"{pages} s", "under 5 s", good),
        Figure(f"EXEC after `kubectl apply`{where}, each run", f"{starts} s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    args = parser.parse_args()
    facts = surroundings()
    helm = binaries.ensure("helm")
    with Cluster(f"page-{os.getpid()}", node=True) as cluster:
        environment = {**cluster.client_environment(), "KUBECONFIG": str(cluster.kubeconfig)}
        command = [str(helm), "install", "cleanrl", str(PROJECT / "helm" / "cleanrl-operator"), "-n", SYSTEM]
        command += ["--create-namespace", "--set", "image.tag=dev", "--set", "worker.image.tag=dev", "--wait"]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        cluster.kubectl("create", "namespace", TEAM)
        alone = series(cluster, "run", args.runs)
        left = fill(cluster)
        note(f"another pod has requested {left} and burns what it gets")
        full = series(cluster, "crowded", args.runs)
        with contextlib.suppress(subprocess.CalledProcessError):
            cluster.kubectl("delete", "namespace", TEAM, "--wait=false")
    figures = [*figures_of("", alone), *figures_of(", on a full node", full)]
    publish("page", "TensorBoard's first page", figures, facts, folder=args.out, store="shows")
    return 0


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

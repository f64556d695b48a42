"""How long after a run reaches EXEC its TensorBoard shows the first page, on a real node, through a port-forward.

    python tests/benchmarks/first_page.py [--runs 3]

A local cluster with a node, the operator by its chart, and one run after another; a port-forward is tried from the moment that
the pod exists, as an impatient user would. Zero means that the page was there before EXEC was. Results go to
docs/benchmarks/shows.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from operator_lab import Figure, note, publish, surroundings

from devcluster import Cluster, binaries

PROJECT = Path(__file__).parents[2]
SYSTEM, TEAM = "cleanrl-system", "team"
TARGET = 5.0
PATIENCE = 240.0


def apply(cluster: Cluster, name: str) -> None:
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 50_000_000, "seed": 1}
    spec |= {"resources": {"cpus": {"requested": "500m"}, "memory": "1Gi"}}
    run = {"apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("apply", "-n", TEAM, "-f", "-", stdin=json.dumps(run))


class Forward:
    """A port-forward to a pod's TensorBoard, begun again whenever it breaks."""

    def __init__(self, cluster: Cluster, pod: str) -> None:
        self._command = cluster.kubectl_command("-n", TEAM, "port-forward", f"pod/{pod}", ":6006")
        self._environment = cluster.client_environment()
        self._process: subprocess.Popen[str] | None = None
        self._url = ""

    def answers(self) -> bool:
        """Whether the first page is there."""
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
            return False

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    args = parser.parse_args()
    facts = surroundings()
    helm = binaries.ensure("helm")
    with Cluster(f"page-{os.getpid()}", node=True) as cluster:
        environment = {**cluster.client_environment(), "KUBECONFIG": str(cluster.kubeconfig)}
        command = [helm, "install", "cleanrl", str(PROJECT / "helm" / "cleanrl-operator"), "-n", SYSTEM]
        command += ["--create-namespace", "--set", "image.tag=dev", "--set", "worker.image.tag=dev", "--wait"]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        cluster.kubectl("create", "namespace", TEAM)
        found = []
        for number in range(args.runs):
            found.append(one(cluster, f"run-{number}"))
            note(f"first page {found[-1][0]:.1f} s after EXEC, EXEC {found[-1][1]:.1f} s after apply")
        with contextlib.suppress(subprocess.CalledProcessError):
            cluster.kubectl("delete", "namespace", TEAM, "--wait=false")
    late = max(page for page, _ in found)
    shown = ", ".join(f"{page:.1f}" for page, _ in found)
    figures = [
        Figure("TensorBoard's first page after EXEC, each run", f"{shown} s", "under 5 s", late < TARGET),
        Figure("EXEC after `kubectl apply`, each run", ", ".join(f"{executing:.1f}" for _, executing in found) + " s"),
    ]
    publish("page", "TensorBoard's first page", figures, facts, folder=args.out, store="shows")
    return 0


if __name__ == "__main__":
    sys.exit(main())

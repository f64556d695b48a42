"""A cluster may have several installations, each with its class."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from devcluster import Cluster

Helm = Callable[..., subprocess.CompletedProcess[str]]


def test_two_installations_of_one_name_live_in_two_namespaces(
    server: Cluster, helm: Helm, chart: Path, release: str
) -> None:
    other = f"{release}-blue"
    shared = f"{release}-shared"
    server.kubectl("create", "namespace", shared)
    workers = ["--set", f"networkPolicy.workers.namespaces={{{shared}}}"]
    second = ["--set", "crds.install=false", "--set", "operatorClass=blue", *workers]
    try:
        helm("upgrade", "cleanrl", str(chart), "-n", release, "--reuse-values", *workers)
        said = helm("install", "cleanrl", str(chart), "-n", other, "--create-namespace", *second).stdout
        (first_run,) = [line for line in said.splitlines() if line.strip().startswith("spec:")]
        assert yaml.safe_load(first_run)["spec"]["operatorClass"] == "blue", "else nobody would look after it"
        helm("uninstall", "cleanrl", "-n", other, "--wait")
    finally:
        server.kubectl("delete", "namespace", other, shared, "--wait=false")

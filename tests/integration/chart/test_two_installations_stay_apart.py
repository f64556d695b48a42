"""A cluster may have several installations, each with its class."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from devcluster import Cluster

Helm = Callable[..., subprocess.CompletedProcess[str]]


def test_two_installations_of_one_name_live_in_two_namespaces(
    server: Cluster, helm: Helm, chart: Path, release: str
) -> None:
    other = f"{release}-blue"
    second = ["--set", "crds.install=false", "--set", "operatorClass=blue"]
    try:
        helm("install", "cleanrl", str(chart), "-n", other, "--create-namespace", *second)
        helm("uninstall", "cleanrl", "-n", other, "--wait")
    finally:
        server.kubectl("delete", "namespace", other, "--wait=false")

"""The chart on an API server of its own: a release owns cluster-wide objects that other tests make by hand."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cleanrl_operator.run import Run

from devcluster import Cluster, binaries
from devcluster.cluster import ESTABLISHED

PROJECT = Path(__file__).parents[3]
CRD = "cleanrlruns.mosaic.dev"
Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="package")
def server() -> Iterator[Cluster]:
    """A control plane with an audit log."""
    with Cluster(f"pytest-chart-{os.getpid()}", audit_log=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def chart() -> Path:
    """The chart's folder."""
    return PROJECT / "helm" / "cleanrl-operator"


@pytest.fixture(scope="session")
def helm_program() -> Path:
    """The helm that the project pins."""
    return binaries.ensure("helm")


@pytest.fixture(scope="session")
def render(helm_program: Path, chart: Path) -> Callable[..., list[dict[str, Any]]]:
    """The objects that some values make, without any cluster. A refusal raises AssertionError with helm's own words."""

    def objects(values: dict[str, Any] | None = None, namespace: str = "cleanrl-system") -> list[dict[str, Any]]:
        answer = subprocess.run(
            [helm_program, "template", "cleanrl", chart, "-n", namespace, "-f", "-"],
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        return [each for each in yaml.safe_load_all(answer.stdout) if each]

    return objects


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """A run as the operator reads it."""

    def make(**fields: Any) -> Run:
        metadata = {"namespace": "ns", "name": "run", "uid": "u", "resourceVersion": "1"}
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
        spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, **fields}
        return Run.parse({"metadata": metadata, "spec": spec})

    return make


@pytest.fixture(scope="package")
def helm(helm_program: Path, server: Cluster) -> Helm:
    """Run helm against the API server."""

    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {**server.client_environment(), "KUBECONFIG": str(server.kubeconfig)}
        answer = subprocess.run(
            [helm_program, *arguments], capture_output=True, text=True, check=False, env=environment
        )
        assert not check or answer.returncode == 0, answer.stderr
        return answer

    return run


@pytest.fixture
def namespace(server: Cluster) -> Iterator[str]:
    """A namespace that goes after the test."""
    with _namespace(server) as name:
        yield name


@pytest.fixture(scope="module")
def release(server: Cluster, helm: Helm, chart: Path) -> Iterator[str]:
    """The chart installed as `cleanrl` in a namespace of its own, and every trace of it removed after the module."""
    with _namespace(server) as name:
        helm("install", "cleanrl", str(chart), "-n", name)
        server.kubectl("wait", ESTABLISHED, f"crd/{CRD}", "--timeout=30s")
        yield name
        helm("uninstall", "cleanrl", "-n", name)
        server.kubectl("delete", "crd", CRD)


@contextlib.contextmanager
def _namespace(server: Cluster) -> Iterator[str]:
    name = f"chart-{secrets.token_hex(4)}"
    server.kubectl("create", "namespace", name)
    yield name
    server.kubectl("delete", "namespace", name, "--wait=false")

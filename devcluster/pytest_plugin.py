"""Fixtures over a real cluster, one for each test run, shared by all workers of a parallel run.

A run that is killed leaves its cluster behind; the next run finds that its owner has died and takes it down first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import netpol
from devcluster.cluster import Cluster, remove_orphans
from devcluster.processes import Identity
from devcluster.spec import Options
from devcluster.surroundings import install_missing, why_no_node


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane without a node: objects are real, pod statuses are set by the test.

    It has an audit log (`.audit_log`) and a fault proxy (`.faults`, `.faulty_kubeconfig`).
    """
    with _shared(tmp_path_factory, "api", Options(audit_log=True, fault_proxy=True)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def node_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a real node that runs pods, two GPUs that are only numbers, and NetworkPolicy if the kernel can."""
    if reason := why_no_node():
        pytest.skip(f"no real pods on this machine: {reason}")
    install_missing()  # else a machine's first run would leave out what needs these packages
    with _shared(tmp_path_factory, "node", Options(node=True, gpus=2, netpol=netpol.supported() is None)) as cluster:
        yield cluster


@contextlib.contextmanager
def _shared(factory: pytest.TempPathFactory, kind: str, options: Options) -> Iterator[Cluster]:
    """One cluster for all workers: the first to come starts it, the last to go takes it down."""
    worker = "PYTEST_XDIST_WORKER" in os.environ
    owner = Identity.of(os.getppid() if worker else os.getpid())
    assert owner is not None
    folder = factory.getbasetemp().parent if worker else factory.getbasetemp()
    cluster = Cluster(f"pytest-{kind}-{owner.pid}", options)
    users = folder / f"devcluster-{kind}.users"
    with _locked(users) as count:
        if count == 0:
            remove_orphans()
        cluster.up(reuse=True, owner=owner)
        users.write_text(str(count + 1))
    try:
        yield cluster
    finally:
        with _locked(users) as count:
            users.write_text(str(count - 1))
            if count == 1:
                cluster.down()


@contextlib.contextmanager
def _locked(users: Path) -> Iterator[int]:
    """How many workers use the cluster, unchanged by others while the block runs."""
    descriptor = os.open(users.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield int(users.read_text() or 0) if users.exists() else 0
    finally:
        os.close(descriptor)


__all__ = ["api_server", "node_cluster"]

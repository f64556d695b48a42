"""A machine that can't carry the cluster is told so in one sentence with a remedy."""

from __future__ import annotations

import collections
import os
import shutil
import subprocess
import sys

import pytest

from devcluster import Cluster, netpol, surroundings
from devcluster.errors import ClusterError
from devcluster.spec import Options

Usage = collections.namedtuple("Usage", "total used free")


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 2**20, 2**20))
    with pytest.raises(ClusterError, match=r"Only 1 MB are free .* make room, or point XDG_STATE_HOME"):
        surroundings.check(Options())


def test_a_node_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match=r"A node needs root .* KUBECONFIG"):
        surroundings.check(Options(node=True))


def test_a_control_plane_needs_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    surroundings.check(Options())


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ClusterError, match="runs on Linux only"):
        surroundings.check(Options())


def test_a_node_where_namespaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refused)
    with pytest.raises(ClusterError, match=r"refuses them \(unshare: .* not permitted\): in a container"):
        surroundings.check(Options(node=True))


def test_missing_programs_without_a_package_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "why_no_node", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ClusterError, match=r"containerd.*no apt-get here"):
        surroundings.check(Options(node=True))


def test_network_policies_that_the_kernel_can_not_enforce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "why_no_node", lambda: None)
    monkeypatch.setattr(surroundings, "missing_packages", list)
    monkeypatch.setattr(netpol, "supported", lambda: "NetworkPolicy can't be enforced: no queue")
    with pytest.raises(ClusterError, match=r"can't be enforced: no queue\.$"):
        surroundings.check(Options(node=True, netpol=True))


def test_a_folder_for_clusters_that_can_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nobody")
    with pytest.raises(ClusterError, match=r"^/proc/nobody/devcluster can't be written .*: set XDG_STATE_HOME"):
        Cluster("no-home").down()

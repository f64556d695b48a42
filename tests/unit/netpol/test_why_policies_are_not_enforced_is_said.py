"""A machine that can't enforce NetworkPolicy says so in one sentence."""

from __future__ import annotations

import os
import shutil

import pytest

from devcluster import netpol


def test_without_root_the_sentence_names_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "without root" in netpol.supported()


@pytest.mark.parametrize("missing", ["iptables", "nft", "unshare"])
def test_a_missing_tool_is_named_with_its_package(monkeypatch, missing):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == missing else f"/bin/{tool}")
    reason = netpol.supported()
    assert f"without {missing}" in reason
    assert "install the packages" in reason


def test_a_kernel_without_the_queue_is_named_with_the_kernels_own_words(monkeypatch, tmp_path):
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\necho 'iptables: No chain/target/match by that name.' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    assert "this kernel has no netfilter queue for iptables (iptables: No chain" in netpol.supported()

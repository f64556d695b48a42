"""Where the cluster can't start, the command says why in one sentence, fails, and leaves nothing half-made."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from devcluster.layout import Layout, locked

Run = Callable[..., subprocess.CompletedProcess[str]]


def one_sentence(answer: subprocess.CompletedProcess[str]) -> str:
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.startswith("devcluster: ")
    assert answer.stderr.count("\n") == 1, answer.stderr
    return answer.stderr


def test_a_port_that_is_taken(devcluster: Run, nothing_left: Callable[[str], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = one_sentence(devcluster("up", "--name", "crowded", "--port", str(port)))
    assert f"Port {port} is taken" in sentence
    nothing_left("crowded")


@pytest.mark.parametrize("version", ["v9.99.9", "newest"])
def test_an_unknown_version(version: str, devcluster: Run, nothing_left: Callable[[str], None]) -> None:
    answer = devcluster("up", "--name", "future", "--kubernetes-version", version, DEVCLUSTER_DOWNLOADS="off")
    assert version in one_sentence(answer)
    nothing_left("future")


def test_another_command_at_work_on_the_same_name(devcluster: Run, nothing_left: Callable[[str], None]) -> None:
    with locked(Layout.of("busy")):
        for command in ("up", "down"):
            sentence = one_sentence(devcluster(command, "--name", "busy"))
            assert "is at work on cluster 'busy'" in sentence
    nothing_left("busy")


def test_a_name_that_is_none(devcluster: Run) -> None:
    assert "can't be a cluster's name" in one_sentence(devcluster("up", "--name", "../escape"))


def test_images_need_a_node(devcluster: Run, tmp_path: Path) -> None:
    assert "There is no cluster" in one_sentence(devcluster("load-image", "--name", "none", str(tmp_path / "x.tar")))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_is_no_fault(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    answer = subprocess.run(
        [sys.executable, "-m", "devcluster.cli", "binaries", "--list"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writer)
    assert answer.returncode == 0
    assert "Error" not in answer.stderr

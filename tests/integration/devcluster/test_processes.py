"""Only processes that are surely ours are ever ended."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import processes
from devcluster.cluster import Cluster, remove_orphans
from devcluster.errors import ClusterError
from devcluster.layout import known_clusters
from devcluster.processes import Identity
from devcluster.spec import Options, choose


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def test_a_started_process_outlives_its_session_and_is_found_again(tmp_path: Path) -> None:
    record = tmp_path / "sleep.json"
    identity = processes.start(["sleep", "60"], log=tmp_path / "log", record=record, mark=tmp_path)
    assert os.getsid(identity.pid) == identity.pid
    assert processes.recorded(record) == identity
    deadline = time.monotonic() + 10
    while processes.marked(tmp_path) != [identity]:  # a process that begins a program has no environment for a moment
        assert time.monotonic() < deadline
    processes.stop([identity], grace=5)
    assert not identity.alive()
    assert processes.recorded(record) is None
    assert processes.marked(tmp_path) == []


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    argv = ["sh", "-c", "trap '' TERM; touch started; while :; do sleep 1; done"]
    identity = processes.start(
        ["sh", "-c", f'cd {tmp_path} && exec {argv[0]} -c "$0"', argv[2]],
        log=tmp_path / "log",
        record=tmp_path / "r.json",
        mark=tmp_path,
    )
    while not (tmp_path / "started").exists():
        assert identity.alive()
    processes.stop([identity], grace=0.2)
    assert not identity.alive()
    processes.kill(processes.marked(tmp_path))


def test_a_reused_pid_is_not_ours(stranger: subprocess.Popen[bytes], tmp_path: Path) -> None:
    identity = Identity.of(stranger.pid)
    assert identity is not None
    earlier = dataclasses.replace(identity, started=identity.started - 1)
    other_boot = dataclasses.replace(identity, boot="another")
    for mistaken in (earlier, other_boot):
        (tmp_path / "record.json").write_text(json.dumps(dataclasses.asdict(mistaken)))
        assert processes.recorded(tmp_path / "record.json") is None
        processes.stop([mistaken], grace=0)
    assert stranger.poll() is None


@pytest.mark.parametrize("text", ["", "{}", '{"pid": "x", "started": 1, "boot": ""}', "[1]"])
def test_a_broken_record_names_nobody(text: str, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(text)
    assert processes.recorded(tmp_path / "record.json") is None


def test_clusters_of_dead_owners_are_removed_and_others_stay(
    stranger: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    living = Identity.of(stranger.pid)
    assert living is not None
    dead = dataclasses.replace(living, started=living.started - 1)
    choose("dead", Options(), {}, dataclasses.asdict(dead))
    choose("living", Options(), {}, dataclasses.asdict(living))
    choose("free", Options(), {}, None)
    remove_orphans()
    assert known_clusters() == ["free", "living"]


def namesake(home: Path) -> Identity:
    """A process of a cluster `twin` that another home started."""
    folder = home / "devcluster" / "twin"
    folder.mkdir(parents=True)
    (folder / "cluster.json").touch()
    return processes.start(["sleep", "60"], log=home / "log", record=home / "r.json", mark=folder)


def test_what_is_left_of_a_cluster_whose_folder_is_gone_ends_with_the_next_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forsaken, kept = namesake(tmp_path / "gone"), namesake(tmp_path / "there")
    (tmp_path / "gone" / "devcluster" / "twin" / "cluster.json").unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    try:
        Cluster("twin").down()
        assert not forsaken.alive()
        assert kept.alive(), "a cluster that has its folder is somebody's"
    finally:
        processes.kill([forsaken, kept])


def test_a_second_node_of_one_name_is_refused_and_the_remedy_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = namesake(tmp_path / "there")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "mine"))
    try:
        with pytest.raises(ClusterError, match=f"XDG_STATE_HOME={tmp_path / 'there'} devcluster down --name twin"):
            Cluster("twin", node=True).up()
        assert other.alive()
        assert known_clusters() == []
    finally:
        processes.kill([other])

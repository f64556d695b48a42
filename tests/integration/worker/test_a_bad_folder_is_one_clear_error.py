"""Full, read-only, missing or removed run folders: a sentence, an exit code, no hang, nothing left running."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for two megabytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def one_sentence(stderr: str, words: str) -> None:
    assert "Traceback" not in stderr, stderr
    assert words in stderr


def test_a_disk_that_fills_up_ends_the_run(start: Start, small_disk: Path) -> None:
    env = {"CLEANRL_GRACE_SECONDS": "5"}
    run = start(folder=small_disk / "run", steps=100_000, step_seconds=0.005, noise=20_000, env=env)
    assert run.wait() != 0
    one_sentence(run.stderr, "No space left on device")
    assert run.stdout.splitlines()[-1].startswith('{"event":"run_failed"'), "stdout hears of it, the disk can't"
    assert list(run.events()), "what was written before is whole"


def test_a_disk_that_is_full_from_the_start(start: Start, small_disk: Path) -> None:
    with (small_disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    run = start(folder=small_disk / "run")
    assert run.wait() == 1
    one_sentence(run.stderr, "No space left on device")


def test_a_read_only_folder(start: Start, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    run = start(folder=small_disk / "run")
    assert run.wait() == 1
    one_sentence(run.stderr, "Read-only file system")
    assert "--run-dir" in run.stderr


def test_a_folder_below_a_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = start(folder=tmp_path / "file" / "run")
    assert run.wait() == 1
    one_sentence(run.stderr, "Not a directory")


def test_a_missing_folder_is_made(start: Start, tmp_path: Path) -> None:
    run = start(folder=tmp_path / "a" / "b" / "c")
    assert run.wait() == 0, run.stderr


def test_a_folder_that_is_removed_during_the_run(start: Start) -> None:
    run = start(steps=100_000, step_seconds=0.01, env={"CLEANRL_GRACE_SECONDS": "2"})
    run.until(lambda: "scalars" in run.names())
    shutil.rmtree(run.folder)
    assert run.wait() == 1
    one_sentence(run.stderr, "removed")
    assert run.stdout.splitlines()[-1].startswith('{"event":"run_failed"')

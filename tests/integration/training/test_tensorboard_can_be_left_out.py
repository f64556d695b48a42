"""A run without TensorBoard writes no event file anywhere, and frames of an environment that can't draw end nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cleanrl_worker.telemetry import read_events


def worker(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "ppo", "--env-id", "CartPole-v1"]
    command += ["--total-timesteps", "1024", "--run-dir", str(folder), *flags]
    return subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=False, timeout=120)


def test_no_event_file_is_written(tmp_path: Path) -> None:
    ended = worker(tmp_path / "run", "--no-tensorboard")
    assert ended.returncode == 0, ended.stderr
    assert not list(tmp_path.rglob("events.out.tfevents.*"))
    assert [event["event"] for event in read_events(tmp_path / "run" / "events.jsonl")][-1] == "run_completed"


def test_by_default_there_is_one(tmp_path: Path) -> None:
    ended = worker(tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    assert len(list((tmp_path / "run" / "tensorboard").rglob("events.out.tfevents.*"))) == 1

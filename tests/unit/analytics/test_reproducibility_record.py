"""The reproducibility record: versions, machine, source, image, request."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.reproducibility import arguments_sha256, collect, git_state, gpus

CONFIG: dict[str, Any] = {
    "run_id": "a",
    "worker_id": "w",
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 1,
    "extras": {},
}


def test_the_record_holds_what_decides_a_run() -> None:
    environ = {"CLEANRL_IMAGE": "worker:1", "CLEANRL_IMAGE_DIGEST": "sha256:abc"}
    record = collect(CONFIG, ["python", "-m", "x"], environ=environ)
    json.dumps(record)
    assert record["packages"]["torch"] == version("torch")
    assert record["packages"]["gymnasium"] == version("gymnasium")
    assert record["python"]["version"] == platform.python_version()
    assert record["cpu"]["usable_cores"] >= 1
    assert record["image"] == {"name": "worker:1", "digest": "sha256:abc"}
    assert (record["seed"], record["env_id"], record["algo"]) == (1, "CartPole-v1", "ppo")
    assert record["command"] == ["python", "-m", "x"]


def test_the_same_request_has_the_same_digest_whoever_runs_it() -> None:
    again = {**CONFIG, "run_id": "b", "worker_id": "other", "raw": {"run_id": "b"}}
    assert arguments_sha256(dict(reversed(again.items()))) == arguments_sha256(CONFIG)
    assert arguments_sha256({**CONFIG, "seed": 2}) != arguments_sha256(CONFIG)


def test_a_checkout_is_named_by_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert git_state(tmp_path / "gone") is None
    git("init", "-q")
    assert git_state(tmp_path) is None
    (tmp_path / "ppo.py").write_text("1")
    git("add", ".")
    git("commit", "-q", "-m", "x")
    commit = git("rev-parse", "HEAD")
    assert git_state(tmp_path) == {"commit": commit, "modified": False}
    (tmp_path / "ppo.py").write_text("2")
    assert git_state(tmp_path) == {"commit": commit, "modified": True}


def test_gpus_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA A100, 550.54, 40960 MiB, GPU-1'\necho 'garbage'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpus() == [{"name": "NVIDIA A100", "driver_version": "550.54", "memory.total": "40960 MiB", "uuid": "GPU-1"}]


def test_collecting_imports_nothing_heavy() -> None:
    code = (
        "import sys; from cleanrl_worker.reproducibility import collect; collect({}, [])\n"
        "print(sorted({'torch', 'numpy', 'gymnasium', 'wandb'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

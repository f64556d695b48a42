"""A closed cluster has no hub: a student's teacher, and recorded games, come from a file or from an earlier run's manifest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GAME = "BreakoutNoFrameskip-v4"
STUDENT = {"learning_starts": 20, "buffer_size": 200, "batch_size": 2, "teacher_eval_episodes": 1}
FEW = {"teacher_steps": 20, "offline_steps": 5}


def call(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def run(algo: str, steps: int, folder: Path, name: str, params: dict[str, Any]) -> str:
    """A run of the worker's command line in its own folder; what it printed."""
    words = ["--algo", algo, "--env-id", GAME, "--total-timesteps", str(steps), "--run-id", name]
    words += ["--run-dir", str(folder / name), "--no-cuda", "--extras", json.dumps({"algo_params": params})]
    call("cleanrl_worker.cli", *words, folder=folder)
    return (folder / name / "logs/cleanrl.stdout.log").read_text()


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of dqn_atari, with games that its model played."""
    folder = tmp_path_factory.mktemp("earlier")
    run("dqn_atari", 120, folder, "teacher", {"learning_starts": 80, "buffer_size": 200, "batch_size": 2})
    manifest = folder / "teacher/analytics.json"
    words = ["--model", str(manifest), "--env-id", GAME, "--episodes", "1"]
    said = call("cleanrl_worker.training.trajectories", *words, folder=folder).stdout
    assert f"1 games in {folder / 'teacher/trajectories'}" in said
    return folder / "teacher"


def test_a_teacher_by_its_runs_manifest(earlier: Path, tmp_path: Path) -> None:
    params = {**STUDENT, **FEW, "teacher_model_path": str(earlier / "analytics.json")}
    said = run("qdagger_dqn_atari_impalacnn", 40, tmp_path, "student", params)
    assert "The teacher plays 20 steps" in said


@pytest.mark.parametrize("place", ["analytics.json", "trajectories"])
def test_recorded_games_by_a_runs_manifest_or_by_folder(place: str, earlier: Path, tmp_path: Path) -> None:
    params = {**STUDENT, **FEW, "expert_trajectories": str(earlier / place)}
    said = run("qdagger_dqn_atari_impalacnn", 40, tmp_path, "student", params)
    assert "recorded steps are in the memory" in said
    assert "The teacher plays" not in said

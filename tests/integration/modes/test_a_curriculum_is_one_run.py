"""A curriculum trained by ppo itself: its stages in events, curves and metrics, and a cut that changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bitwise import different

from cleanrl_worker.training.checkpoints import list_checkpoints, load_checkpoint

FIRST, SECOND = "MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-6x6-v0"
SCHEDULE = [{"env_id": FIRST, "steps": 600}, {"env_id": SECOND}]
PARAMS = {"num_steps": 64, "update_epochs": 1, "max_episode_steps": 50}


def test_stages_are_told_everywhere(run: Any) -> None:
    extras = {"curriculum_schedule": [{**SCHEDULE[0], "steps": 300}, SCHEDULE[1]], "algo_params": PARAMS}
    ended = run("ppo", "Anything-v0", 1024, extras)
    assert ended.code == 0, ended.process.stderr
    (started,) = ended.payloads("run_started")
    assert started["mode"] == "curriculum"
    stages = ended.payloads("stage_started")
    assert [(stage["index"], stage["count"], stage["name"]) for stage in stages] == [(0, 2, FIRST), (1, 2, SECOND)]
    assert stages[0]["step"] == 0
    assert 300 <= stages[1]["step"] < 300 + 4 * 50
    curve = ended.tensorboard("curriculum/stage")
    assert [value for _, value in curve] == sorted(value for _, value in curve)
    assert {value for _, value in curve} == {0.0, 1.0}
    assert ended.tensorboard("curriculum/return_0")
    assert ended.payloads("scalars")[-1]["values"]["curriculum/stage"] == 1.0
    assert ended.manifest["outcome"] == "completed"
    assert ended.manifest["env_id"] == "Anything-v0"


def test_steps_that_end_before_the_last_stage_are_told(run: Any) -> None:
    ended = run("ppo", "Anything-v0", 256, {"curriculum_schedule": SCHEDULE, "algo_params": PARAMS})
    assert ended.code == 0, ended.process.stderr
    told = f"they ended in stage 1 of 2 ({FIRST}): the later stages were never reached"
    assert told in ended.payloads("run_completed")[0]["message"]


DRIVER = """
import json, sys
from cleanrl_worker.training.run import Run
from cleanrl_worker.algorithms import ppo

at, flags = json.loads(sys.argv[1]), sys.argv[2:]
tick = Run.tick

def tick_with_requests(self, step):
    while at and self.step + len(step.rewards) >= at[0]:
        at.pop(0)
        self.link.requests.append({"cmd": "checkpoint"})
    tick(self, step)

Run.tick = tick_with_requests
sys.exit(ppo.main(flags))
"""


def train(folder: Path, checkpoints_at: list[int], **env: str) -> None:
    folder.mkdir(exist_ok=True)
    flags = ["--env-id", SECOND, "--total-timesteps", "1536", "--no-cuda", "--num-steps", "64", "--update-epochs", "1"]
    flags += ["--max-episode-steps", "50"]
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CLEANRL_")},
        "OMP_NUM_THREADS": "1",
        "CLEANRL_RUN_ID": "curriculum",
        "CLEANRL_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "CLEANRL_CHECKPOINT_KEEP": "9",
        "CLEANRL_CURRICULUM": json.dumps(SCHEDULE),
        "GYM_GUI_FASTLANE_ONLY": "0",
        **env,
    }
    command = [sys.executable, "-c", DRIVER, json.dumps(checkpoints_at), *flags]
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_a_run_that_was_cut_equals_the_run_in_one_go(tmp_path: Path) -> None:
    """Cut once in the first stage and once in the second, in the middle of rollouts and of episodes."""
    train(tmp_path / "whole", [404, 1004])
    early, late, end = list_checkpoints(tmp_path / "whole" / "checkpoints")
    states = [load_checkpoint(path).state for path in (early, late, end)]
    assert [state["kept"]["envs"]["stages"]["_curriculum_index"] for state in states] == [0, 1, 1]
    assert states[0]["kept"]["envs"]["stages"]["n_steps"] == 404
    assert all(any(state["kept"]["envs"]["lengths"]) for state in states[:2])
    for number, cut in enumerate((early, late)):
        half = tmp_path / f"half-{number}"
        shutil.copytree(cut, half / "checkpoints" / cut.name)
        train(half, [], CLEANRL_CONTINUE="1")
        other = load_checkpoint(list_checkpoints(half / "checkpoints")[-1])
        assert not different({**states[2], "tensorboard": 0}, {**other.state, "tensorboard": 0})
    assert different(states[1]["kept"]["agent"], states[2]["kept"]["agent"]), "nothing was learned after the cut"


def test_a_stage_that_cannot_be_made_ends_the_run_with_a_sentence(run: Any) -> None:
    schedule = [SCHEDULE[0], {"env_id": "MiniGrid-Nowhere-v0"}]
    ended = run("ppo", SECOND, 1024, {"curriculum_schedule": schedule, "algo_params": PARAMS})
    assert ended.code == 2
    (failed,) = ended.payloads("run_failed")
    assert failed["reason"] == "BadConfig"
    assert "MiniGrid-Nowhere-v0" in failed["message"]


def test_numpy_stays_as_it_was(tmp_path: Path) -> None:
    """Syllabus makes NumPy raise on underflow and on log(0) for the whole process; a run of hours would die of either."""
    program = """
import numpy as np
before = np.geterr()
import cleanrl_worker.wrappers.curriculum
assert np.geterr() == before
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)

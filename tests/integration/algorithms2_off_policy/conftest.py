"""Algorithms as real processes, with requests that arrive at an exact moment, also where no steps are taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

DRIVER = """
import importlib, json, sys
from cleanrl_worker.training.run import Run

name, moments, flags = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
attend, count = Run.attend, 0

def attend_with_requests(self):
    global count
    count += 1
    if count in moments:
        self.link.requests.append({"cmd": "checkpoint"})
    attend(self)

Run.attend = attend_with_requests
sys.exit(importlib.import_module(f"cleanrl_worker.algorithms.{name}").main(flags))
"""
"""Starts an algorithm and asks for checkpoints at given calls of `Run.attend`: for most, these are its steps."""


@dataclass
class Trained:
    """A run's folder after its process ended."""

    folder: Path
    process: subprocess.CompletedProcess[str]

    @property
    def checkpoints(self) -> list[Path]:
        from cleanrl_worker.training.checkpoints import list_checkpoints

        return list_checkpoints(self.folder / "checkpoints")

    @property
    def model(self) -> Path:
        (path,) = self.folder.glob("runs/*/*.cleanrl_model")
        return path


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Trained]:
    """train("dqn_jax", ["--total-timesteps", "400"], moments=[100], into="a", CLEANRL_CONTINUE="1")"""

    def run(
        algo: str, flags: list[str], *, moments: list[int] | None = None, into: str = "run", **environ: str
    ) -> Trained:
        folder = tmp_path / into
        folder.mkdir(exist_ok=True)
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CLEANRL_RUN_ID": "test",
            "CLEANRL_RUN_DIR": str(folder),
            "CLEANRL_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "CLEANRL_CHECKPOINT_KEEP": "9",
            "CLEANRL_TENSORBOARD_DIR": str(folder / "tensorboard"),
            **environ,
        }
        command = [sys.executable, "-c", DRIVER, algo, json.dumps(moments or []), *flags]
        process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=290, check=False)
        assert process.returncode == 0, process.stderr[-3000:] + process.stdout[-1000:]
        return Trained(folder, process)

    return run


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A value network for Breakout that knows nothing."""
    import torch

    from cleanrl_worker.agents.atari_values import QNetwork

    torch.manual_seed(0)
    path = tmp_path / "dqn_atari.cleanrl_model"
    torch.save(QNetwork(actions=4).state_dict(), path)
    return path

"""Algorithms as real processes, the way a pod runs them, with requests that arrive at an exact step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DRIVER = """
import importlib, json, os, signal, sys
from cleanrl_worker.training.run import Run

name, requests, flags = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
tick = Run.tick

def tick_with_requests(self, step):
    while requests and self.step + len(step.rewards) >= requests[0][0]:
        what = requests.pop(0)[1]
        if what.startswith("SIG"):
            self.store.wait()
            os.kill(os.getpid(), getattr(signal, what))
        else:
            self.link.requests.append({"cmd": what})
    tick(self, step)

Run.tick = tick_with_requests
sys.exit(importlib.import_module(f"cleanrl_worker.algorithms.{name}").main(flags))
"""
"""Starts an algorithm and hands it requests, or signals, at given steps. Over the link they would arrive at any step."""


@dataclass
class Trained:
    """A run's folder after a process ended."""

    folder: Path
    process: subprocess.CompletedProcess[str]

    @property
    def checkpoints(self) -> list[Path]:
        from cleanrl_worker.training.checkpoints import list_checkpoints

        return list_checkpoints(self.folder / "checkpoints")

    @property
    def tensorboard(self) -> Path:
        (folder,) = (self.folder / "tensorboard").iterdir()
        return folder


def run_in(base: Path) -> Callable[..., Trained]:
    """run("ppo", ["--total-timesteps", "4096"], requests=[(2000, "checkpoint")], into="a", CLEANRL_CONTINUE="1")"""

    def run(
        algo: str,
        flags: list[str],
        *,
        requests: list[tuple[int, str]] | None = None,
        into: str = "run",
        expect: int | None = 0,
        **environ: str,
    ) -> Trained:
        folder = base / into
        folder.mkdir(exist_ok=True)
        env: dict[str, Any] = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CLEANRL_RUN_ID": "test",
            "CLEANRL_RUN_DIR": str(folder),
            "CLEANRL_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "CLEANRL_TENSORBOARD_DIR": str(folder / "tensorboard"),
            "GYM_GUI_FASTLANE_ONLY": "0",
            **environ,
        }
        command = [sys.executable, "-c", DRIVER, algo, json.dumps(requests or []), *flags]
        process = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False)
        if expect is not None:
            assert process.returncode == expect, process.stderr[-3000:] + process.stdout[-1000:]
        return Trained(folder, process)

    return run


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Trained]:
    """Trains in folders of this test: see `run_in`."""
    return run_in(tmp_path)


@pytest.fixture(scope="module")
def train_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """Trains in folders of this module: for what several tests compare with."""
    return run_in(tmp_path_factory.mktemp("once"))

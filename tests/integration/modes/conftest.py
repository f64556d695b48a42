"""Real workers in every mode, and the folders they leave."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SECONDS = 280


@dataclass
class Ended:
    """A worker that has ended, and its run folder."""

    process: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def code(self) -> int:
        return self.process.returncode

    @property
    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def payloads(self, name: str) -> list[dict[str, Any]]:
        return [event["payload"] for event in self.events if event["event"] == name]

    @property
    def manifest(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "analytics.json").read_text())
        return loaded

    def tensorboard(self, tag: str) -> list[tuple[int, float]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        (run,) = (self.folder / "tensorboard").iterdir()
        events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload().Scalars(tag)
        return [(event.step, event.value) for event in events]


def worker_env(**more: str) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CLEANRL_", "MOSAIC_", "WANDB_", "GYM_GUI_"))
    }
    return {**inherited, "OMP_NUM_THREADS": "1", "GYM_GUI_FASTLANE_ONLY": "0", "CLEANRL_SCALARS_SECONDS": "0.2", **more}


def command(folder: Path, algo: str, env_id: str, steps: int | None, extras: dict[str, Any], *flags: str) -> list[str]:
    words = [sys.executable, "-m", "cleanrl_worker.cli", "--run-id", "mode", "--run-dir", str(folder)]
    words += ["--algo", algo, "--env-id", env_id, "--extras", json.dumps(extras), *flags]
    return words if steps is None else [*words, "--total-timesteps", str(steps)]


Run = Callable[..., Ended]


def run_in(base: Path) -> Run:
    """run("ppo", "CartPole-v1", 4096, {"mode": ...}, "--continue", into="a", stdin="...")"""

    def run(
        algo: str,
        env_id: str,
        steps: int | None = None,
        extras: dict[str, Any] | None = None,
        *flags: str,
        into: str = "run",
        stdin: str | None = None,
        **env: str,
    ) -> Ended:
        folder = base / into
        process = subprocess.run(
            command(folder, algo, env_id, steps, extras or {}, *flags),
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            cwd=base,
            env=worker_env(**env),
            timeout=SECONDS,
            check=False,
        )
        return Ended(process, folder)

    return run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a worker to its end in folders of this test: see `run_in`."""
    return run_in(tmp_path)


@pytest.fixture
def stop_when(tmp_path: Path) -> Callable[..., None]:
    """Starts a worker in the folder `run` of this test and sends it SIGTERM once a condition holds."""

    def start(algo: str, env_id: str, extras: dict[str, Any], condition: Callable[[], object]) -> None:
        words = command(tmp_path / "run", algo, env_id, None, extras)
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(words, env=worker_env(), cwd=tmp_path, **quiet) as worker:
            deadline = time.monotonic() + SECONDS
            while not condition():
                assert time.monotonic() < deadline, "it did not happen in time"
                assert worker.poll() is None, "the worker ended first"
                time.sleep(0.05)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(SECONDS) == 128 + signal.SIGTERM

    return start


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a short run of an algorithm that saved its model, made once per algorithm, in this process."""
    base = tmp_path_factory.mktemp("trained")

    def train(algo: str) -> Path:
        folder = base / algo
        if folder.exists():
            return folder
        folder.mkdir()
        module = importlib.import_module(f"cleanrl_worker.algorithms.{algo}")
        env_id, flags = MODELS[algo]
        flags = ["--env-id", env_id, "--total-timesteps", "600", "--no-cuda", "--save-model", *flags]
        places = {"CLEANRL_CHECKPOINT_DIR": str(folder / "checkpoints"), "GYM_GUI_FASTLANE_ONLY": "0"}
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
            for name, value in places.items():
                patch.setenv(name, value)
            assert module.main(flags) == 0
        return folder

    return train


PENDULUM = "Pendulum-v1"
_SMALL = ["--learning-starts", "200", "--buffer-size", "1000"]
MODELS: dict[str, tuple[str, list[str]]] = {
    "ppo": ("CartPole-v1", ["--num-steps", "64"]),
    "ppo_gru": ("MiniGrid-Empty-5x5-v0", ["--num-steps", "64", "--update-epochs", "1"]),
    "ppo_continuous_action": (PENDULUM, ["--num-steps", "256", "--num-minibatches", "4"]),
    "rpo_continuous_action": (PENDULUM, ["--num-steps", "256", "--num-minibatches", "4"]),
    "pqn": ("CartPole-v1", ["--num-steps", "64"]),
    "dqn": ("CartPole-v1", _SMALL),
    "c51": ("CartPole-v1", _SMALL),
    "ddpg_continuous_action": (PENDULUM, [*_SMALL, "--batch-size", "32"]),
    "td3_continuous_action": (PENDULUM, [*_SMALL, "--batch-size", "32"]),
    "sac_continuous_action": (PENDULUM, [*_SMALL, "--batch-size", "32"]),
}
"""Where each algorithm is trained here, and flags that keep it short."""

"""Environments whose values are known by arithmetic, and runs of an algorithm within the test's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.training.checkpoints import Loaded, newest_valid

STEPS = 5
"""The length of an episode of Countdown, and what Forever is cut off after."""


class Forever(gym.Env[np.ndarray, Any]):
    """Every step is worth 1 and looks the same; only a time limit ends an episode. A state is worth 1 / (1 - gamma)."""

    def __init__(self, continuous: bool) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (STEPS,), np.float32)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32) if continuous else gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.eye(STEPS, dtype=np.float32)[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.eye(STEPS, dtype=np.float32)[0], 1.0, False, False, {}


class Countdown(Forever):
    """Every step is worth 1, shows its number, and the last of `STEPS` terminates: n more steps are worth their sum."""

    at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.at = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += 1
        ended = self.at == STEPS
        return np.eye(STEPS, dtype=np.float32)[min(self.at, STEPS - 1)], 1.0, ended, False, {}


class Picture(Forever):
    """Shows an image."""

    def __init__(self, continuous: bool) -> None:
        super().__init__(continuous)
        self.observation_space = gym.spaces.Box(0, 255, (84, 84, 3), np.uint8)


class Unbounded(Forever):
    """Takes actions of any size."""

    def __init__(self, continuous: bool) -> None:
        super().__init__(continuous)
        self.action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


for kind in (Forever, Countdown, Picture, Unbounded):
    for continuous in (False, True):
        gym.register(
            id=f"{kind.__name__}{'Continuous' if continuous else ''}-v0",
            entry_point=kind,  # type: ignore[arg-type] # a class is a callable that makes one
            kwargs={"continuous": continuous},
            max_episode_steps=STEPS if kind is Forever else None,
        )


@dataclass
class Ended:
    """A run that is over."""

    exit_code: int
    folder: Path

    @property
    def checkpoint(self) -> Loaded:
        (checkpoints,) = self.folder.glob("runs/*/checkpoints")
        found = newest_valid(checkpoints)
        assert found is not None
        return found

    @property
    def model(self) -> Path:
        (path,) = self.folder.glob("runs/*/*.cleanrl_model")
        return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """run("dqn", "--env-id CartPole-v1 ...", into="a", NAME="value of an environment variable")"""
    for name in (
        "CLEANRL_RUN_ID",
        "CLEANRL_RUN_DIR",
        "CLEANRL_CONTINUE",
        "CLEANRL_RESUME_PATH",
        "CLEANRL_TENSORBOARD_DIR",
    ):
        monkeypatch.delenv(name, raising=False)

    def go(algo: str, flags: str, into: str = "run", **environ: str) -> Ended:
        folder = tmp_path / into
        folder.mkdir()
        monkeypatch.chdir(folder)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        code = import_module(f"cleanrl_worker.algorithms.{algo}").main([*flags.split(), "--no-cuda"])
        return Ended(code, folder)

    return go

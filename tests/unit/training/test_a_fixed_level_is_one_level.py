"""Without procedural generation all episodes are the same one: in every environment, and when the policy is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.algorithms import ppo
from cleanrl_worker.modes import policy_eval
from cleanrl_worker.training import envstate

FLAGS = ["--env-id", "Levels-v0", "--num-envs", "2", "--num-steps", "8", "--total-timesteps", "32", "--save-model"]
LEVELS: list[float] = []


class Levels(gym.Env[Any, Any]):
    """Draws a level at each reset, and notes it."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.level = self.np_random.random()
        LEVELS.append(self.level)
        return np.array([self.level], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([self.level], np.float32), 1.0, bool(self.np_random.random() < 0.5), False, {}


@pytest.fixture(autouse=True)
def _levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(gym.registry, "Levels-v0", gym.envs.registration.EnvSpec("Levels-v0", Levels))
    LEVELS.clear()


@pytest.mark.parametrize("procedural", [True, False])
def test_it_is_the_seeds(procedural: bool, tmp_path: Path) -> None:
    flag = "--procedural-generation" if procedural else "--no-procedural-generation"
    assert ppo.main([*FLAGS, flag]) == 0
    (model,) = tmp_path.glob("runs/*/ppo.cleanrl_model")
    evaluated = ["--algo", "ppo", "--env-id", "Levels-v0", "--policy-path", str(model), "--batch-size", "2"]
    assert policy_eval.main([*evaluated, flag]) == 0
    assert len(LEVELS) > 15
    assert (len(set(LEVELS)) == 1) != procedural


def test_an_extension_with_another_seed_is_evaluated_on_the_level_that_it_goes_on_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envstate, "FAMILIES", (Levels.__module__,))
    assert ppo.main([*FLAGS, "--no-procedural-generation", "--seed", "3"]) == 0
    level = LEVELS[0]
    (earlier,) = tmp_path.glob("runs/*/checkpoints")
    monkeypatch.setenv("CLEANRL_RESUME_PATH", str(earlier))
    assert ppo.main([*FLAGS, "--no-procedural-generation", "--seed", "5"]) == 0
    assert LEVELS[-10:] == [level] * 10, "the evaluation's ten episodes"

"""Without procedural generation all episodes are the same one: in every environment, and when the policy is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.algorithms import ppo
from cleanrl_worker.modes import policy_eval

FLAGS = ["--env-id", "Levels-v0", "--num-envs", "2", "--num-steps", "8", "--total-timesteps", "32", "--save-model"]
LEVELS: list[float] = []


class Levels(gym.Env[Any, Any]):
    """Draws a level at each reset, and notes it."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        LEVELS.append(self.np_random.random())
        return np.array(LEVELS[-1:], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array(LEVELS[-1:], np.float32), 1.0, bool(self.np_random.random() < 0.5), False, {}


@pytest.mark.parametrize("procedural", [True, False])
def test_it_is_the_seeds(procedural: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = "--procedural-generation" if procedural else "--no-procedural-generation"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(gym.registry, "Levels-v0", gym.envs.registration.EnvSpec("Levels-v0", Levels))
    LEVELS.clear()
    assert ppo.main([*FLAGS, flag]) == 0
    (model,) = tmp_path.glob("runs/*/ppo.cleanrl_model")
    evaluated = ["--algo", "ppo", "--env-id", "Levels-v0", "--policy-path", str(model), "--batch-size", "2"]
    assert policy_eval.main([*evaluated, flag]) == 0
    assert len(LEVELS) > 15
    assert (len(set(LEVELS)) == 1) != procedural

"""What an environment is sent is an action of its space, to the last bit: half ranges and float32 round to either side."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.algorithms import sac_continuous_action

FLAGS = "--env-id Strict-v0 --total-timesteps 60 --learning-starts 10 --batch-size 4 --buffer-size 50"


class Strict(gym.Env[Any, Any]):
    """Takes nothing that is not in its action space. In 32 bits its bounds are a little wider."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,))
        self.action_space = gym.spaces.Box(np.array([-0.7, 0.3]), np.array([0.1, 2.9]), dtype=np.float64)
        assert not self.action_space.contains(self.action_space.high.astype(np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.np_random.uniform(-1, 1, 3), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self.np_random.uniform(-1, 1, 3), 1.0, False, False, {}


@pytest.mark.parametrize("algo", ["ddpg_continuous_action", "td3_continuous_action", "sac_continuous_action"])
def test_actions_at_the_bounds(algo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(gym.registry, "Strict-v0", gym.envs.registration.EnvSpec("Strict-v0", entry_point=Strict))
    noise = "--exploration-noise 9"
    if algo == "sac_continuous_action":  # which has no noise but its own spread
        noise = ""
        monkeypatch.setattr(sac_continuous_action, "LOG_STD_MIN", 4.0)
        monkeypatch.setattr(sac_continuous_action, "LOG_STD_MAX", 5.0)
    assert import_module(f"cleanrl_worker.algorithms.{algo}").main([*FLAGS.split(), *noise.split()]) == 0

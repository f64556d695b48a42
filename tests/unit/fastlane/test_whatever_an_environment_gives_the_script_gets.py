"""Being watched ends no script: what an environment gives goes through as it is, whether or not it can be counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.fastlane import metrics, wrapper


class Given(gym.Env[Any, Any]):
    def __init__(self, *result: Any) -> None:
        self.result = result

    def step(self, action: Any) -> Any:
        del action
        return self.result


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (np.array([2.0]), 2.0),
        (np.float32(2.0), 2.0),
        (np.array([1.0, 2.0]), None),
        ({"speed": 1.0}, None),
        (None, None),
    ],
)
@pytest.mark.parametrize("ended", [(True, False), (np.bool_(False), np.True_), (np.array([True]),), (1,)])
def test_rewards_and_ends_of_every_kind(
    shm: Path, monkeypatch: pytest.MonkeyPatch, reward: Any, told: float | None, ended: tuple[Any, ...]
) -> None:
    monkeypatch.setenv("CLEANRL_RUN_ID", "r")
    wrapper.reload_fastlane_config()
    result = ("observation", reward, *ended, {})
    env = wrapper.FastLaneTelemetryWrapper(Given(*result))
    assert env.step(0) is env.env.result  # type: ignore[attr-defined]
    wrapper.reload_fastlane_config()
    found = metrics.read("r")
    assert found is not None
    assert (found.env_steps, found.episodes, found.episode_return) == (1, 1, told)

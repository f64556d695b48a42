"""Being watched changes nothing for the script whose environment it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.fastlane import metrics
from cleanrl_worker.fastlane.wrapper import FastLaneTelemetryWrapper, reload_fastlane_config


@pytest.fixture(autouse=True)
def _own_lane(shm: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CLEANRL_RUN_ID", "r")
    reload_fastlane_config()
    yield
    reload_fastlane_config()


class TwoObjectives(gym.Env[Any, Any]):
    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[int, Any, bool, bool, dict[str, Any]]:
        return 0, np.array([1.0, -2.0]), True, False, {}


def test_rewards_of_several_objectives_pass_and_their_episodes_count() -> None:
    env = FastLaneTelemetryWrapper(TwoObjectives())
    env.reset()
    _, reward, terminated, _, _ = env.step(0)
    assert list(reward) == [1.0, -2.0]
    assert terminated
    reload_fastlane_config()  # the last figures are written
    seen = metrics.read("r")
    assert seen is not None
    assert (seen.env_steps, seen.episodes, seen.episode_return) == (1, 1, None)


def test_it_can_be_made_again_from_its_spec() -> None:
    env = FastLaneTelemetryWrapper(gym.make("CartPole-v1"))
    assert str(gym.make(env.spec)) == str(env.env)

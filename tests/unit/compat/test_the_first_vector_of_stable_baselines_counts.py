from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from cleanrl_worker.compat.stable_baselines import patch_vector
from cleanrl_worker.fastlane import metrics, segment, wrapper


class Env(gym.Env[Any, Any]):
    def step(self, action: Any) -> Any:
        del action
        return 0, 1.0, False, False, {}


def test_steps_of_the_training_vector_are_counted_once_and_those_of_an_evaluation_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Vector:
        """Steps as stable-baselines3's vectors do."""

        def __init__(self, count: int = 2) -> None:
            self.count = count

        @property
        def unwrapped(self) -> Any:
            return self

        def step(self, actions: Any) -> Any:
            del actions
            return self.step_wait()

        def step_wait(self) -> Any:
            return [0] * self.count, [1.0] * self.count, [False] * self.count, [{}] * self.count

    class Wrapper(Vector):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        @property
        def unwrapped(self) -> Any:
            return self.inner.unwrapped

        def step_wait(self) -> Any:
            return self.inner.step_wait()

    monkeypatch.setattr(segment, "SHM_DIR", tmp_path)
    monkeypatch.setenv("CLEANRL_RUN_ID", "r")
    wrapper.reload_fastlane_config()
    patch_vector(SimpleNamespace(VecEnv=Vector, VecEnvWrapper=Wrapper))
    training, evaluation = Wrapper(Wrapper(Vector(3))), Wrapper(Vector())
    for _ in range(4):
        assert training.step(None)[1] == [1.0] * 3
        evaluation.step(None)
    wrapper.reload_fastlane_config()
    found = metrics.read("r")
    assert found is not None and found.env_steps == 12

    class Own(Vector):
        """Has a step of its own, around environments that count."""

        def __init__(self) -> None:
            self.env = wrapper.FastLaneTelemetryWrapper(Env())

        def step(self, actions: Any) -> Any:
            return self.env.step(actions)

    own = Own()
    for _ in range(3):
        own.step(None)
    wrapper.reload_fastlane_config()
    found = metrics.read("r")
    assert found is not None and found.env_steps == 3

"""A time limit by the clock, for evaluations of policies that may never end an episode."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym


class EpisodeTimeLimitSeconds(gym.Wrapper[Any, Any, Any, Any]):
    """Truncates an episode that has taken longer than `seconds`."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(env)
        if seconds <= 0:
            raise ValueError(f"an episode needs more than {seconds} seconds")
        self.seconds = seconds
        self._clock = clock
        self._began = clock()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._began = self._clock()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated or self._clock() - self._began >= self.seconds, info

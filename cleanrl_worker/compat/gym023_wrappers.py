"""gymnasium's wrappers around a vector environment of gym 0.23, where one class served single and several environments.

gymnasium's classes keep their names and their work. Given an old vector environment (`gym023.is_old`) they make the
wrapper of the same purpose from here instead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from cleanrl_worker.compat.gym023 import is_old
from cleanrl_worker.compat.hooks import say


class _Old(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Passes everything on; the spaces are those of the environment inside until somebody sets others."""

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)


class TransformObservation(_Old):
    def __init__(self, env: Any, f: Callable[[Any], Any], *_: Any, **__: Any) -> None:
        super().__init__(env)
        self.f = f

    def reset(self, **kwargs: Any) -> Any:
        return self.f(self.env.reset(**kwargs))

    def step(self, action: Any) -> Any:
        observations, *others = self.env.step(action)
        return (self.f(observations), *others)


class TransformReward(_Old):
    def __init__(self, env: Any, f: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self.f = f

    def step(self, action: Any) -> Any:
        observations, rewards, *others = self.env.step(action)
        return (observations, self.f(rewards), *others)


class RecordEpisodeStatistics(_Old):
    """Puts `episode` (return `r`, length `l`, seconds `t`) into the info of each environment whose episode ended."""

    def __init__(self, env: Any, deque_size: int = 100, **_: Any) -> None:
        super().__init__(env)
        self.return_queue: deque[float] = deque(maxlen=deque_size)
        self.length_queue: deque[int] = deque(maxlen=deque_size)
        self.episode_count = 0
        self._began = time.perf_counter()
        self._clear()

    def _clear(self) -> None:
        count = self.env.unwrapped.num_envs  # type: ignore[attr-defined]
        self.episode_returns, self.episode_lengths = np.zeros(count, np.float32), np.zeros(count, np.int32)

    def reset(self, **kwargs: Any) -> Any:
        self._clear()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        observations, rewards, done, infos = self.env.step(action)  # type: ignore[misc]
        self.episode_returns += rewards
        self.episode_lengths += 1
        infos = list(infos)
        for index in np.flatnonzero(done).tolist():
            total, length = float(self.episode_returns[index]), int(self.episode_lengths[index])
            seconds = round(time.perf_counter() - self._began, 6)
            infos[index] = {**infos[index], "episode": {"r": total, "l": length, "t": seconds}}
            self.return_queue.append(total)
            self.length_queue.append(length)
            self.episode_count += 1
            self.episode_returns[index], self.episode_lengths[index] = 0.0, 0
        return observations, rewards, done, infos


class NormalizeObservation(_Old):
    """Observations less their running mean, over their running deviation."""

    def __init__(self, env: Any, epsilon: float = 1e-8) -> None:
        super().__init__(env)
        self.obs_rms = _running_statistics(env.single_observation_space.shape)
        self.epsilon = epsilon

    def _normal(self, observations: Any) -> Any:
        self.obs_rms.update(observations)
        return (observations - self.obs_rms.mean) / np.sqrt(self.obs_rms.var + self.epsilon)

    def reset(self, **kwargs: Any) -> Any:
        return self._normal(self.env.reset(**kwargs))

    def step(self, action: Any) -> Any:
        observations, *others = self.env.step(action)
        return (self._normal(observations), *others)


class NormalizeReward(_Old):
    """Rewards over the running deviation of the discounted return."""

    def __init__(self, env: Any, gamma: float = 0.99, epsilon: float = 1e-8) -> None:
        super().__init__(env)
        self.return_rms = _running_statistics(())
        self.returns = np.zeros(self.env.unwrapped.num_envs)  # type: ignore[attr-defined]
        self.gamma, self.epsilon = gamma, epsilon

    def step(self, action: Any) -> Any:
        observations, rewards, done, infos = self.env.step(action)  # type: ignore[misc]
        self.returns = self.returns * self.gamma + rewards
        self.return_rms.update(self.returns)
        self.returns[np.asarray(done, bool)] = 0.0
        return observations, rewards / np.sqrt(self.return_rms.var + self.epsilon), done, infos


def _running_statistics(shape: tuple[int, ...]) -> Any:
    from gymnasium.wrappers import utils

    made: Any = utils.RunningMeanStd
    return made(shape=shape)


def _no_video(env: Any, *_: Any, **__: Any) -> Any:
    say("no video: environments that a library steps in one piece cannot be recorded here")
    return env


_REPLACEMENTS: dict[str, Any] = {
    "NormalizeObservation": NormalizeObservation,
    "NormalizeReward": NormalizeReward,
    "RecordEpisodeStatistics": RecordEpisodeStatistics,
    "RecordVideo": _no_video,
    "TransformObservation": TransformObservation,
    "TransformReward": TransformReward,
}


def patch(wrappers: Any) -> None:
    """Calling one of gymnasium's classes on an old vector environment makes ours. Subclasses of them are left alone."""
    for name, replacement in _REPLACEMENTS.items():
        _replace_where_old(getattr(wrappers, name), replacement)


def _replace_where_old(wrapper: Any, replacement: Any) -> None:
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it becomes the class's own
        env = args[0] if args else kwargs.get("env")
        if cls is wrapper and is_old(env):
            return replacement(*args, **kwargs)
        return object.__new__(cls)

    wrapper.__new__ = staticmethod(__new__)

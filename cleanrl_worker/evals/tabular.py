"""Environments that are a table (FrozenLake, CliffWalking, Taxi), thousands of them stepped at once.

gymnasium's own classes publish the table they draw from: `P[state][action]` is a list of (probability, next state, reward,
terminated). Drawing for a whole batch from that table gives the same process at a fraction of the cost. It follows random
numbers of its own, so single episodes differ from those of gymnasium's class with the same seed.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.training.envs import Episode, Step

MOST_ENVS = 4096
_CLASSES = ("FrozenLakeEnv", "CliffWalkingEnv", "TaxiEnv")


def fits(env: gym.Env[Any, Any]) -> bool:
    """Whether the environment is its table and nothing more."""
    inner: Any = env.unwrapped
    known = type(inner).__module__.startswith("gymnasium.envs.toy_text.") and type(inner).__name__ in _CLASSES
    return known and not getattr(inner, "fickle_passenger", False)


class TabularEnvs:
    """`num_envs` copies of one such environment, seen through `Step` like `Envs`; observations are one-hot rows."""

    stages = None

    def __init__(self, env: gym.Env[Any, Any], num_envs: int) -> None:
        inner: Any = env.unwrapped
        self.num_envs = num_envs
        self.single_action_space: Any = inner.action_space
        self.discrete = True
        states, actions = int(inner.observation_space.n), int(inner.action_space.n)
        self.obs_shape, self.obs_dtype = (states,), np.float32
        self.limit = env.spec.max_episode_steps if env.spec is not None else None
        widest = max(len(inner.P[s][a]) for s in range(states) for a in range(actions))
        shape = (states * actions, widest)
        self._reach, self._next = np.ones(shape), np.zeros(shape, np.int64)
        self._reward, self._ends = np.zeros(shape), np.zeros(shape, bool)
        for row, (s, a) in enumerate((s, a) for s in range(states) for a in range(actions)):
            for column, (_, following, reward, ends) in enumerate(inner.P[s][a]):
                self._next[row, column], self._reward[row, column] = following, reward
                self._ends[row, column] = ends
            chances = [chance for chance, *_ in inner.P[s][a]]
            self._reach[row, : len(chances) - 1] = np.cumsum(chances)[:-1]  # the last entry is 1: a draw always lands
        self._first = np.cumsum(inner.initial_state_distrib)
        self._one_hot = np.eye(states, dtype=np.float32)
        self._actions = actions
        self._rng = np.random.default_rng()
        self._states: np.ndarray = np.zeros(num_envs, np.int64)
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self.obs: np.ndarray = self._one_hot[self._states]
        self.starts: np.ndarray = np.ones(num_envs, bool)

    def reset(self, seed: int) -> np.ndarray:
        self._rng = np.random.default_rng(seed)
        self._states = self._draw_first(self.num_envs)
        self._returns[:], self._lengths[:] = 0.0, 0
        self.starts = np.ones(self.num_envs, bool)
        self.obs = self._one_hot[self._states]
        return self.obs

    def step(self, actions: np.ndarray) -> Step:
        rows = self._states * self._actions + actions
        draws = self._rng.random(self.num_envs)
        columns = (draws[:, None] >= self._reach[rows]).sum(axis=1)
        columns = np.minimum(columns, self._reach.shape[1] - 1)
        rewards, terminated = self._reward[rows, columns], self._ends[rows, columns]
        states = self._next[rows, columns]
        self._returns += rewards
        self._lengths += 1
        truncated = np.zeros(self.num_envs, bool) if self.limit is None else self._lengths >= self.limit
        truncated &= ~terminated
        self.starts = terminated | truncated
        where = np.flatnonzero(self.starts)
        episodes = [
            Episode(env, ret, length)
            for env, ret, length in zip(
                where.tolist(), self._returns[where].tolist(), self._lengths[where].tolist(), strict=True
            )
        ]
        next_obs = self._one_hot[states]
        self.obs = next_obs
        if episodes:
            states[where] = self._draw_first(len(where))
            self._returns[where], self._lengths[where] = 0.0, 0
            self.obs = self._one_hot[states]
        self._states = states
        return Step(self.obs, rewards.astype(np.float32), terminated, truncated, next_obs, episodes)

    def render(self, _slots: tuple[int, ...]) -> list[Any]:
        return []

    def close(self) -> None:
        """Nothing is held."""

    def _draw_first(self, count: int) -> np.ndarray:
        drawn = np.searchsorted(self._first, self._rng.random(count), side="right")
        return np.minimum(drawn, len(self._first) - 1)

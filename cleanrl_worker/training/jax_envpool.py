"""Atari games of envpool that are stepped from within compiled functions, by envpool's XLA interface.

There an environment restarts in the step after its episode's end, whose action is ignored. So rows after an end are no
transitions (`valid` is False), and nothing may be learned from them. What an episode ended with is the observation of such a
row, so its value is known there without further work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cleanrl_worker.training.envpool import atari_task, open_pool
from cleanrl_worker.training.envs import MOST_SEEDS, Episode, Step


class PoolState(NamedTuple):
    """What one step hands to the next."""

    handle: Any
    obs: Any
    ended: Any
    """Rows whose next step is a reset."""


class Outcome(NamedTuple):
    """What a step, or with one more axis a rollout of them, came to."""

    rewards: Any
    terminated: Any
    truncated: Any
    valid: Any
    """False in rows that are no transitions."""
    scores: Any
    """The reward before it was clipped."""
    over: Any
    """Whether the game is over, and not only a life."""


class XlaAtari:
    """`num_envs` Atari games, of which compiled functions make steps."""

    def __init__(self, env_id: str, num_envs: int, *, seed: int, render: bool = False) -> None:
        self.task, self.num_envs = atari_task(env_id, num_envs), num_envs
        self._config = {"episodic_life": True, "reward_clip": True, **({"render_mode": "rgb_array"} if render else {})}
        self._seed, self._steps = seed, 0
        self._open(seed)
        self.single_action_space: Any = self.pool.action_space
        self.obs_shape: tuple[int, ...] = self.pool.observation_space.shape
        self.discrete = True
        self.restarted: list[int] = []
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)

    def _open(self, seed: int) -> None:
        self._seed = seed
        self.pool = open_pool(self.task, self.num_envs, seed, self._config)
        self._handle, _, _, self._step = self.pool.xla()

    def reset(self, seed: int) -> None:
        """Start all games. Compiled functions hold the pool that was current when they were compiled: make them after this."""
        if seed != self._seed or self._steps:
            self.pool.close()
            self._open(seed)
        obs, _ = self.pool.reset()
        self.state = PoolState(jnp.asarray(self._handle), jnp.asarray(obs), jnp.zeros(self.num_envs, bool))
        self._returns[:], self._lengths[:] = 0.0, 0

    def step(self, state: PoolState, actions: jax.Array) -> tuple[PoolState, Outcome]:
        """One step of all games, to be compiled."""
        handle, (obs, rewards, terminated, truncated, info) = self._step(state.handle, actions.astype(jnp.int32))
        valid = ~state.ended
        terminated, truncated = terminated & valid, truncated & ~terminated & valid
        ended = terminated | truncated
        over = ended & ((info["terminated"] != 0) | truncated)
        return PoolState(handle, obs, ended), Outcome(rewards, terminated, truncated, valid, info["reward"], over)

    def steps(self, outcome: Outcome) -> Iterator[Step]:
        """The steps of a rollout as a run counts them, with the games that ended in them."""
        nothing = np.empty(0)
        for row in zip(*(np.asarray(part) for part in outcome), strict=True):
            rewards, terminated, truncated, valid, scores, over = row
            self._steps += self.num_envs
            self._returns += scores
            self._lengths += valid
            episodes = []
            for i in np.flatnonzero(over).tolist():
                episodes.append(Episode(i, float(self._returns[i]), int(self._lengths[i])))
                self._returns[i], self._lengths[i] = 0.0, 0
            yield Step(nothing, rewards, terminated, truncated, nothing, episodes)

    def render(self, slots: tuple[int, ...]) -> list[Any]:
        """Pictures of the environments with these indices."""
        return list(self.pool.render(np.array([slot for slot in slots if slot < self.num_envs], np.int32)))

    def close(self) -> None:
        self.pool.close()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin fresh games, with seeds that the run has not seen."""
        steps = int(state["steps"])
        self.reset((self._seed + steps) % MOST_SEEDS)
        self._steps = steps
        self.restarted = list(range(self.num_envs))

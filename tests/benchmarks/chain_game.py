"""A small game of pictures in the places where algorithms get their images from.

    python tests/benchmarks/chain_game.py ALGORITHM FLAGS...

A bright bar stands in one of four columns. In each column another of the four buttons moves it on, and the other three do
nothing; from the last column it goes back to the first and pays a point. A game is 32 steps: at best 8 points, 2 by pressing at
random. What pays is three steps away from most of what is shown, so whoever learns it has to carry values backwards.

The game stands in for the emulators of `training/atari.py` (one game), `training/envpool.py` (many at once, also from within
compiled functions) and `training/pettingzoo.py`; everything else is the algorithm as it is.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.training import envpool, envs

BUTTONS = (2, 0, 3, 1)
"""What moves the bar on, by column."""
COLUMNS = len(BUTTONS)
LENGTH = 32
BEST, BY_CHANCE = LENGTH / COLUMNS, LENGTH / COLUMNS / 4


def pictures(size: int) -> np.ndarray:
    """The picture of each column."""
    drawn = np.zeros((COLUMNS, size, size), np.uint8)
    for column in range(COLUMNS):
        left = (2 * column + 1) * size // (2 * COLUMNS) - size // 16
        drawn[column, size // 4 : 3 * size // 4, left : left + size // 8] = 255
    return drawn


def advance(xp: Any, state: Any, actions: Any) -> tuple[Any, Any, Any]:
    """One step of all games, with NumPy or JAX as `xp`: the state after it, the points, and which games are over.

    A row of the state is the number of steps and the columns that were shown last, the newest at the end. The step after a
    game's end begins the next one, whatever the action.
    """
    over, newest = state[:, 0] == LENGTH, state[:, -1]
    moved = newest + (actions == xp.asarray(BUTTONS)[newest])
    points = ((moved == COLUMNS) & ~over).astype(xp.float32)
    shown = xp.where(over, newest + 1, moved)[:, None] % COLUMNS
    history = xp.where(over[:, None], shown, xp.concatenate([state[:, 2:], shown], axis=1))
    steps = xp.where(over, 0, state[:, 0] + 1)[:, None]
    return xp.concatenate([steps, history], axis=1).astype(xp.int32), points, steps[:, 0] == LENGTH


def ended_games(count: int, images: int, seed: int) -> np.ndarray:
    """A state whose next step begins every game, in columns that the seed decides."""
    first = (seed + np.arange(count)) % COLUMNS
    return np.column_stack([np.full(count, LENGTH), *[first] * images]).astype(np.int32)


class ChainGame(gym.Env[Any, Any]):
    """One game, as `training/atari.py` shows them."""

    def __init__(self, frames: int) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (frames, 84, 84), np.uint8)
        self.action_space = gym.spaces.Discrete(len(BUTTONS))
        self._pictures = pictures(84)
        self._state = ended_games(1, frames, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._state = ended_games(1, self._state.shape[1] - 1, seed)
        return self.step(0)[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._state, points, over = advance(np, self._state, np.array([action]))
        info = {"raw_reward": float(points[0]), "game_over": bool(over[0])}
        return self._pictures[self._state[0, 1:]], float(points[0]), bool(over[0]), False, info


class ChainPool:
    """Many games, as envpool has them: gymnasium's manner, rows by number, and the XLA interface."""

    def __init__(self, count: int, seed: int, images: int, size: int) -> None:
        self.action_space = gym.spaces.Discrete(len(BUTTONS))
        self.observation_space = gym.spaces.Box(0, 255, (images, size, size), np.uint8)
        self._pictures = pictures(size)
        self._begin = ended_games(count, images, seed)
        self.reset()

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        self._state = advance(np, self._begin, np.zeros(len(self._begin)))[0]
        return self._pictures[self._state[:, 1:]], {}

    def step(self, actions: np.ndarray, rows: np.ndarray | None = None) -> tuple[Any, ...]:
        which = np.arange(len(self._state), dtype=np.int32) if rows is None else rows
        self._state[which], points, over = advance(np, self._state[which], actions)
        obs = self._pictures[self._state[which, 1:]]
        return obs, points, over, np.zeros_like(over), {"env_id": which}

    def xla(self) -> tuple[Any, None, None, Any]:
        import jax.numpy as jnp

        table = jnp.asarray(self._pictures)

        def step(state: Any, actions: Any) -> tuple[Any, tuple[Any, ...]]:
            state, points, over = advance(jnp, state, actions)
            info = {"reward": points, "terminated": over.astype(jnp.int32)}
            return state, (table[state[:, 1:]], points, over, jnp.zeros_like(over), info)

        return jnp.asarray(self._state), None, None, step

    def close(self) -> None:
        """Nothing is held."""


def open_pool(task: str, count: int, seed: int, config: dict[str, Any]) -> ChainPool:
    """In the place of `envpool.open_pool`: Procgen's images are smaller."""
    is_procgen = task.endswith(("Easy-v0", "Hard-v0"))
    return ChainPool(count, seed, images=3 if is_procgen else config.get("stack_num", 4), size=64 if is_procgen else 84)


class Players(envpool.PoolEnvs):
    """Two players, each with a game of its own: four images, and one more for each of them."""

    players = 2

    def __init__(self, _id: str, count: int) -> None:
        super().__init__("players", count, seed=0, stack_num=4 + self.players)


def put_in_place(algorithm: Any) -> None:
    """Have the algorithm's module meet this game wherever it asks for one."""
    envs.make_atari = lambda _id, *, frames, **_: ChainGame(frames)  # type: ignore[attr-defined] # imported there
    envpool.open_pool = open_pool  # type: ignore[assignment] # a pool of ours
    if compiled := sys.modules.get("cleanrl_worker.training.jax_envpool"):
        compiled.open_pool = open_pool  # type: ignore[attr-defined] # the same, where the algorithm has imported it
    if hasattr(algorithm, "PlayersEnvs"):
        algorithm.PlayersEnvs = Players


if __name__ == "__main__":
    module = importlib.import_module(f"cleanrl_worker.algorithms.{sys.argv[1]}")
    put_in_place(module)
    raise SystemExit(module.main(sys.argv[2:]))

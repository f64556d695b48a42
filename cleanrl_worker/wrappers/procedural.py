"""One level for ever, or a new one each episode, and the seed of each episode in `info`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class ProceduralGenerationWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Decides which seed each episode starts from.

    Procedural: every reset draws a new seed; a seed given to `reset` only seeds the stream of draws, so that a run with
    the same seed sees the same levels. Fixed: every reset uses `fixed_seed` (or, when that is None, the first seed that
    `reset` is given).
    """

    def __init__(self, env: gym.Env[Any, Any], procedural: bool = True, fixed_seed: int | None = None) -> None:
        super().__init__(env)
        self.procedural = procedural
        self.fixed_seed = fixed_seed
        self.episode_number = -1
        self._draws = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode_number += 1
        if self.procedural:
            if seed is not None:
                self._draws = np.random.default_rng(seed)
            episode_seed = int(self._draws.integers(2**31 - 1))
        else:
            if self.fixed_seed is None:
                self.fixed_seed = 0 if seed is None else seed
            episode_seed = self.fixed_seed
        obs, info = self.env.reset(seed=episode_seed, options=options)
        info = {
            **info,
            "procedural_generation": self.procedural,
            "episode_seed": episode_seed,
            "episode_number": self.episode_number,
        }
        if not self.procedural:
            info["fixed_seed"] = self.fixed_seed
        return obs, info

    def state_dict(self) -> dict[str, Any]:
        return {
            "episode_number": self.episode_number,
            "fixed_seed": self.fixed_seed,
            "draws": dict(self._draws.bit_generator.state),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.episode_number, self.fixed_seed = state["episode_number"], state["fixed_seed"]
        self._draws.bit_generator.state = state["draws"]

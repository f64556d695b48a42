"""Whether each episode gets a layout of its own, or all get the same one."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

_LARGEST_SEED = 2**31 - 1


class ProceduralGenerationWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Decides the seed of every reset.

    Procedural: a seed passed to `reset` is ignored and a new one is drawn for each episode; `info` tells
    `procedural_generation` (true), `episode_seed` and `episode_number` (from 0). Fixed: each reset uses `fixed_seed`;
    `info` tells `procedural_generation` (false) and `fixed_seed`.

    `draw_seed` makes the drawn sequence reproducible; without it the sequence differs from process to process.
    """

    made_by_worker = True

    def __init__(
        self,
        env: gym.Env[Any, Any],
        procedural: bool = True,
        fixed_seed: int | None = None,
        draw_seed: int | None = None,
    ) -> None:
        super().__init__(env)
        self.procedural = procedural
        self.fixed_seed = fixed_seed
        self.episode_number = 0
        self._draws = np.random.default_rng(draw_seed)

    @property
    def spec(self) -> Any:  # type: ignore[override] # as in gymnasium's own Wrapper
        """Without this wrapper: what is made again from it gets one of its own."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del seed  # this wrapper is the one that decides
        if not self.procedural:
            observation, info = self.env.reset(seed=self.fixed_seed, options=options)
            return observation, {**info, "procedural_generation": False, "fixed_seed": self.fixed_seed}
        episode_seed = int(self._draws.integers(0, _LARGEST_SEED))
        observation, info = self.env.reset(seed=episode_seed, options=options)
        facts = {
            "procedural_generation": True,
            "episode_seed": episode_seed,
            "episode_number": self.episode_number,
        }
        self.episode_number += 1
        return observation, {**info, **facts}

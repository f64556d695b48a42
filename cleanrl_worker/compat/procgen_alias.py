"""`from procgen import ProcgenEnv`, where no procgen is installed: the same sixteen games, out of envpool.

The package itself has no build for the Pythons that the worker runs on. Its vector environment had the interface of gym
0.23: `reset` returns `{"rgb": images}` (height, width, channels), `step` four values, and an ended episode's environment
already shows the next one's beginning.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import secrets
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from cleanrl_worker.compat.hooks import say

MODULE = "procgen"
_MODES = {"easy": 0, "hard": 1, "extreme": 2, "memory": 10, "exploration": 20}
"""envpool's number for each kind of levels. Every game has the first two."""
_WITHOUT_EFFECT = frozenset({"debug_mode", "num_threads", "options", "render_mode", "resource_root"})
"""Options of ProcgenEnv that change no level and no picture."""


class _ProcgenAlias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so that a procgen that is installed wins."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the base class's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == MODULE and provided() else None

    def exec_module(self, module: ModuleType) -> None:
        say("the script imports procgen, which is not installed: it gets envpool's Procgen instead")
        module.ProcgenEnv = _environment_class()  # type: ignore[attr-defined]


_ALIAS = _ProcgenAlias()


def install() -> None:
    if _ALIAS not in sys.meta_path:
        sys.meta_path.append(_ALIAS)


def provided() -> bool:
    """Whether there is an envpool to answer for procgen."""
    return importlib.util.find_spec("envpool") is not None


def _environment_class() -> type:
    import gymnasium
    import numpy as np

    from cleanrl_worker.compat.gym023_vector import OldVectorEnv
    from cleanrl_worker.fastlane.wrapper import count_vector_episode, show_vector
    from cleanrl_worker.training.envpool import make_procgen

    class ProcgenEnv(OldVectorEnv):
        """`num_envs` environments of one game. Without `rand_seed` the run's seed decides, or chance where there is none."""

        def __init__(
            self,
            num_envs: int,
            env_name: str,
            *,
            distribution_mode: str = "hard",
            rand_seed: int | None = None,
            **options: Any,
        ) -> None:
            _check_mode(env_name, distribution_mode)
            options = {key: value for key, value in options.items() if key not in _WITHOUT_EFFECT}
            seed = _run_seed() if rand_seed is None else rand_seed
            self.envs = make_procgen(
                env_name, num_envs, seed=seed, distribution_mode=_MODES[distribution_mode], **options
            )
            images = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
            super().__init__(num_envs, gymnasium.spaces.Dict({"rgb": images}), self.envs.single_action_space)
            self._seed = seed

        def reset(self, **_: Any) -> dict[str, np.ndarray]:  # type: ignore[override]
            return self._observations(self.envs.reset(self._seed))

        def step(self, action: Any) -> Any:
            step = self.envs.step(action)
            observations = self._observations(step.obs)
            self.count(step.rewards)
            for episode in step.episodes:
                count_vector_episode(self, episode.ret, episode.length)
            show_vector(self, lambda slots: [observations["rgb"][slot] for slot in slots if slot < self.num_envs])
            done = step.terminated | step.truncated
            return observations, step.rewards, done, [{} for _ in range(self.num_envs)]

        def close(self) -> None:
            self.envs.close()

        @staticmethod
        def _observations(channels_first: np.ndarray) -> dict[str, np.ndarray]:
            return {"rgb": np.ascontiguousarray(channels_first.transpose(0, 2, 3, 1))}

    return ProcgenEnv


def _run_seed() -> int:
    seed = os.environ.get("CLEANRL_SEED", "")
    return int(seed) if seed.isdigit() else secrets.randbelow(2**31 - 1)


def _check_mode(env_name: str, mode: str) -> None:
    """envpool ends the whole process over levels that a game does not have, so they are not asked for."""
    import envpool

    tasks = envpool.list_all_envs()
    here = [known for known in _MODES if f"{env_name.capitalize()}{known.capitalize()}-v0" in tasks]
    if here and mode not in here:
        raise ValueError(f"distribution_mode {mode!r} is not one that {env_name} has: {', '.join(here)}")

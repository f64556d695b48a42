"""stable-baselines3's own vectors of environments, whose steps are a script's as those of gymnasium's are."""

from __future__ import annotations

from typing import Any


def patch_vector(module: Any) -> None:
    """The first one that a script makes counts its steps; another is an evaluation's. Wrappers around one are that one."""
    from cleanrl_worker.fastlane.wrapper import announce_vector, count_vector_step

    vector, wrapper = module.VecEnv, module.VecEnvWrapper
    original = vector.step

    def __new__(cls: Any, *_: Any, **__: Any) -> Any:  # noqa: N807 - it becomes the class's own
        made = object.__new__(cls)
        if cls.step is step and not issubclass(cls, wrapper):  # with a step of its own it would never count
            announce_vector(made)  # before its processes start, which would publish for themselves
        return made

    def step(self: Any, actions: Any) -> Any:
        result = original(self, actions)
        count_vector_step(self.unwrapped, result[1])
        return result

    vector.__new__ = staticmethod(__new__)
    vector.step = step

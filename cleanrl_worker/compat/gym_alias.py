"""`import gym` gives gymnasium, where no real gym is installed.

`gym.x` is the very module `gymnasium.x`, so classes are identical whichever way a script came to them. Installed
libraries that merely probe for gym are told the truth, that there is none. A script that takes four values from `step`
gets the interface of gym 0.23 (see `gym023`), and envpool's "gym" interface is always that.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from cleanrl_worker.compat.hooks import say

_MOVED = {"gym.wrappers.normalize": "gymnasium.wrappers.utils"}
"""Modules that scripts import from and that gymnasium has elsewhere."""


class _GymAlias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so that a gym that is installed wins."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the base class's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "gym" or _real_name(fullname) is None:
            return None
        if fullname == "gym" and _asked_by_library():
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        real = _real_name(module.__name__)
        assert real is not None
        if module.__name__ == "gym":
            _announce()
        sys.modules[module.__name__] = importlib.import_module(real)  # the import machinery returns what stands here


def _announce() -> None:
    from cleanrl_worker.compat import gym023

    if gym023.takes_four_values([_asking_file(), Path(sys.argv[0])]):
        gym023.speak()
        say("the script imports gym, which is not installed: it gets gymnasium instead, in the interface of gym 0.23")
    else:
        say("the script imports gym, which is not installed: it gets gymnasium instead")


def _asked_by_library() -> bool:
    """Whether the import statement under way stands in an installed package."""
    folders = _asking_file().parts
    return "site-packages" in folders or "dist-packages" in folders


def _asking_file() -> Path:
    """The file whose import statement is under way."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to look at one's caller
    while frame is not None and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return Path(frame.f_code.co_filename if frame is not None else "")


def _real_name(fullname: str) -> str | None:
    name = _MOVED.get(fullname, "gymnasium" + fullname.removeprefix("gym"))
    try:
        return name if importlib.util.find_spec(name) is not None else None
    except ModuleNotFoundError:
        return None


_ALIAS = _GymAlias()


def install() -> None:
    if _ALIAS not in sys.meta_path:
        sys.meta_path.append(_ALIAS)


def patch_wrappers(wrappers: Any) -> None:
    # Here and not above: it needs gymnasium, which is not imported before the script does.
    from cleanrl_worker.compat import gym023_wrappers

    gym023_wrappers.patch(wrappers)


def patch_envpool(envpool: Any) -> None:
    """Only where the script's gym is our alias: with a real gym installed, envpool's own interface is right."""
    original = envpool.make

    def make(task_id: str, env_type: str, **kwargs: Any) -> Any:
        if env_type != "gym" or sys.modules.get("gym") is not sys.modules.get("gymnasium"):
            return original(task_id, env_type, **kwargs)
        from cleanrl_worker.fastlane.settings import FastLaneSettings

        if FastLaneSettings.from_env().shown_slots:
            kwargs.setdefault("render_mode", "rgb_array")
        return _old_interface(original(task_id, "gymnasium", **kwargs))

    def make_gym(task_id: str, **kwargs: Any) -> Any:
        return make(task_id, "gym", **kwargs)

    envpool.make, envpool.make_gym = make, make_gym


def _old_interface(pool: Any) -> Any:
    import numpy as np

    from cleanrl_worker.compat.gym023_vector import OldVectorEnv
    from cleanrl_worker.fastlane.wrapper import show_vector

    class OldPool(OldVectorEnv):
        """An envpool as gym 0.23 saw it: `infos` is one dict of arrays, and an ended game restarts in the next step."""

        def __init__(self) -> None:
            super().__init__(pool.num_envs, pool.observation_space, pool.action_space)
            self.pool = pool

        def reset(self, **_: Any) -> Any:
            return pool.reset()[0]

        def step(self, action: Any) -> Any:
            result = _four_values(pool.step(action), np)
            self.count(result[1])
            show_vector(self, self._pictures)
            return result

        def _pictures(self, slots: tuple[int, ...]) -> list[Any]:
            return list(pool.render(np.array([slot for slot in slots if slot < self.num_envs], np.int32)))

        def xla(self) -> Any:
            """envpool's functions for use inside jax, of which `recv` and `step` return the four values."""
            import jax.numpy as jnp

            handle, receive, send, step = pool.xla()

            def old(function: Any) -> Any:
                def call(*args: Any) -> Any:
                    new_handle, result = function(*args)
                    return new_handle, _four_values(result, jnp)

                return call

            return handle, old(receive), send, old(step)

        def close(self) -> None:
            pool.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(pool, name)

    return OldPool()


def _four_values(result: tuple[Any, ...], numpy: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """envpool's five values as four, in arrays of numpy or of jax."""
    observations, rewards, terminated, truncated, infos = result
    infos = {"terminated": terminated.astype(numpy.int32), **infos, "TimeLimit.truncated": truncated}
    return observations, rewards, numpy.logical_or(terminated, truncated), infos

"""`import gym` gives gymnasium, where no real gym is installed.

`gym.x` is the very module `gymnasium.x`, so classes are identical whichever way a script came to them. Installed
libraries that merely probe for gym are told the truth, that there is none. envpool's "gym" interface becomes the old one
that such scripts expect: `reset` returns observations, `step` four values.
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
            say("the script imports gym, which is not installed: it gets gymnasium instead")
        sys.modules[module.__name__] = importlib.import_module(real)  # the import machinery returns what stands here


def _asked_by_library() -> bool:
    """Whether the import statement under way stands in an installed package."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the documented way to look at one's caller
    while frame is not None and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    folders = Path(frame.f_code.co_filename).parts if frame is not None else ()
    return "site-packages" in folders or "dist-packages" in folders


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


def patch_envpool(envpool: Any) -> None:
    """Only where the script's gym is our alias: with a real gym installed, envpool's own interface is right."""
    original = envpool.make

    def make(task_id: str, env_type: str, **kwargs: Any) -> Any:
        if env_type != "gym" or sys.modules.get("gym") is not sys.modules.get("gymnasium"):
            return original(task_id, env_type, **kwargs)
        return _old_interface(original(task_id, "gymnasium", **kwargs))

    envpool.make = make


def _old_interface(pool: Any) -> Any:
    import gymnasium
    import numpy as np

    from cleanrl_worker.fastlane.wrapper import announce_vector, count_vector_step

    class OldInterface(gymnasium.Env[Any, Any]):
        """An envpool as gym 0.23 saw it."""

        def __init__(self) -> None:
            self.pool = pool
            self.observation_space = pool.observation_space
            self.action_space = pool.action_space
            announce_vector(self)

        def reset(self, **_: Any) -> Any:
            return pool.reset()[0]

        def step(self, action: Any) -> Any:
            observations, rewards, terminated, truncated, infos = pool.step(action)
            count_vector_step(self, rewards)
            infos.setdefault("terminated", terminated.astype(np.int32))
            infos["TimeLimit.truncated"] = truncated
            return observations, rewards, np.logical_or(terminated, truncated), infos

        def close(self) -> None:
            pool.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(pool, name)

    return OldInterface()

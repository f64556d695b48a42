"""The interface of gym 0.23, for scripts that `import gym` and were written for it.

There `reset` returned the observations alone and `step` four values: one `done` instead of `terminated` and `truncated`,
and the infos of a vector environment as a list of dicts, in which an ended episode left its `terminal_observation`. The
environments inside stay gymnasium's: only what the script holds in its hands, a vector environment, speaks the old way.

A script says which gym it means by how it takes apart what `step` returns. One that takes four values gets the old way.

Nothing here imports gymnasium, which is patched while it is imported. The classes are in `gym023_vector`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_OLD_VALUES = 4

_spoken = False


def speak() -> None:
    """From now on vector environments of this process speak the old way."""
    global _spoken
    _spoken = True


def spoken() -> bool:
    return _spoken


def takes_four_values(sources: Iterable[Path]) -> bool:
    """Whether one of these files takes `step(...)` apart into four. A file that cannot be read or parsed says nothing."""
    return any(_takes_four(source) for source in sources)


def _takes_four(source: Path) -> bool:
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=names)], value=ast.Call(func=ast.Attribute(attr="step" | "step_wait"))
            ) if len(names) == _OLD_VALUES:
                return True
    return False


def old_step(result: tuple[Any, ...]) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
    """The four values of a gymnasium vector environment's five, that resets in the same step.

    The infos may be gymnasium's dict of arrays or a list of dicts.
    """
    import numpy as np

    observations, rewards, terminated, truncated, infos = result
    terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
    done = terminated | truncated
    listed = infos if isinstance(infos, list) else [_old_info(infos, index) for index in range(len(done))]
    for index in np.flatnonzero(truncated).tolist():
        listed[index]["TimeLimit.truncated"] = not terminated[index]
    return observations, rewards, done, listed


def _old_info(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """The info of one environment. Where its episode ended that is the last one's, with the last observation."""
    from cleanrl_worker.compat.gymnasium029 import member

    own = member(infos, index)
    final_info, final_observation = own.pop("final_info", None), own.pop("final_obs", None)
    if final_observation is None:
        return own
    return {**(final_info or {}), "terminal_observation": final_observation}


def is_old(env: Any) -> bool:
    """Whether this is one of the old vector environments, or a wrapper around one."""
    return getattr(getattr(env, "unwrapped", None), "speaks_gym023", False) is True

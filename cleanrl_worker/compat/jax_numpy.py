"""jax as it is now, seen by a script written for jax 0.4."""

from __future__ import annotations

from typing import Any


def patch_clip(jax_numpy: Any) -> None:
    """`clip` takes `a_min` and `a_max` again, under which scripts give the bounds."""
    original = jax_numpy.clip

    def clip(*args: Any, **kwargs: Any) -> Any:
        for old, new in (("a", "arr"), ("a_min", "min"), ("a_max", "max")):
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
        if "arr" in kwargs:  # positional only
            args = (kwargs.pop("arr"), *args)
        return original(*args, **kwargs)

    jax_numpy.clip = clip

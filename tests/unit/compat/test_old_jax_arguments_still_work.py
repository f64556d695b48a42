from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cleanrl_worker.compat.jax_numpy import patch_clip


def clip(arr: Any = None, /, min: Any = None, max: Any = None) -> tuple[Any, Any, Any]:  # noqa: A002 - jax's own names
    """The signature of today's `jax.numpy.clip`."""
    return arr, min, max


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((5,), {"a_min": 0, "a_max": 3}),
        ((), {"a": 5, "a_min": 0, "a_max": 3}),
        ((5, 0, 3), {}),
        ((5,), {"min": 0, "max": 3}),
    ],
)
def test_bounds_by_either_name(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    jax_numpy = SimpleNamespace(clip=clip)
    patch_clip(jax_numpy)
    assert jax_numpy.clip(*args, **kwargs) == (5, 0, 3)

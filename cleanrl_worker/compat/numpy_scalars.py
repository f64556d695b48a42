"""numpy 2.4 and later, seen by a script that puts arrays of one element where a number goes.

`counts[i] = vector_env_rewards` with one environment worked up to 2.3 and is an error now. An array's assignment cannot be
patched, so the arrays that the script itself makes are of a subclass that still takes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_MAKERS = ("empty", "full", "ones", "zeros")
_FIRST_STRICT = (2, 4)


def patch(numpy: Any) -> None:
    """One-dimensional arrays of numbers that the script makes take arrays of one element for a number."""
    if tuple(int(part) for part in numpy.__version__.split(".")[:2]) < _FIRST_STRICT:
        return

    class Forgiving(numpy.ndarray):  # type: ignore[misc]
        def __setitem__(self, key: Any, value: Any) -> None:
            if isinstance(value, numpy.ndarray) and value.ndim and value.size == 1 and self.ndim == 1:
                value = value.reshape(())
            super().__setitem__(key, value)

        def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
            """What is computed from it is what numpy gives: a sum is a number, where a subclass would have an array."""
            if array is self:  # it was computed into
                return self
            plain = array.view(numpy.ndarray)
            return plain[()] if return_scalar else plain

        def __reduce_ex__(self, protocol: Any) -> Any:
            """Pickled as a plain array: no other process and no later one knows this class."""
            return self.view(numpy.ndarray).__reduce_ex__(protocol)

    def forgiving(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            array = make(*args, **kwargs)
            asked_by = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - libraries get what they always got
            if asked_by == "__main__" and array.ndim == 1 and array.dtype.kind in "biuf":
                return array.view(Forgiving)
            return array

        return made

    for name in _MAKERS:
        setattr(numpy, name, forgiving(getattr(numpy, name)))

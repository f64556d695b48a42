"""Are two checkpoints' states equal, bit for bit?"""

from __future__ import annotations

from typing import Any

import numpy as np


def different(a: Any, b: Any, path: str = "") -> list[str]:
    """The paths at which two trees differ in any bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{path}: {sorted(map(str, a.keys() ^ b.keys()))}"]
        return [line for key in a for line in different(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list | tuple) and type(a) is type(b):
        if len(a) != len(b):
            return [f"{path}: {len(a)} and {len(b)} long"]
        return [line for i, pair in enumerate(zip(a, b, strict=True)) for line in different(*pair, f"{path}/{i}")]
    if hasattr(a, "detach"):
        a, b = a.numpy(), b.numpy()
    if isinstance(a, np.ndarray):
        same = isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    else:
        same = type(a) is type(b) and (a == b or (a != a and b != b))
    return [] if same else [path]

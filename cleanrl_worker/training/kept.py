"""What a checkpoint holds of a run's things: how the state of each is taken, and put back where it was.

A thing is an object with `state_dict` and `load_state_dict`, a dict, an array, a tensor or a random generator of NumPy.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np


def keepable(thing: Any) -> bool:
    """Whether this is a thing whose state can be taken."""
    stateful = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
    return stateful or isinstance(thing, dict | np.ndarray | np.random.Generator) or _is_tensor(thing)


def _is_tensor(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def take(thing: Any) -> Any:
    """The state of a thing; arrays, tensors and dicts are their own."""
    if isinstance(thing, np.random.Generator):
        return dict(thing.bit_generator.state)
    return thing.state_dict() if hasattr(thing, "state_dict") else thing


def put_back(thing: Any, state: Any) -> None:
    """Give a thing the state that was taken. Raises ValueError, KeyError or RuntimeError where it does not fit."""
    if isinstance(thing, np.random.Generator):
        thing.bit_generator.state = state
    elif hasattr(thing, "load_state_dict"):
        thing.load_state_dict(state)
    elif isinstance(thing, dict):
        thing.clear()
        thing.update(state)
    elif thing.shape != state.shape:
        raise ValueError(f"it has shape {tuple(state.shape)}, this run needs {tuple(thing.shape)}")
    elif isinstance(thing, np.ndarray):
        thing[...] = state
    else:
        thing.data.copy_(state)


def random_state() -> dict[str, Any]:
    """The global generators of Python, NumPy and, where it is in use, torch."""
    state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def put_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
            torch.cuda.set_rng_state_all(state["cuda"])

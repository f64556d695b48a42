"""Model files of the algorithms in JAX: flax's bytes.

A file holds nested dicts of arrays: the parameters of one network (`{"params": ...}`), those of several, numbered (`{"0": ...,
"1": ...}`, an actor first), or `{"model_weights", "args"}`. Networks of Dense layers alone become state_dicts with torch's
names, so that everything that knows those knows these too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.training.errors import BadConfig

ACTOR_LAYERS = ("fc1", "fc2", "fc_mu")


def is_flax(head: bytes) -> bool:
    """Whether a file that begins like this holds a map in msgpack's notation; torch's files begin otherwise."""
    return head[:1] != b"" and (0x81 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF))


def read_flax(path: Path) -> Any:
    """The tree in the file. Raises BadConfig when it can't be read."""
    try:
        from flax import serialization
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"{path} is a model of an algorithm in JAX: install the requirement set 'jax' "
            "(python -m cleanrl_worker.tools.install_extras --set jax)."
        ) from error
    try:
        tree = serialization.msgpack_restore(path.read_bytes())
    except Exception as error:  # msgpack and NumPy raise what they like for a file that is none
        raise BadConfig(f"{path} is not a model file that can be read: {error}") from error
    return dict(tree)


def layers_of(tree: Any) -> Mapping[str, Any] | None:
    """The layers of one network in flax's names; None when `tree` is not one."""
    inner = tree.get("params") if isinstance(tree, Mapping) else None
    return inner if isinstance(inner, Mapping) else None


def named_as_torch(model: Any) -> Any:
    """A loaded model with torch's names, where it is flax's and made of Dense layers; any other comes back as it is."""
    if not isinstance(model, Mapping):
        return model
    if "model_weights" in model:
        return {**model, "model_weights": named_as_torch(model["model_weights"])}
    if layers_of(model.get("0")) is not None:
        actor, *critics = (layers_of(model[str(i)]) for i in range(len(model)))
        return (_dense(actor, ACTOR_LAYERS), *(_dense(critic, ("fc1", "fc2", "fc3")) for critic in critics))
    layers = layers_of(model)
    if layers is None or not all(name.startswith("Dense_") for name in layers):
        return model
    return _dense(layers, tuple(f"network.{2 * i}" for i in range(len(layers))))


def _dense(layers: Mapping[str, Any] | None, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        assert layers is not None
        found = {name: layers[f"Dense_{i}"] for i, name in enumerate(names)}
        return {
            f"{name}.{part}": np.ascontiguousarray(np.asarray(value).T)
            for name, layer in found.items()
            for part, value in (("weight", layer["kernel"]), ("bias", layer["bias"]))
        }
    except (KeyError, TypeError, AssertionError) as error:
        raise BadConfig("The model holds networks of flax that are known to none of the algorithms.") from error

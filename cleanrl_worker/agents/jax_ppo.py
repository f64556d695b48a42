"""Actor and critic on a Nature trunk, in flax: three modules, as model files hold them, and the way from them to torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.linen.initializers import constant, orthogonal

from cleanrl_worker.agents.jax_atari import NATURE_FEATURES, scaled

CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, size and stride."""


class Network(nn.Module):
    """The trunk: uint8 images, channels first, to 512 features."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = scaled(images)
        for channels, size, stride in CONVOLUTIONS:
            layer = nn.Conv(
                channels,
                (size, size),
                (stride, stride),
                padding="VALID",
                kernel_init=orthogonal(math.sqrt(2)),
                bias_init=constant(0.0),
            )
            x = nn.relu(layer(x))
        dense = nn.Dense(NATURE_FEATURES, kernel_init=orthogonal(math.sqrt(2)), bias_init=constant(0.0))
        return nn.relu(dense(x.reshape(len(x), -1)))


class Actor(nn.Module):
    actions: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Logits (rows, actions)."""
        return nn.Dense(self.actions, kernel_init=orthogonal(0.01), bias_init=constant(0.0))(features)


class Critic(nn.Module):
    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Values (rows,)."""
        return nn.Dense(1, kernel_init=orthogonal(1.0), bias_init=constant(0.0))(features)[:, 0]


def torch_weights(network: Mapping[str, Any], actor: Mapping[str, Any], critic: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of `agents.atari.NatureAgent` that compute the same. Raises KeyError for other networks."""
    weights: dict[str, Any] = {}
    for i in range(len(CONVOLUTIONS)):
        layer = network["params"][f"Conv_{i}"]
        weights[f"network.{2 * i}.weight"] = np.asarray(layer["kernel"]).transpose(3, 2, 0, 1)
        weights[f"network.{2 * i}.bias"] = np.asarray(layer["bias"])
    dense = network["params"]["Dense_0"]
    kernel = np.asarray(dense["kernel"])  # flax flattens (7, 7, 64), torch (64, 7, 7)
    weights["network.7.weight"] = kernel.reshape(7, 7, 64, -1).transpose(2, 0, 1, 3).reshape(kernel.shape).T
    weights["network.7.bias"] = np.asarray(dense["bias"])
    for name, head in (("actor", actor), ("critic", critic)):
        weights[f"{name}.weight"] = np.asarray(head["params"]["Dense_0"]["kernel"]).T
        weights[f"{name}.bias"] = np.asarray(head["params"]["Dense_0"]["bias"])
    return {name: np.ascontiguousarray(array) for name, array in weights.items()}

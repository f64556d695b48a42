"""Initial weights."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = math.sqrt(2.0)) -> Layer:
    """Orthogonal weights times `gain`, biases zero."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer

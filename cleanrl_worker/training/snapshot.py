"""Many small predictions with the same weights: what acting between two updates needs.

A batch of four rows costs a network of `training/dense.py` hardly any arithmetic: the time goes into the number of NumPy
calls and into broadcasting. So a `Snapshot` prepares what stays the same: the mean that LayerNorm subtracts is taken out
of the weights beforehand (the mean of W x is the mean of W's rows, times x), and gains and shifts have the batch's shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cleanrl_worker.training.dense import LAYER_NORM_EPS, Array, Net


@dataclass(frozen=True)
class _Layer:
    weight: Array
    """Without its mean over the outputs; the bias is the last column."""
    below: Array
    h: Array
    squares: Array
    average: Array
    std: Array
    gain: Array
    shift: Array
    zeros: Array


class Snapshot:
    """A single network with LayerNorm and ReLU, as it is now, for batches of `rows`. Later updates do not change it."""

    def __init__(self, net: Net, rows: int) -> None:
        if net.count != 1 or not net.layer_norm or net.activation != "relu":
            raise ValueError("a Snapshot is made of a single network with LayerNorm and ReLU")
        self._x = below = np.ones((net.inputs + 1, rows), np.float32)
        self._layers: list[_Layer] = []
        for i, width in enumerate(net.hidden):
            matrix, norm = net.layer(i)
            assert norm is not None
            gain, shift = norm
            layer = np.ones((width + 1, rows), np.float32)  # the last row feeds the next layer's bias
            empty = np.empty((width, rows), np.float32)
            self._layers.append(
                _Layer(
                    weight=matrix - matrix.mean(axis=0),
                    below=below,
                    h=layer[:-1],
                    squares=empty,
                    average=np.full((1, width), 1.0 / width, np.float32),
                    std=np.empty((1, rows), np.float32),
                    gain=np.repeat(gain[:, None], rows, axis=1),
                    shift=np.repeat(shift[:, None], rows, axis=1),
                    zeros=np.zeros_like(empty),
                )
            )
            below = layer
        self._top, self._head = below, net.head().copy()
        self._out = np.empty((net.heads[0], rows), np.float32)

    def predict(self, x: Array) -> Array:
        """The outputs for (rows, inputs): (rows, head), a buffer that the next call overwrites."""
        self._x[:-1] = x.T
        for layer in self._layers:
            h, std = layer.h, layer.std
            np.dot(layer.weight, layer.below, out=h)
            np.multiply(h, h, out=layer.squares)
            np.dot(layer.average, layer.squares, out=std)
            np.add(std, LAYER_NORM_EPS, out=std)
            np.sqrt(std, out=std)
            np.divide(h, std, out=h)
            np.multiply(h, layer.gain, out=h)
            np.add(h, layer.shift, out=h)
            np.maximum(h, layer.zeros, out=h)
        return np.dot(self._head, self._top, out=self._out).T

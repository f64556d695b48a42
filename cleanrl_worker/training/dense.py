"""Small dense networks on one CPU core: forward, backward and optimiser steps in NumPy, without autograd.

For networks of this size a framework's bookkeeping costs several times more than the arithmetic. Here a network is one
flat float32 vector with views into it, every intermediate result lives in a buffer that is allocated once per batch
size, and an optimiser step is a handful of passes over the flat vector. An algorithm writes down the gradient of its
loss at the network's outputs; everything below that is in this module:

    net = Net(4, (64, 64), heads=(2, 1), activation="tanh", names=(sequential("actor"), sequential("critic")))
    net.init_orthogonal(rng, head_gains=(0.01, 1.0))
    optimizer = Adam(net.flat, eps=1e-5)

    logits, value = net.forward(obs)
    net.backward((grad_logits, grad_value))      # d loss / d outputs -> net.grad
    clip_grad_norm(net.grad, 0.5)
    optimizer.step(net.grad, lr)

A `Net` is one or more *parallel* networks with the same hidden layers and inputs and no shared weights (actor and
critic): each layer of all of them is one batched product. That saves calls, which is what small layers spend their time
on; layers of 256 are better off as networks of their own, whose activations stay in the cache.

How it is laid out, so that nearly all of the time goes into matrix products: a layer's bias is the last column of its
weight matrix, and what it reads ends in a row of ones, so one product adds the bias and one gives its gradient. For
that, hidden layers are kept as (width + 1, batch): the values are one contiguous block in front of the ones. Gradients
at the hidden layers, and what `predict` computes, live in memory that all networks share: it stays in the cache.

Rules: inputs and output gradients are C-contiguous float32; outputs are buffers that the next `forward` or `predict` with
the same batch size overwrites; `backward` belongs to the latest `forward`.

`state_dict` and `load_state_dict` speak torch's layout (weight [out, in], bias), to exchange files with torch modules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Activation = Literal["tanh", "relu"]

LAYER_NORM_EPS = np.array(1e-5, np.float32)
ONE = np.array(1.0, np.float32)
TINY = np.finfo(np.float32).tiny
"""Arrays, because NumPy takes longer over Python's numbers than over a small layer."""

FLUSH_EVERY = 100
NEGLIGIBLE = 1e-30
"""A moment of Adam below this is zero: it moves no weight, and it would decay into denormal numbers (see `Adam._flush`)."""

RELU_ROW = 16384
"""The numbers that one inner loop of ReLU handles at most: what they are compared with stays in the cache."""

_shared: dict[tuple[object, ...], Array] = {}
"""Memory for what no call leaves behind, by purpose and shape."""


def _share(purpose: str, shape: tuple[int, ...]) -> Array:
    array = _shared.get((purpose, *shape))
    if array is None:
        array = _shared[(purpose, *shape)] = np.empty(shape, np.float32)
    return array


def sequential(prefix: str, hidden: int = 2, *, layer_norm: bool = False) -> tuple[str, ...]:
    """The names torch gives to the Linear layers of `nn.Sequential(Linear, [LayerNorm,] activation, ..., Linear)`."""
    return tuple(f"{prefix}.{i * (3 if layer_norm else 2)}" for i in range(hidden + 1))


def _norm_name(linear: str) -> str:
    """The LayerNorm that follows a Linear in a Sequential has the next index."""
    prefix, _, index = linear.rpartition(".")
    return f"{prefix}.{int(index) + 1}"


@dataclass
class _Buffers:
    """What one batch size needs. For parallel networks, hidden layers have a leading axis for the network."""

    x: Array
    """The inputs and a column of ones: (batch, inputs + 1)."""
    layers: list[Array]
    """The hidden layers with a row of ones at the end: (width + 1, batch)."""
    h: list[Array]
    """The same without the ones: (width, batch)."""
    g: list[Array]
    """The gradients there."""
    relu: list[_Relu]
    tops: list[Array]
    """Each network's last hidden layer, ones included, transposed: (batch, width + 1)."""
    grad_tops: list[Array]
    out: list[Array]
    ones: Array
    grad_x: Array
    xhat: list[Array]
    std: list[Array]

    def __post_init__(self) -> None:
        self.values = self.x[:, :-1]
        self.x_t = self.x.T
        self.layers_t = [layer.swapaxes(-1, -2) for layer in self.layers]


class _Relu:
    """max(h, 0) in place, and its gradient, on long rows: NumPy is quick where its inner loop is long."""

    def __init__(self, h: Array, g: Array) -> None:
        width, batch = h.shape[-2:]
        rows = max(r for r in range(1, width + 1) if width % r == 0 and (r == 1 or r * batch <= RELU_ROW))
        shape = (*h.shape[:-2], -1, rows * batch)
        self._h = h.reshape(shape)
        self._bits, self._grad_bits = self._h.view(np.uint32), g.reshape(shape).view(np.uint32)
        # arrays to compare with, because NumPy has no quick loop for comparing with a number
        self._zero, self._one = np.zeros(rows * batch, np.float32), np.ones(rows * batch, np.uint32)

    def forward(self) -> None:
        np.maximum(self._h, self._zero, out=self._h)

    def backward(self) -> None:
        """Zero the gradient where h is zero; h is used up.

        As whole numbers: h's bits become 0 or 1, and the gradient's bits times that are the gradient or 0. The same with a
        comparison and a product of floats and booleans takes twice as long.
        """
        np.minimum(self._bits, self._one, out=self._bits)
        np.multiply(self._grad_bits, self._bits, out=self._grad_bits)


class Net:
    """Parallel multi-layer perceptrons over one flat parameter vector.

    `heads` gives the output size of each network, `names` its Linear layers' names in torch's state_dict (by default
    `network.0`, `network.2`, ...). `extra` adds parameters outside the layers (a state-independent log-std, say) to the
    same vector. `flat` and `grad` are the parameters and the gradient that `backward` writes; `views` and `grad_views`
    give both by name.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        heads: Sequence[int],
        *,
        activation: Activation,
        layer_norm: bool = False,
        names: Sequence[Sequence[str]] | None = None,
        extra: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        if not hidden or not heads:
            raise ValueError("a Net needs at least one hidden layer and one head")
        if layer_norm and len(heads) > 1:
            raise ValueError("LayerNorm is for a single network")
        self.inputs, self.hidden, self.heads = inputs, tuple(hidden), tuple(heads)
        self.activation, self.layer_norm = activation, layer_norm
        self.count = len(self.heads)
        if names is None:
            if self.count > 1:
                raise ValueError("parallel networks need names, so that their weights can be told apart")
            names = (sequential("network", len(self.hidden), layer_norm=layer_norm),)
        self.names = tuple(tuple(n) for n in names)
        if len(self.names) != self.count or any(len(n) != len(self.hidden) + 1 for n in self.names):
            raise ValueError("names must give one name per layer, hidden layers and head, for each network")

        k, widths = self.count, (inputs, *self.hidden)
        shapes: list[tuple[int, ...]] = []
        for i, width in enumerate(self.hidden):
            shapes += [(k, width, widths[i] + 1)]
            if layer_norm:
                shapes += [(k, width), (k, width)]
        for head in self.heads:
            shapes += [(head, self.hidden[-1] + 1)]
        shapes += list((extra or {}).values())
        size = sum(math.prod(s) for s in shapes)
        self.flat: Array = np.zeros(size, np.float32)
        self.grad: Array = np.zeros(size, np.float32)
        self.views: dict[str, Array] = {}
        self.grad_views: dict[str, Array] = {}
        self._p = self._bind(self.flat, shapes, self.views, tuple(extra or ()))
        self._d = self._bind(self.grad, shapes, self.grad_views, tuple(extra or ()))
        self._product: Any = np.dot if self.count == 1 else np.matmul
        self._buffers: dict[int, _Buffers] = {}
        self._passing: dict[int, _Buffers] = {}
        self._last: _Buffers | None = None

    def _bind(
        self, flat: Array, shapes: Sequence[tuple[int, ...]], views: dict[str, Array], extra: tuple[str, ...]
    ) -> _Parts:
        """Cut `flat` into the layers' arrays and file a view of each network's share under its name."""
        arrays, start = [], 0
        for shape in shapes:
            stop = start + math.prod(shape)
            arrays.append(flat[start:stop].reshape(shape))
            start = stop
        per_layer, depth = (3 if self.layer_norm else 1), len(self.hidden)
        layers = [arrays[i * per_layer : (i + 1) * per_layer] for i in range(depth)]
        heads, others = arrays[depth * per_layer :][: self.count], arrays[depth * per_layer + self.count :]
        for n, names in enumerate(self.names):
            for name, layer in zip(names, layers, strict=False):
                views[f"{name}.weight"], views[f"{name}.bias"] = layer[0][n][:, :-1], layer[0][n][:, -1]
                if self.layer_norm:
                    norm = _norm_name(name)
                    views[f"{norm}.weight"], views[f"{norm}.bias"] = layer[1][n], layer[2][n]
            views[f"{names[-1]}.weight"], views[f"{names[-1]}.bias"] = heads[n][:, :-1], heads[n][:, -1]
        views.update(zip(extra, others, strict=True))
        return _Parts(layers, heads)

    # ---------------------------------------------------------------- forward and backward

    def forward(self, x: Array) -> list[Array]:
        """The outputs of each network for a batch of inputs (batch, inputs). Keeps what `backward` needs."""
        buf = self._buffers.get(len(x)) or self._allocate(len(x), keep=True)
        self._last = buf
        return self._compute(buf, x)

    def predict(self, x: Array) -> list[Array]:
        """The same for outputs that no `backward` follows, in shared memory. An earlier `forward` stays the latest."""
        return self._compute(self._passing.get(len(x)) or self._allocate(len(x), keep=False), x)

    def _compute(self, buf: _Buffers, x: Array) -> list[Array]:
        np.copyto(buf.values, x)
        p, product, below = self._p, self._product, buf.x_t
        for i, h in enumerate(buf.h):
            product(p.matrices[i], below, out=h)
            if self.layer_norm:
                self._normalise(buf, i)
            if self.activation == "tanh":
                np.tanh(h, out=h)
            else:
                buf.relu[i].forward()
            below = buf.layers[i]
        for top, head_t, out in zip(buf.tops, p.heads_t, buf.out, strict=True):
            np.dot(top, head_t, out=out)
        return buf.out

    def backward(self, grads: Sequence[Array]) -> None:
        """From d loss / d outputs of the latest `forward` to d loss / d parameters, written into `grad`.

        Gradients of `extra` parameters are the caller's to write.
        """
        self._propagate(grads, params=True)

    def input_gradient(self, grads: Sequence[Array]) -> Array:
        """From d loss / d outputs of the latest `forward` to d loss / d inputs, summed over the parallel networks.

        Leaves `grad` alone: this is for a network that only passes a gradient through, as a critic does for its actor.
        """
        buf = self._propagate(grads, params=False)
        return np.dot(buf.g[0].reshape(-1, len(buf.x)).T, self._p.first, out=buf.grad_x)

    def _propagate(self, grads: Sequence[Array], *, params: bool) -> _Buffers:
        buf = self._last
        if buf is None:
            raise RuntimeError("backward needs a forward before it")
        self._last = None  # what forward kept is used up below
        p, d, product = self._p, self._d, self._product
        for n, weight_t in enumerate(p.head_weights_t):
            if weight_t.shape[1] == 1:  # an outer product, which BLAS is slow at
                np.multiply(weight_t, grads[n].T, out=buf.grad_tops[n])
            else:
                np.dot(weight_t, grads[n].T, out=buf.grad_tops[n])
            if params:
                np.dot(grads[n].T, buf.tops[n], out=d.heads[n])
        for i in range(len(self.hidden) - 1, -1, -1):
            g, h = buf.g[i], buf.h[i]
            if self.activation == "tanh":
                np.multiply(h, h, out=h)
                np.subtract(ONE, h, out=h)
                np.multiply(g, h, out=g)
            else:
                buf.relu[i].backward()
            if self.layer_norm:
                self._normalise_backward(buf, i, params=params)
            if params:
                product(g, buf.layers_t[i - 1] if i else buf.x, out=d.matrices[i])
            if i:
                np.matmul(p.weights_t[i], g, out=buf.g[i - 1])  # np.dot would copy a matrix without its last column
        return buf

    def _normalise(self, buf: _Buffers, i: int) -> None:
        """LayerNorm of hidden layer i in place. Keeps the normalised values and their deviation for the way back."""
        z, xhat, std, average = buf.h[i], buf.xhat[i], buf.std[i], self._p.averages[i]
        gain, shift = self._p.norms[i]
        np.dot(average, z, out=std)
        np.subtract(z, std, out=xhat)
        np.multiply(xhat, xhat, out=z)
        np.dot(average, z, out=std)
        np.add(std, LAYER_NORM_EPS, out=std)
        np.sqrt(std, out=std)
        np.divide(xhat, std, out=xhat)
        np.multiply(xhat, gain, out=z)
        np.add(z, shift, out=z)

    def _normalise_backward(self, buf: _Buffers, i: int, *, params: bool) -> None:
        g, xhat, scratch, average = buf.g[i], buf.xhat[i], buf.h[i], self._p.averages[i]
        gain, _ = self._p.norms[i]
        if params:
            grad_gain, grad_shift = self._d.norms[i]
            np.multiply(g, xhat, out=scratch)
            np.dot(scratch, buf.ones, out=grad_gain)
            np.dot(g, buf.ones, out=grad_shift)
        np.multiply(g, gain, out=g)
        np.multiply(g, xhat, out=scratch)
        along, mean = np.dot(average, scratch), np.dot(average, g)
        np.multiply(xhat, along, out=scratch)
        np.subtract(g, scratch, out=g)
        np.subtract(g, mean, out=g)
        np.divide(g, buf.std[i], out=g)

    def _allocate(self, batch: int, *, keep: bool) -> _Buffers:
        one = self.count == 1
        lead = () if one else (self.count,)

        def layer(i: int, width: int) -> Array:
            shape = (*lead, width + 1, batch)
            array: Array = np.empty(shape, np.float32) if keep else _share(f"layer {i}", shape)
            array[..., -1, :] = 1.0
            return array

        layers = [layer(i, width) for i, width in enumerate(self.hidden)]
        h = [array[..., :-1, :] for array in layers]
        g = [_share(f"gradient {i}", array.shape) for i, array in enumerate(h)]
        x = np.ones((batch, self.inputs + 1), np.float32)
        norms = [array.shape for array in h] if self.layer_norm else []
        buf = _Buffers(
            x=x,
            layers=layers,
            h=h,
            g=g,
            relu=[_Relu(values, grad) for values, grad in zip(h, g, strict=True)],
            tops=[layers[-1].T] if one else [top.T for top in layers[-1]],
            grad_tops=[g[-1]] if one else list(g[-1]),
            out=[np.empty((batch, head), np.float32) for head in self.heads],
            ones=np.ones((batch, 1), np.float32),
            grad_x=np.empty((batch, self.inputs), np.float32),
            xhat=[np.empty(shape, np.float32) for shape in norms],
            std=[np.empty((1, batch), np.float32) for _ in norms],
        )
        (self._buffers if keep else self._passing)[batch] = buf
        return buf

    def layer(self, i: int) -> tuple[Array, tuple[Array, Array] | None]:
        """Of a single network: hidden layer i's matrix with its bias as the last column, and LayerNorm's (gain, shift)."""
        matrix, *norm = self._p.layers[i]
        return matrix[0], (norm[0][0], norm[1][0]) if norm else None

    def head(self) -> Array:
        """Of a single network: the head's matrix with its bias as the last column."""
        return self._p.heads[0]

    # ---------------------------------------------------------------- initial weights

    def init_orthogonal(
        self, rng: np.random.Generator, *, head_gains: Sequence[float], hidden_gain: float = math.sqrt(2.0)
    ) -> None:
        """Orthogonal weights with a gain per layer, biases 0; LayerNorm starts as the identity."""
        self._reset()
        for n, names in enumerate(self.names):
            for i, name in enumerate(names):
                weight = self.views[f"{name}.weight"]
                weight[:] = orthogonal(rng, weight.shape, head_gains[n] if i == len(self.hidden) else hidden_gain)

    def init_uniform(self, rng: np.random.Generator) -> None:
        """What torch's Linear starts with: weights and biases uniform within 1 / sqrt(fan-in)."""
        self._reset()
        for names in self.names:
            for name in names:
                weight, bias = self.views[f"{name}.weight"], self.views[f"{name}.bias"]
                bound = 1.0 / math.sqrt(weight.shape[1])
                weight[:] = rng.uniform(-bound, bound, weight.shape)
                bias[:] = rng.uniform(-bound, bound, bias.shape)

    def _reset(self) -> None:
        self.flat[:] = 0.0
        for names in self.names:
            for name in names[:-1] if self.layer_norm else ():
                self.views[f"{_norm_name(name)}.weight"][:] = 1.0

    # ---------------------------------------------------------------- exchange with torch

    def state_dict(self) -> dict[str, Array]:
        """Copies of the parameters by torch's names."""
        return {name: view.copy() for name, view in self.views.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take parameters by name from arrays or CPU tensors. Missing names and wrong shapes are refused."""
        load_named(self.views, state)


@dataclass
class _Parts:
    """Each layer's [matrix (nets, out, in + 1), (gain, shift)], then a matrix (out, in + 1) per head."""

    layers: list[list[Array]]
    heads: list[Array]

    def __post_init__(self) -> None:
        one = len(self.heads) == 1
        self.matrices = [layer[0][0] if one else layer[0] for layer in self.layers]
        self.weights_t = [matrix[..., :-1].swapaxes(-1, -2) for matrix in self.matrices]
        self.heads_t = [head.T for head in self.heads]
        self.head_weights_t = [head[:, :-1].T for head in self.heads]
        self.first = self.layers[0][0].reshape(-1, self.layers[0][0].shape[-1])[:, :-1]
        """The first layers of all networks as one matrix: they read the same inputs."""
        self.norms = [(layer[1].T, layer[2].T) for layer in self.layers if len(layer) > 1]
        self.averages = [np.full((1, matrix.shape[-2]), 1.0 / matrix.shape[-2], np.float32) for matrix in self.matrices]
        """A product with one of these is the mean over a layer, quicker than np.mean."""


def load_named(views: Mapping[str, Array], state: Mapping[str, Any]) -> None:
    """Copy each named array of `state` into its view."""
    for name, view in views.items():
        if name not in state:
            raise ValueError(f"the saved weights have no {name!r}; they have {', '.join(sorted(state))}")
        value = np.asarray(state[name], np.float32)
        if value.shape != view.shape:
            raise ValueError(f"saved weight {name!r} has shape {value.shape}, this network needs {view.shape}")
        view[...] = value


def orthogonal(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
    """A random matrix with orthonormal rows or columns (Saxe et al. 2014), uniformly distributed, times `gain`."""
    rows, columns = shape
    q, r = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
    q *= np.sign(np.diag(r))  # without this the distribution leans on LAPACK's sign convention
    return np.asarray(gain * (q if rows >= columns else q.T), np.float32)


# ---------------------------------------------------------------- optimisers, over one flat vector


class Adam:
    """Adam (Kingma & Ba 2015) with bias correction, `eps` added to the corrected root as torch does.

    The moments are kept as sums: without the factors (1 - beta) that make them averages, which saves two passes.
    """

    def __init__(
        self, flat: Array, lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self.flat, self.lr, self.betas, self.eps = flat, lr, betas, eps
        self.steps = 0
        self.first: Array = np.zeros_like(flat)
        self.second: Array = np.zeros_like(flat)
        self._scratch: Array = np.empty_like(flat)

    def step(self, grad: Array, lr: float | None = None) -> None:
        """Move the parameters down `grad`, with `lr` in place of the constructor's when given."""
        self._add(grad)
        beta1, beta2 = self.betas
        # with m, v the averages: m / c1 / (sqrt(v / c2) + eps) = root / c1 * m / (sqrt(v) + eps * root), root = sqrt(c2)
        root = math.sqrt(1.0 - beta2**self.steps)
        self._move(self.eps * root, (self.lr if lr is None else lr) * root / (1.0 - beta1**self.steps))

    def _add(self, grad: Array) -> None:
        """Take one more gradient into the moments."""
        self.steps += 1
        np.multiply(self.first, self.betas[0], out=self.first)
        np.add(self.first, grad, out=self.first)
        np.multiply(self.second, self.betas[1], out=self.second)
        np.multiply(grad, grad, out=self._scratch)
        np.add(self.second, self._scratch, out=self.second)
        if self.steps % FLUSH_EVERY == 0:
            self._flush()

    def _flush(self) -> None:
        """Set what is left of long gone gradients to zero.

        A unit that no longer fires leaves its weights without gradients, and their moments shrink by a fixed factor at each
        step: after some 800 steps they are denormal numbers, where rounding keeps them for ever and a processor takes many
        times as long over each. A fifth of ddpg's first moments ended there and made its Adam three times as slow. Between
        two calls nothing falls from NEGLIGIBLE to a denormal number.
        """
        for moment in (self.first, self.second):
            np.abs(moment, out=self._scratch)
            np.copyto(moment, 0.0, where=self._scratch < NEGLIGIBLE)

    def _move(self, eps: float, rate: float) -> None:
        """flat -= rate * m / (sqrt(v) + eps), with m and v the averages behind the two sums."""
        s, scale = self._scratch, math.sqrt(1.0 - self.betas[1])
        np.sqrt(self.second, out=s)
        np.add(s, eps / scale, out=s)
        np.divide(self.first, s, out=s)
        np.multiply(s, rate * (1.0 - self.betas[0]) / scale, out=s)
        np.subtract(self.flat, s, out=self.flat)

    def averages(self) -> tuple[Array, Array]:
        """The moments as torch keeps them: exp_avg and exp_avg_sq."""
        return self.first * np.float32(1.0 - self.betas[0]), self.second * np.float32(1.0 - self.betas[1])

    def state_dict(self) -> dict[str, Any]:
        """The moments as flat vectors (in the network's own order) and the number of steps taken."""
        return {"step": self.steps, "first": self.first.copy(), "second": self.second.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_named({"first": self.first, "second": self.second}, state)
        self.steps = int(state["step"])


class RAdam(Adam):
    """Rectified Adam (Liu et al. 2020): plain momentum until the second moment's variance is known to be bounded."""

    def step(self, grad: Array, lr: float | None = None) -> None:
        self._add(grad)
        (beta1, beta2), t = self.betas, self.steps
        rate = (self.lr if lr is None else lr) / (1.0 - beta1**t)
        rho_inf = 2.0 / (1.0 - beta2) - 1.0
        rho = rho_inf - 2.0 * t * beta2**t / (1.0 - beta2**t)
        if rho > 5.0:
            rectify = math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
            self._move(self.eps, rate * rectify * math.sqrt(1.0 - beta2**t))
        else:
            np.multiply(self.first, rate * (1.0 - beta1), out=self._scratch)
            np.subtract(self.flat, self._scratch, out=self.flat)


def clip_grad_norm(grad: Array, max_norm: float) -> float:
    """Scale `grad` in place so that its 2-norm is at most `max_norm`; returns the norm it had."""
    norm = math.sqrt(float(np.dot(grad, grad)))
    if (coefficient := max_norm / (norm + 1e-6)) < 1.0:
        np.multiply(grad, coefficient, out=grad)
    return norm


def polyak(target: Array, source: Array, tau: float) -> None:
    """target <- (1 - tau) * target + tau * source, in place; a plain copy when tau is 1."""
    if tau == 1.0:
        target[:] = source
        return
    way = np.subtract(source, target, out=_share("polyak", target.shape))
    np.multiply(way, tau, out=way)
    np.add(target, way, out=target)


def mean(values: Array) -> float:
    """The mean of a vector, without the ceremony of np.mean, which costs more than a small layer."""
    return float(np.add.reduce(values)) / len(values)


def log_softmax(logits: Array) -> Array:
    """Log-probabilities over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), np.float32)


def draw(logits: Array, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """One index a row, drawn from the softmax of its logits: the largest of logit + Gumbel noise.

    One float32 exponential in nine million is exactly zero, and the logarithm of that is no number.
    """
    waits = rng.standard_exponential(logits.shape, dtype=np.float32)
    return np.asarray((logits - np.log(np.maximum(waits, TINY, out=waits))).argmax(axis=1))

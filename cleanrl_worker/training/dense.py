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
critic): their first layers are one matrix product, the others one batched product. That saves calls, which is what small
layers spend their time on; layers of 256 are better off as networks of their own, whose activations stay in the cache.

Rules that keep it fast: inputs and output gradients are C-contiguous float32; outputs are buffers that the next
`forward` with the same batch size overwrites; `backward` belongs to the latest `forward`, its input still unchanged.

`state_dict` and `load_state_dict` speak torch's layout (weight [out, in], bias), to exchange files with torch modules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Activation = Literal["tanh", "relu"]

LAYER_NORM_EPS = np.array(1e-5, np.float32)
ONE = np.array(1.0, np.float32)
"""Arrays, because NumPy takes longer over Python's numbers than over a small layer."""


def sequential(prefix: str, hidden: int = 2, *, layer_norm: bool = False) -> tuple[str, ...]:
    """The names torch gives to the Linear layers of `nn.Sequential(Linear, [LayerNorm,] activation, ..., Linear)`."""
    return tuple(f"{prefix}.{i * (3 if layer_norm else 2)}" for i in range(hidden + 1))


def _norm_name(linear: str) -> str:
    """The LayerNorm that follows a Linear in a Sequential has the next index."""
    prefix, _, index = linear.rpartition(".")
    return f"{prefix}.{int(index) + 1}"


@dataclass
class _Buffers:
    """What one batch size needs."""

    h: list[Array]
    """The hidden layers, with all networks side by side: (batch, nets * width)."""
    g: list[Array]
    """The gradients there."""
    nets: list[Array]
    """The same memory as `h`, network by network: (nets, batch, width)."""
    grad_nets: list[Array]
    tops: list[Array]
    """Each network's last hidden layer: (batch, width)."""
    grad_tops: list[Array]
    out: list[Array]
    mask: list[npt.NDArray[np.bool_]]
    zeros: list[Array]
    """A row of zeros per layer to compare it with: four times quicker than comparing it with a number."""
    ones: Array
    grad_x: Array
    x: Array
    xhat: list[Array] = field(default_factory=list)
    std: list[Array] = field(default_factory=list)


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
            shapes += [(k, width, widths[i]), (k, width)]
            if layer_norm:
                shapes += [(k, width), (k, width)]
        for head in self.heads:
            shapes += [(head, self.hidden[-1]), (head,)]
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
        per_layer, depth = (4 if self.layer_norm else 2), len(self.hidden)
        layers = [arrays[i * per_layer : (i + 1) * per_layer] for i in range(depth)]
        tail = arrays[depth * per_layer :]
        heads = [(tail[2 * n], tail[2 * n + 1]) for n in range(self.count)]
        for n, names in enumerate(self.names):
            for i, layer in enumerate(layers):
                views[f"{names[i]}.weight"], views[f"{names[i]}.bias"] = layer[0][n], layer[1][n]
                if self.layer_norm:
                    norm = _norm_name(names[i])
                    views[f"{norm}.weight"], views[f"{norm}.bias"] = layer[2][n], layer[3][n]
            views[f"{names[-1]}.weight"], views[f"{names[-1]}.bias"] = heads[n]
        views.update(zip(extra, tail[2 * self.count :], strict=True))
        return _Parts(layers, heads)

    # ---------------------------------------------------------------- forward and backward

    def forward(self, x: Array) -> list[Array]:
        """The outputs of each network for a batch of inputs (batch, inputs). Keeps what `backward` needs."""
        buf = self._buffers.get(len(x)) or self._allocate(len(x))
        self._last, buf.x = buf, x
        p, product = self._p, self._product
        np.dot(x, p.first.T, out=buf.h[0])
        for i, h in enumerate(buf.h):
            if i:
                product(buf.nets[i - 1], p.weights_t[i], out=buf.nets[i])
            np.add(h, p.biases[i], out=h)
            if self.layer_norm:
                self._normalise(buf, i)
            if self.activation == "tanh":
                np.tanh(h, out=h)
            else:
                np.maximum(h, buf.zeros[i], out=h)
        for n, (weight, bias) in enumerate(p.heads):
            out = product(buf.tops[n], weight.T, out=buf.out[n])
            np.add(out, bias, out=out)
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
        return np.dot(buf.g[0], self._p.first, out=buf.grad_x)

    def _propagate(self, grads: Sequence[Array], *, params: bool) -> _Buffers:
        buf = self._last
        if buf is None:
            raise RuntimeError("backward needs a forward before it")
        self._last = None  # what forward kept is used up below
        p, d, product = self._p, self._d, self._product
        for n, (weight, _) in enumerate(p.heads):
            if len(weight) == 1:  # an outer product, which BLAS is slow at
                np.multiply(grads[n], weight, out=buf.grad_tops[n])
            else:
                product(grads[n], weight, out=buf.grad_tops[n])
            if params:
                product(grads[n].T, buf.tops[n], out=d.heads[n][0])
                np.dot(buf.ones, grads[n], out=d.heads[n][1])
        for i in range(len(self.hidden) - 1, -1, -1):
            g, h = buf.g[i], buf.h[i]
            if self.activation == "tanh":
                np.multiply(h, h, out=h)
                np.subtract(ONE, h, out=h)
                np.multiply(g, h, out=g)
            else:
                np.greater(h, buf.zeros[i], out=buf.mask[i])
                np.multiply(g, buf.mask[i], out=g)
            if self.layer_norm:
                self._normalise_backward(buf, i, params=params)
            if params:
                np.dot(buf.ones, g, out=d.biases[i])
                if i:
                    product(buf.grad_nets[i].swapaxes(-1, -2), buf.nets[i - 1], out=d.weights[i])
                else:
                    np.dot(g.T, buf.x, out=d.first)
            if i:
                product(buf.grad_nets[i], p.weights[i], out=buf.grad_nets[i - 1])
        return buf

    def _normalise(self, buf: _Buffers, i: int) -> None:
        """LayerNorm of hidden layer i in place. Keeps the normalised values and their deviation for the way back."""
        z, xhat, std, average = buf.h[i], buf.xhat[i], buf.std[i], self._p.averages[i]
        _, _, gain, shift = self._p.layers[i]
        np.dot(z, average, out=std)
        np.subtract(z, std, out=xhat)
        np.multiply(xhat, xhat, out=z)
        np.dot(z, average, out=std)
        np.add(std, LAYER_NORM_EPS, out=std)
        np.sqrt(std, out=std)
        np.divide(xhat, std, out=xhat)
        np.multiply(xhat, gain, out=z)
        np.add(z, shift, out=z)

    def _normalise_backward(self, buf: _Buffers, i: int, *, params: bool) -> None:
        g, xhat, scratch, average = buf.g[i], buf.xhat[i], buf.h[i], self._p.averages[i]
        _, _, gain, _ = self._p.layers[i]
        if params:
            _, _, grad_gain, grad_shift = self._d.layers[i]
            np.multiply(g, xhat, out=scratch)
            np.dot(buf.ones, scratch, out=grad_gain[0])
            np.dot(buf.ones, g, out=grad_shift[0])
        np.multiply(g, gain, out=g)
        np.multiply(g, xhat, out=scratch)
        along, mean = np.dot(scratch, average), np.dot(g, average)
        np.multiply(xhat, along, out=scratch)
        np.subtract(g, scratch, out=g)
        np.subtract(g, mean, out=g)
        np.divide(g, buf.std[i], out=g)

    def _allocate(self, batch: int) -> _Buffers:
        k, widths = self.count, [self.count * w for w in self.hidden]
        h, g = ([np.empty((batch, w), np.float32) for w in widths] for _ in range(2))

        def apart(side_by_side: Array) -> Array:
            """(batch, nets * width) seen as (nets, batch, width), without a copy; as it is when there is one network."""
            return side_by_side if k == 1 else side_by_side.reshape(batch, k, -1).transpose(1, 0, 2)

        def columns(top: Array) -> list[Array]:
            return [top[:, n * self.hidden[-1] : (n + 1) * self.hidden[-1]] for n in range(k)]

        buf = _Buffers(
            h=h,
            g=g,
            nets=[apart(a) for a in h],
            grad_nets=[apart(a) for a in g],
            tops=columns(h[-1]),
            grad_tops=columns(g[-1]),
            out=[np.empty((batch, head), np.float32) for head in self.heads],
            mask=[np.empty((batch, w), np.bool_) for w in widths],
            zeros=[np.zeros(w, np.float32) for w in widths],
            ones=np.ones(batch, np.float32),
            grad_x=np.empty((batch, self.inputs), np.float32),
            x=np.empty((0, self.inputs), np.float32),
        )
        if self.layer_norm:
            buf.xhat = [np.empty((batch, w), np.float32) for w in widths]
            buf.std = [np.empty((batch, 1), np.float32) for _ in widths]
        self._buffers[batch] = buf
        return buf

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
    """Each layer's [weight (nets, out, in), bias (nets, out), (gain, shift)], then a (weight, bias) per head."""

    layers: list[list[Array]]
    heads: list[tuple[Array, Array]]

    def __post_init__(self) -> None:
        one = len(self.heads) == 1
        self.weights = [layer[0][0] if one else layer[0] for layer in self.layers]
        self.weights_t = [weight.swapaxes(-1, -2) for weight in self.weights]
        self.biases = [layer[1].reshape(-1) for layer in self.layers]
        self.first = self.layers[0][0].reshape(-1, self.layers[0][0].shape[-1])
        """The first layers of all networks as one matrix: they read the same inputs."""
        self.averages = [np.full((len(bias), 1), 1.0 / len(bias), np.float32) for bias in self.biases]
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
    np.multiply(target, 1.0 - tau, out=target)
    target += tau * source


def log_softmax(logits: Array) -> Array:
    """Log-probabilities over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), np.float32)

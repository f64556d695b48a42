"""From the same weights and lessons, the student in JAX becomes what the one in torch becomes."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import Any

import jax
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore]
import torch
from torch import nn

from cleanrl_worker.agents import atari, atari_values, jax_atari
from cleanrl_worker.algorithms import qdagger_dqn_atari_impalacnn as in_torch
from cleanrl_worker.algorithms import qdagger_dqn_atari_jax_impalacnn as in_jax
from cleanrl_worker.algorithms.dqn_jax import State
from cleanrl_worker.training.replay import Batch

ROWS, ACTIONS = 6, 3
# Sides that stay odd when they are halved: 81, 41, 21, 11. Where a side is even, flax pads the pooling at its end alone and
# torch at both ends, so their windows are a pixel apart. 84 ends in 11 too, so the network is the real one.
SIDE = 81
STEPS = 3
SETTINGS: Any = {"gamma": 0.9, "temperature": 0.7, "learning_rate": 1e-4}


def lesson() -> in_torch.Lesson:
    rng = np.random.default_rng(0)
    obs, next_obs = rng.integers(0, 256, (2, ROWS, 4, SIDE, SIDE), np.uint8)
    batch = Batch(
        obs=obs,
        action=rng.integers(0, ACTIONS, ROWS),
        reward=rng.standard_normal(ROWS, np.float32),
        next_obs=next_obs,
        terminated=(np.arange(ROWS) % 3 == 0).astype(np.float32),
    )
    advice = rng.dirichlet(np.ones(ACTIONS), ROWS).astype(np.float32)
    return in_torch.Lesson(batch, advice, (np.arange(ROWS) % 2).astype(np.float32))


def layer(of: nn.Module) -> dict[str, Any]:
    """Kernels have their outputs last in flax, and their inputs before them."""
    assert isinstance(of, nn.Conv2d | nn.Linear) and of.bias is not None
    order = (2, 3, 1, 0) if isinstance(of, nn.Conv2d) else (1, 0)
    kernel, bias = of.weight.detach().permute(order).numpy(), of.bias.detach().numpy()
    return {"kernel": np.array(kernel), "bias": np.array(bias)}


def as_flax(network: atari_values.ImpalaQNetwork) -> Any:
    """A copy of torch's weights in the layout of flax."""
    params: dict[str, Any] = {}
    for i, sequence in enumerate(x for x in network.network if isinstance(x, atari.ConvSequence)):
        blocks = {
            f"ResidualBlock_{j}": {"Conv_0": layer(block.conv0), "Conv_1": layer(block.conv1)}
            for j, block in enumerate((sequence.res_block0, sequence.res_block1))
        }
        params[f"ConvSequence_{i}"] = {"Conv_0": layer(sequence.conv), **blocks}
    first, last = (layer(x) for x in network.network if isinstance(x, nn.Linear))
    # What the first one sees is flattened from channels, rows, columns in torch, from rows, columns, channels in flax.
    images = first["kernel"].reshape(atari.IMPALA_CHANNELS[-1], 11, 11, -1)
    first["kernel"] = images.transpose(1, 2, 0, 3).reshape(first["kernel"].shape)
    return {"params": {**params, "Dense_0": first, "Dense_1": last}}


def assert_close(params: Any, network: atari_values.ImpalaQNetwork, atol: float) -> None:
    for (path, ours), wanted in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(as_flax(network)), strict=True
    ):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=atol, err_msg=jax.tree_util.keystr(path))


def test_losses_gradients_and_weights_are_the_same() -> None:
    torch.manual_seed(0)
    student, lessons = in_torch.TorchStudent(in_torch.Args(cuda=False, **SETTINGS), ACTIONS), lesson()
    student.target = atari_values.ImpalaQNetwork(ACTIONS)  # with weights of its own: using the other one would show
    network: Any = jax_atari.ImpalaQNetwork(ACTIONS)
    args, optimizer = in_jax.Args(**SETTINGS), optax.adam(SETTINGS["learning_rate"])
    params = as_flax(student.network)
    state = State(params, as_flax(student.target), optimizer.init(params))

    update = jax.jit(partial(in_jax.update, network, optimizer, args))
    for step in range(STEPS):
        state, figures = update(state, lessons, 0.6)
        np.testing.assert_allclose(figures, student.learn(lessons, 0.6), rtol=1e-3, err_msg=f"step {step}")
    gradients = deepcopy(student.network)
    nn.utils.vector_to_parameters(student.optimizer.exp_avg, gradients.parameters())  # their running means
    assert_close(state.moments[0].mu, gradients, atol=1e-5)
    # Adam moves a weight by up to the learning rate even where its gradient is mere rounding.
    assert_close(state.params, student.network, atol=0.05 * STEPS * SETTINGS["learning_rate"])

"""The written-out forward and backward passes equal torch's, for every shape of network that the algorithms use."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_worker.training.dense import Net, sequential

CASES: dict[str, dict[str, Any]] = {
    "actor and critic": {
        "inputs": 4,
        "hidden": (64, 64),
        "heads": (3, 1),
        "activation": "tanh",
        "names": (sequential("actor"), sequential("critic")),
    },
    "twin critics": {
        "inputs": 5,
        "hidden": (32, 16),
        "heads": (1, 1),
        "activation": "relu",
        "names": (("qf1.fc1", "qf1.fc2", "qf1.fc3"), ("qf2.fc1", "qf2.fc2", "qf2.fc3")),
    },
    "q network": {"inputs": 6, "hidden": (120, 84), "heads": (4,), "activation": "relu"},
    "layer norm": {"inputs": 6, "hidden": (24, 12), "heads": (4,), "activation": "relu", "layer_norm": True},
    "one hidden layer": {"inputs": 2, "hidden": (7,), "heads": (2,), "activation": "tanh"},
    "three hidden layers, twice": {
        "inputs": 3,
        "hidden": (8, 9, 10),
        "heads": (2, 2),
        "activation": "tanh",
        "names": (sequential("a", 3), sequential("b", 3)),
    },
}


def torch_twin(net: Net, index: int) -> nn.Module:
    """The same network out of torch's modules, with the weights taken by name."""
    act = nn.Tanh if net.activation == "tanh" else nn.ReLU
    widths = (net.inputs, *net.hidden)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), *([nn.LayerNorm(b)] if net.layer_norm else []), act()]
    module = nn.Sequential(*layers, nn.Linear(widths[-1], net.heads[index]))
    ours = net.state_dict()
    names = iter([n for n in ours if n.rpartition(".")[0].rpartition(".")[0] == prefix_of(net, index)])
    named = list(names)
    assert len(named) == len(list(module.parameters()))
    weights = OrderedDict(zip(module.state_dict(), (torch.from_numpy(ours[n]) for n in named), strict=True))
    module.load_state_dict(weights)
    return module


def prefix_of(net: Net, index: int) -> str:
    return net.names[index][0].rpartition(".")[0]


def randomised(case: dict[str, Any], rng: np.random.Generator) -> Net:
    net = Net(**case)
    net.init_uniform(rng)
    net.flat += 0.1 * rng.standard_normal(net.flat.shape, dtype=np.float32)
    return net


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("batch", [1, 5, 128])
def test_outputs_and_gradients(case: dict[str, Any], batch: int) -> None:
    rng = np.random.default_rng(0)
    net = randomised(case, rng)
    x = rng.standard_normal((batch, net.inputs), dtype=np.float32)
    gouts = [rng.standard_normal((batch, h), dtype=np.float32) for h in net.heads]
    outs = [o.copy() for o in net.forward(x)]
    net.backward(gouts)
    gradient = net.grad.copy()
    net.forward(x)
    grad_x = net.input_gradient(gouts)
    np.testing.assert_array_equal(net.grad, gradient)

    tx = torch.from_numpy(x).requires_grad_()
    for i in range(net.count):
        module = torch_twin(net, i)
        out = module(tx)
        np.testing.assert_allclose(outs[i], out.detach().numpy(), rtol=1e-4, atol=1e-5)
        out.backward(torch.from_numpy(gouts[i]))
        named = [n for n in net.views if n.rpartition(".")[0].rpartition(".")[0] == prefix_of(net, i)]
        for name, parameter in zip(named, module.parameters(), strict=True):
            assert parameter.grad is not None
            np.testing.assert_allclose(net.grad_views[name], parameter.grad.numpy(), rtol=1e-3, atol=2e-4, err_msg=name)
    assert tx.grad is not None
    np.testing.assert_allclose(grad_x, tx.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_extra_parameters_live_in_the_same_vector() -> None:
    net = Net(3, (8, 8), heads=(2,), activation="tanh", extra={"actor_logstd": (1, 2)})
    net.views["actor_logstd"][:] = 7.0
    assert np.count_nonzero(net.flat == 7.0) == 2
    assert net.state_dict()["actor_logstd"].shape == (1, 2)
    assert sum(v.size for v in net.views.values()) == net.flat.size


def test_backward_without_forward_is_refused() -> None:
    net = Net(3, (8,), heads=(2,), activation="relu")
    x = np.ones((2, 3), np.float32)
    net.forward(x)
    net.backward((np.ones((2, 2), np.float32),))
    with pytest.raises(RuntimeError, match="forward"):
        net.backward((np.ones((2, 2), np.float32),))


def test_batch_sizes_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(2)
    net = randomised(CASES["actor and critic"], rng)
    x = rng.standard_normal((128, 4), dtype=np.float32)
    whole = [o.copy() for o in net.forward(x)]
    kept = net.forward(x)
    net.forward(x[:4])
    for a, b in zip(whole, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_prediction_equals_a_forward_and_leaves_its_backward_alone() -> None:
    """`predict` works in memory shared by all networks: neither another one's forward nor its own may suffer."""
    rng = np.random.default_rng(7)
    net, other = (Net(3, (16, 16), heads=(2,), activation="relu") for _ in range(2))
    net.init_uniform(rng)
    other.init_uniform(rng)
    x, y = (rng.standard_normal((32, 3), dtype=np.float32) for _ in range(2))
    grad = rng.standard_normal((32, 2), dtype=np.float32)
    wanted = net.forward(x)[0].copy()
    net.backward((grad,))
    gradient = net.grad.copy()

    net.forward(x)
    other.forward(y)
    np.testing.assert_array_equal(net.predict(x)[0], wanted)
    net.predict(y)
    other.predict(y)
    other.backward((grad,))
    net.backward((grad,))
    np.testing.assert_array_equal(net.grad, gradient)


def test_a_network_that_only_predicted_has_no_backward() -> None:
    net = Net(3, (8,), heads=(1,), activation="relu")
    net.predict(np.zeros((4, 3), np.float32))
    with pytest.raises(RuntimeError, match="needs a forward"):
        net.backward((np.zeros((4, 1), np.float32),))


def test_relu_hides_no_nan_in_either_direction() -> None:
    """The gradient's bits are multiplied by whole numbers: a NaN, whatever its sign bit, must come out as one."""
    net = Net(2, (8,), heads=(1,), activation="relu")
    net.init_uniform(np.random.default_rng(0))
    for nan in (np.float32(np.nan), -np.float32(np.nan)):
        x = np.ones((4, 2), np.float32)
        x[1] = nan
        assert np.isnan(net.forward(x)[0][1, 0])
        net.backward((np.full((4, 1), nan, np.float32),))
        assert np.isnan(net.grad_views["network.0.weight"]).all()

"""State dicts fit torch modules of upstream's layout both ways, and fresh weights follow torch's distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_worker.training.dense import Net, load_named, orthogonal, sequential


class QNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(4, 12), nn.LayerNorm(12), nn.ReLU(), nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)
        )


def test_a_torch_module_loads_our_weights_and_we_load_its() -> None:
    net = Net(4, (12, 8), heads=(2,), activation="relu", layer_norm=True)
    net.init_orthogonal(np.random.default_rng(0), head_gains=(1.0,))
    module = QNetwork()
    module.load_state_dict({k: torch.from_numpy(v) for k, v in net.state_dict().items()})
    x = np.random.default_rng(1).standard_normal((6, 4), dtype=np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(net.forward(x)[0], module.network(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)
    fresh = QNetwork()
    net.load_state_dict(fresh.state_dict())
    with torch.no_grad():
        np.testing.assert_allclose(net.forward(x)[0], fresh.network(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)


def test_wrong_weights_are_refused_by_name() -> None:
    net = Net(4, (12, 8), heads=(2,), activation="relu")
    state = net.state_dict()
    with pytest.raises(ValueError, match=r"'network.0.weight' has shape \(12, 5\), this network needs \(12, 4\)"):
        net.load_state_dict({**state, "network.0.weight": np.zeros((12, 5))})
    del state["network.4.bias"]
    with pytest.raises(ValueError, match=r"no 'network.4.bias'"):
        net.load_state_dict(state)
    with pytest.raises(ValueError, match="no 'x'"):
        load_named({"x": net.flat}, {})


def test_names_follow_sequential() -> None:
    assert sequential("actor") == ("actor.0", "actor.2", "actor.4")
    assert sequential("network", layer_norm=True) == ("network.0", "network.3", "network.6")


@pytest.mark.parametrize("shape", [(64, 4), (4, 64), (64, 64), (1, 64)])
def test_orthogonal_weights_are_orthogonal(shape: tuple[int, int]) -> None:
    w = orthogonal(np.random.default_rng(0), shape, math.sqrt(2))
    gram = w @ w.T if shape[0] <= shape[1] else w.T @ w
    np.testing.assert_allclose(gram, 2.0 * np.eye(min(shape)), atol=1e-5)


def test_orthogonal_weights_have_torchs_distribution() -> None:
    """Moments of single entries over many draws: a lost sign correction would show as a mean far from 0."""
    rng = np.random.default_rng(0)
    ours = np.stack([orthogonal(rng, (3, 3), 1.0) for _ in range(4000)])
    torch.manual_seed(0)
    theirs = np.stack([nn.init.orthogonal_(torch.empty(3, 3)).numpy() for _ in range(4000)])
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.05)
    np.testing.assert_allclose((ours**2).mean(axis=0), (theirs**2).mean(axis=0), atol=0.03)
    np.testing.assert_allclose((ours**4).mean(axis=0), (theirs**4).mean(axis=0), atol=0.03)


def test_default_weights_have_torchs_bounds() -> None:
    net = Net(16, (400,), heads=(300,), activation="relu")
    net.init_uniform(np.random.default_rng(0))
    linear = nn.Linear(16, 400)
    for name, fan_in in (("network.0", 16), ("network.2", 400)):
        for part in ("weight", "bias"):
            values, bound = net.views[f"{name}.{part}"], 1 / math.sqrt(fan_in)
            assert np.abs(values).max() <= bound
            assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert net.views["network.0.weight"].std() == pytest.approx(linear.weight.detach().std().item(), rel=0.1)

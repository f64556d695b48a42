"""Model files fit networks of the well-known layout, evaluate, and can be resumed from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_worker.training.dense import Net

SHORT = "--save-model --total-timesteps 400 --learning-starts 200"
PENDULUM = f"{SHORT} --env-id Pendulum-v1 --batch-size 16 --buffer-size 1000"


def tensors(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    return state


class QNetwork(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)
        )


class Actor(nn.Module):
    def __init__(self, *heads: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 256), nn.Linear(256, 256)
        for head in heads:
            setattr(self, head, nn.Linear(256, 1))
        self.register_buffer("action_scale", torch.zeros(1))
        self.register_buffer("action_bias", torch.zeros(1))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 256), nn.Linear(256, 256), nn.Linear(256, 1)


def test_dqn(run: Any) -> None:
    ended = run("dqn", SHORT)
    assert ended.exit_code == 0
    network = QNetwork(2)
    network.load_state_dict(tensors(torch.load(ended.model, weights_only=True)))
    ours = Net(4, (120, 84), heads=(2,), activation="relu")
    ours.load_state_dict(ended.checkpoint.state["kept"]["agent"])
    x = np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(ours.forward(x)[0], network.network(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)


def test_pqn(run: Any) -> None:
    ended = run("pqn", "--save-model --total-timesteps 512")
    assert ended.exit_code == 0
    hidden = (nn.Linear(4, 120), nn.LayerNorm(120), nn.ReLU(), nn.Linear(120, 84), nn.LayerNorm(84), nn.ReLU())
    module = nn.ModuleDict({"network": nn.Sequential(*hidden, nn.Linear(84, 2))})
    module.load_state_dict(tensors(torch.load(ended.model, weights_only=True)))


def test_c51(run: Any) -> None:
    model = torch.load(run("c51", SHORT).model, weights_only=True)
    assert model.keys() == {"model_weights", "args"}
    assert model["args"]["n_atoms"] == 101
    weights = tensors(model["model_weights"])
    np.testing.assert_allclose(weights.pop("atoms"), np.linspace(-100, 100, 101), rtol=1e-5)
    QNetwork(2 * 101).load_state_dict(weights)


@pytest.mark.parametrize(
    ("algo", "heads", "critics"),
    [
        ("ddpg_continuous_action", ("fc_mu",), 1),
        ("td3_continuous_action", ("fc_mu",), 2),
        ("sac_continuous_action", ("fc_mean", "fc_logstd"), 2),
    ],
)
def test_actor_and_critics(algo: str, heads: tuple[str, ...], critics: int, run: Any) -> None:
    ended = run(algo, PENDULUM)
    assert ended.exit_code == 0
    actor, *rest = torch.load(ended.model, weights_only=True)
    module = Actor(*heads)
    module.load_state_dict(tensors(actor))
    assert module.get_buffer("action_scale").item() == 2.0
    assert module.get_buffer("action_bias").item() == 0.0
    assert len(rest) == critics
    for critic in rest:
        Critic().load_state_dict(tensors(critic))


@pytest.mark.parametrize(
    ("algo", "flags"),
    [("dqn", SHORT), ("c51", SHORT), ("td3_continuous_action", PENDULUM), ("sac_continuous_action", PENDULUM)],
)
def test_a_bare_model_is_extended(algo: str, flags: str, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(algo, flags, into="first")
    capsys.readouterr()
    second = run(
        algo,
        flags.replace("--learning-starts 200", "--learning-starts 399"),
        into="second",
        CLEANRL_RESUME_PATH=str(first.model),
    )
    assert second.exit_code == 0
    assert "holds weights only" in capsys.readouterr().out
    before, after = (flat(torch.load(ended.model, weights_only=True)) for ended in (first, second))
    assert torch.equal(before, after), "no gradient step was taken, so the weights are those of the file"
    kept = second.checkpoint.state["kept"]
    if "target_network" in kept:
        assert_same(kept["target_network"], kept["agent"])
    else:
        targets = kept["target_critics"]["critics"]
        for own, target in zip(kept["agent"]["model"][1:], targets, strict=True):
            assert_same(own, target)


def flat(model: Any) -> torch.Tensor:
    """All weights of a model file, one after the other."""
    states = model if isinstance(model, tuple) else [model.get("model_weights", model)]
    return torch.cat([value.reshape(-1) for state in states for value in state.values()])


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])

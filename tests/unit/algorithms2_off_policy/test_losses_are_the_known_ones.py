"""Projections against a loop, gradient steps of JAX against torch, noisy layers, and the sums of discrete SAC."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import jax
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore]
import pytest
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari_values import (
    CategoricalActor,
    NoisyLinear,
    QNetwork,
    RainbowNetwork,
    SoftQNetwork,
    follow,
)
from cleanrl_worker.agents.flax_files import named_as_torch
from cleanrl_worker.algorithms import c51_atari, c51_jax, ddpg_continuous_action_jax, dqn_jax, rainbow_atari, sac_atari
from cleanrl_worker.algorithms.qdagger_dqn_atari_impalacnn import distill_weight
from cleanrl_worker.training.jax_tools import copied, plain
from cleanrl_worker.training.ppo_torch import FlatAdam
from cleanrl_worker.training.replay import Batch
from cleanrl_worker.training.replay_torch import on_device

ATOMS = np.linspace(-2.0, 3.0, 11, dtype=np.float32)
CPU = torch.device("cpu")


def batch(size: int = 6, obs: int = 4, actions: int = 3) -> Batch:
    rng = np.random.default_rng(0)
    return Batch(
        obs=rng.standard_normal((size, obs), np.float32),
        action=rng.integers(0, actions, size),
        reward=rng.standard_normal(size, np.float32),
        next_obs=rng.standard_normal((size, obs), np.float32),
        terminated=(rng.random(size) < 0.4).astype(np.float32),
    )


def projected_one_by_one(pmfs: np.ndarray, reward: np.ndarray, discount: np.ndarray) -> np.ndarray:
    result = np.zeros_like(pmfs, np.float64)
    spacing = (float(ATOMS[-1]) - float(ATOMS[0])) / (len(ATOMS) - 1)
    for row, pmf in enumerate(pmfs):
        for atom, probability in zip(ATOMS, pmf, strict=True):
            value = min(max(float(reward[row]) + float(discount[row]) * float(atom), float(ATOMS[0])), float(ATOMS[-1]))
            place = (value - float(ATOMS[0])) / spacing
            lower = min(int(place + 1e-9), len(ATOMS) - 1)
            share = max(place - lower, 0.0)
            result[row, lower] += probability * (1 - share)
            if lower + 1 < len(ATOMS):
                result[row, lower + 1] += probability * share
    return result


def test_projection() -> None:
    rng = np.random.default_rng(0)
    pmfs = rng.dirichlet(np.ones(len(ATOMS)), 40).astype(np.float32)
    reward = np.concatenate((rng.normal(0, 3, 30), np.full(5, 10.0), np.zeros(5))).astype(np.float32)
    discount = np.where(np.arange(40) % 3 == 0, 0.0, np.where(np.arange(40) >= 35, 1.0, 0.97)).astype(np.float32)
    wanted = projected_one_by_one(pmfs, reward, discount)
    ours = c51_atari.project(*(torch.from_numpy(x) for x in (pmfs, reward, discount, ATOMS))).numpy()
    in_jax = np.asarray(c51_jax.project(jax.numpy.asarray(pmfs), reward, discount, jax.numpy.asarray(ATOMS)))
    np.testing.assert_allclose(ours, wanted, atol=1e-5)
    np.testing.assert_allclose(in_jax, wanted, atol=1e-5)
    np.testing.assert_allclose(ours.sum(axis=1), 1.0, rtol=1e-5)


def torch_twin(params: Any, outputs: int) -> nn.Sequential:
    """The same network in torch: a flax file's names are torch's after reading."""
    network = nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs))
    weights = {
        name.removeprefix("network."): torch.from_numpy(value) for name, value in named_as_torch(plain(params)).items()
    }
    network.load_state_dict(weights)
    return network


def assert_one_step(updated: Any, twin: nn.Sequential, loss: torch.Tensor, lr: float, eps: float) -> None:
    """One step of Adam down `loss` takes the twin to where JAX's step took its parameters."""
    FlatAdam(twin, eps=eps).descend(loss, lr)
    after = {f"network.{name}": value for name, value in twin.state_dict().items()}
    for name, value in named_as_torch(plain(updated)).items():
        np.testing.assert_allclose(value, after[name].numpy(), rtol=1e-4, atol=2e-6, err_msg=name)


def test_a_gradient_step_of_dqn_jax_is_torchs() -> None:
    network: Any = dqn_jax.QNetwork(3)
    optimizer, sample = optax.adam(1e-3), batch()
    params, target = (jax.jit(network.init)(jax.random.PRNGKey(i), np.zeros((1, 4), np.float32)) for i in range(2))
    state = dqn_jax.State(copied(params), target, optimizer.init(params))
    after, figures = jax.jit(partial(dqn_jax.td_update, network, optimizer, 0.9))(state, sample)

    twin, target_twin, tensors = torch_twin(params, 3), torch_twin(target, 3), on_device(sample, CPU)
    with torch.no_grad():
        wanted = tensors.reward + 0.9 * (1 - tensors.terminated) * target_twin(tensors.next_obs).amax(dim=1)
    value = twin(tensors.obs).gather(1, tensors.action[:, None])[:, 0]
    loss = functional.mse_loss(value, wanted)
    np.testing.assert_allclose(figures, [loss.item(), value.mean().item()], rtol=1e-4)
    assert_one_step(after.params, twin, loss, 1e-3, 1e-8)


def test_a_gradient_step_of_c51_jax_is_torchs() -> None:
    network: Any = c51_jax.QNetwork(3, len(ATOMS))
    optimizer, sample = optax.adam(1e-3, eps=1e-3), batch()
    params, target = (jax.jit(network.init)(jax.random.PRNGKey(i), np.zeros((1, 4), np.float32)) for i in range(2))
    state = dqn_jax.State(copied(params), target, optimizer.init(params))
    after, figures = jax.jit(partial(c51_jax.c51_update, network, optimizer, ATOMS, 0.9))(state, sample)

    class Twin(nn.Module):
        def __init__(self, tree: Any) -> None:
            super().__init__()
            self.network = torch_twin(tree, 3 * len(ATOMS))
            self.atoms = torch.from_numpy(ATOMS)

        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return self.network(obs).view(-1, 3, len(ATOMS))

    twin: Any = Twin(params)
    loss, mean = c51_atari.c51_loss(twin, Twin(target), on_device(sample, CPU), 0.9)  # type: ignore[arg-type]
    np.testing.assert_allclose(figures, [loss.item(), mean.item()], rtol=1e-4)
    assert_one_step(after.params, twin.network, loss, 1e-3, 1e-3)


def test_a_critic_step_of_ddpg_jax_is_torchs() -> None:
    bounds = np.array([2.0], np.float32), np.array([0.5], np.float32)
    nets = ddpg_continuous_action_jax.Networks(
        ddpg_continuous_action_jax.Actor(1, *bounds),
        ddpg_continuous_action_jax.QNetwork(),
        optax.adam(1e-3),
        gamma=0.9,
        tau=0.1,
    )
    sample = batch()
    sample.action = np.random.default_rng(1).standard_normal((6, 1)).astype(np.float32)
    actor = nets.actor.init(jax.random.PRNGKey(0), sample.obs)
    qf1, target = (nets.critic.init(jax.random.PRNGKey(i), sample.obs, sample.action) for i in (1, 2))
    state = ddpg_continuous_action_jax.State(
        actor, copied(qf1), actor, target, nets.optimizer.init(actor), nets.optimizer.init(qf1)
    )
    after, figures = jax.jit(partial(ddpg_continuous_action_jax.update_critic, nets))(state, sample)

    weights, critic, critic_target = named_as_torch({str(i): plain(x) for i, x in enumerate((actor, qf1, target))})

    def forward(layers: dict[str, Any], names: tuple[str, ...], x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = functional.linear(x, *(torch.as_tensor(layers[f"{name}.{part}"]) for part in ("weight", "bias")))
            x = functional.relu(x) if name != names[-1] else x
        return x

    tensors = on_device(sample, CPU)
    next_action = forward(weights, ("fc1", "fc2", "fc_mu"), tensors.next_obs).tanh() * 2.0 + 0.5
    layers = ("fc1", "fc2", "fc3")
    next_value = forward(critic_target, layers, torch.cat((tensors.next_obs, next_action), dim=1))[:, 0]
    wanted = tensors.reward + 0.9 * (1 - tensors.terminated) * next_value
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in critic.items()}
    value = forward(leaves, layers, torch.cat((tensors.obs, tensors.action), dim=1))[:, 0]
    loss = functional.mse_loss(value, wanted)
    loss.backward()
    np.testing.assert_allclose(figures, [loss.item(), value.mean().item()], rtol=1e-4)
    (moved,) = (named_as_torch({"0": plain(actor), "1": plain(after.qf1)})[1],)
    for name, leaf in leaves.items():  # the first step of Adam is lr * g / (|g| + eps)
        assert leaf.grad is not None
        step = 1e-3 * leaf.grad / (leaf.grad.abs() + 1e-8)
        np.testing.assert_allclose(moved[name], (leaf - step).detach(), rtol=1e-4, atol=2e-5, err_msg=name)


def test_noise_is_factorised_and_absent_in_evaluation() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(5, 3)
    x = torch.randn(7, 5)
    layer.resample()
    noise = torch.outer(layer.noise_out, layer.noise_in)
    weight = layer.weight + layer.weight_sigma * noise
    bias = layer.bias + layer.bias_sigma * layer.noise_out
    torch.testing.assert_close(layer(x), functional.linear(x, weight, bias))
    before = layer(x)
    layer.resample()
    assert not torch.equal(layer(x), before)
    torch.testing.assert_close(layer.eval()(x), functional.linear(x, layer.weight, layer.bias))
    assert layer.weight_sigma[0, 0].item() == pytest.approx(0.5 / math.sqrt(5))


def test_the_noise_has_the_papers_distribution() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(200_000, 1)
    layer.resample()
    noise = layer.noise_in
    assert noise.mean().item() == pytest.approx(0.0, abs=0.01)
    assert (noise**2).mean().item() == pytest.approx(math.sqrt(2 / math.pi), rel=0.01)  # f(x)^2 is |x|


def images(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size, 4, 84, 84), dtype=torch.uint8)


def test_rainbow_chooses_with_one_network_and_values_with_the_other() -> None:
    torch.manual_seed(0)
    online, target = RainbowNetwork(3, 5, -1.0, 1.0).eval(), RainbowNetwork(3, 5, -1.0, 1.0).eval()
    sample = batch(4)
    tensors = on_device(sample, CPU)._replace(obs=images(4), next_obs=images(4))
    discount = torch.tensor([0.9, 0.0, 0.9, 0.5])
    each, mean = rainbow_atari.losses(online, target, tensors, discount)
    assert each.shape == (4,)
    with torch.no_grad():
        best = online.values(tensors.next_obs).argmax(dim=1)
        for i in range(4):
            next_pmf = target(tensors.next_obs)[i, best[i]].softmax(dim=0)
            wanted = c51_atari.project(next_pmf[None], tensors.reward[i : i + 1], discount[i : i + 1], online.atoms)[0]
            pmf = online(tensors.obs)[i, tensors.action[i]].softmax(dim=0)
            assert each[i].item() == pytest.approx(-(wanted * pmf.log()).sum().item(), rel=1e-4)
    # the advantages have no mean of their own: the logits' mean over actions is the value's
    value = online.value_head(online.network(tensors.obs / 255.0))
    torch.testing.assert_close(online(tensors.obs).mean(dim=1), value, rtol=1e-3, atol=1e-4)
    assert torch.isfinite(mean)


def test_sac_sums_over_actions() -> None:
    log_probs = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))
    values = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[2.0, 1.0, 8.0]])
    entropy = 1.5 * math.log(2)
    assert sac_atari.soft_values(log_probs, values, 0.1).item() == pytest.approx(0.5 + 0.25 + 1.0 + 0.1 * entropy)

    torch.manual_seed(0)
    actor, critics, targets = (
        CategoricalActor(3),
        [SoftQNetwork(3) for _ in range(2)],
        [SoftQNetwork(3) for _ in range(2)],
    )
    tensors = on_device(batch(4), CPU)._replace(obs=images(4), next_obs=images(4))
    losses, _ = sac_atari.critic_losses(actor, critics, targets, tensors, 0.9, 0.2)
    with torch.no_grad():
        log_probs = actor(tensors.next_obs)
        q = torch.minimum(targets[0](tensors.next_obs), targets[1](tensors.next_obs))
        for critic, loss in zip(critics, losses, strict=True):
            errors = []
            for i in range(4):
                value = sum(
                    math.exp(p) * (v - 0.2 * p) for p, v in zip(log_probs[i].tolist(), q[i].tolist(), strict=True)
                )
                wanted = tensors.reward[i].item() + 0.9 * (1 - tensors.terminated[i].item()) * value
                errors.append((critic(tensors.obs)[i, tensors.action[i]].item() - wanted) ** 2)
            assert loss.item() == pytest.approx(np.mean(errors), rel=1e-4)


def test_a_target_follows() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    before = copy.deepcopy(other.weight)
    follow(other, one, 0.25)
    torch.testing.assert_close(other.weight, 0.75 * before + 0.25 * one.weight)
    follow(other, one, 1.0)
    assert torch.equal(other.weight, one.weight)


@pytest.mark.parametrize(
    ("returns", "teacher", "weight"),
    [
        ([20.0] * 9, 10.0, 1.0),
        ([0.0] * 10, 10.0, 1.0),
        ([5.0] * 10, 10.0, 0.5),
        ([12.0] * 10, 10.0, 0.0),
        ([-21.0] * 10, 20.0, 1.0),
        ([-15.0] * 10, -10.0, 1.0),
        ([-5.0] * 10, -10.0, 0.0),
    ],
)
def test_distillation_fades_as_the_student_catches_up(returns: list[float], teacher: float, weight: float) -> None:
    assert distill_weight(returns, teacher) == pytest.approx(weight)


def test_atari_networks_have_torchs_own_initial_weights() -> None:
    torch.manual_seed(0)
    network = QNetwork(4)
    first, last = network.network[0].weight, network.network[9].weight
    assert first.abs().max().item() <= 1 / math.sqrt(4 * 8 * 8)  # type: ignore[operator, union-attr]
    assert last.shape == (4, 512)  # type: ignore[union-attr]

"""The gradients that the algorithms write out by hand equal what torch derives from the loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from cleanrl_worker.algorithms import c51, dqn
from cleanrl_worker.algorithms.pqn import Rollout, q_lambda_returns
from cleanrl_worker.algorithms.sac_continuous_action import Actor
from cleanrl_worker.training.continuous import Bounds, Critics, DeterministicActor
from cleanrl_worker.training.dense import Adam, Array, Net
from cleanrl_worker.training.replay import Batch

BOX = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))


def batch(size: int, actions: int) -> Batch:
    rng = np.random.default_rng(5)
    return Batch(
        obs=rng.standard_normal((size, 4), dtype=np.float32),
        action=rng.integers(0, actions, size),
        reward=rng.standard_normal(size, dtype=np.float32),
        next_obs=rng.standard_normal((size, 4), dtype=np.float32),
        terminated=(rng.random(size) < 0.3).astype(np.float32),
    )


def mlp(net: Net) -> nn.Sequential:
    """A torch twin of a single network with ReLU."""
    widths = (net.inputs, *net.hidden, *net.heads)
    layers: list[nn.Module] = []
    for name, a, b in zip(net.names[0], widths, widths[1:], strict=False):
        linear = nn.Linear(a, b)
        state = net.state_dict()
        linear.load_state_dict({p: torch.from_numpy(state[f"{name}.{p}"]) for p in ("weight", "bias")})
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def assert_gradient(net: Net, module: nn.Sequential, rtol: float = 1e-3, atol: float = 1e-5) -> None:
    own = [net.grad_views[f"{name}.{p}"] for name in net.names[0] for p in ("weight", "bias")]
    for ours, parameter in zip(own, module.parameters(), strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(ours, parameter.grad.numpy(), rtol=rtol, atol=atol)


def test_dqn() -> None:
    rng, b = np.random.default_rng(0), batch(64, 3)
    online, target = (Net(4, (16, 8), heads=(3,), activation="relu") for _ in range(2))
    online.init_uniform(rng)
    target.init_uniform(rng)
    module, frozen = mlp(online), mlp(target)
    loss, mean_q = dqn.td_update(online, target, Adam(online.flat), b, 0.99)

    with torch.no_grad():
        best = frozen(torch.from_numpy(b.next_obs)).max(dim=1).values
        y = torch.from_numpy(b.reward) + 0.99 * best * (1 - torch.from_numpy(b.terminated))
    q = module(torch.from_numpy(b.obs)).gather(1, torch.from_numpy(b.action)[:, None])[:, 0]
    wanted = nn.functional.mse_loss(q, y)
    torch.autograd.backward(wanted)
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    assert mean_q == pytest.approx(q.mean().item(), rel=1e-4, abs=1e-6)
    assert_gradient(online, module)


def test_c51_cross_entropy_with_probabilities_at_the_bounds() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((32, 11)).astype(np.float32) * 5.0  # many probabilities fall below the bound
    target = rng.dirichlet(np.ones(11), 32).astype(np.float32)
    loss, grad = c51.cross_entropy(c51.softmax(logits), target)
    t = torch.from_numpy(logits).requires_grad_()
    pmfs = torch.softmax(t, dim=1)
    assert (pmfs < 1e-5).any()
    wanted = -(torch.from_numpy(target) * pmfs.clamp(1e-5, 1 - 1e-5).log()).sum(dim=1).mean()
    torch.autograd.backward(wanted)
    assert t.grad is not None
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    np.testing.assert_allclose(grad, t.grad.numpy(), rtol=1e-4, atol=1e-7)


def test_c51_projection_atom_by_atom() -> None:
    """Against the definition: each atom's probability goes to its two neighbours, by closeness."""
    rng = np.random.default_rng(0)
    atoms = np.linspace(-2, 3, 11, dtype=np.float32)
    pmfs = rng.dirichlet(np.ones(11), 40).astype(np.float32)
    reward = rng.uniform(-4, 4, 40).astype(np.float32)
    discount = np.where(rng.random(40) < 0.3, 0.0, 0.9).astype(np.float32)
    reward[:3], discount[:3] = (0.0, 0.5, -9.0), (1.0, 1.0, 1.0)  # on the atoms, between them, beyond them
    wanted = np.zeros_like(pmfs)
    for i in range(40):
        for j in range(11):
            place = min(max((reward[i] + discount[i] * atoms[j] + 2.0) / 0.5, 0.0), 10.0)
            low = min(math.floor(place), 9)
            wanted[i, low] += pmfs[i, j] * (low + 1 - place)
            wanted[i, low + 1] += pmfs[i, j] * (place - low)
    projected = c51.project(pmfs, reward, discount, atoms)
    np.testing.assert_allclose(projected, wanted, atol=1e-5)
    np.testing.assert_allclose(projected.sum(axis=1), 1.0, atol=1e-5)


def test_c51_update() -> None:
    rng, b = np.random.default_rng(1), batch(16, 2)
    atoms = np.linspace(-5, 5, 7, dtype=np.float32)
    online, target = (c51.QNetwork(4, 2, atoms) for _ in range(2))
    online.init_uniform(rng)
    target.init_uniform(rng)
    module, frozen = mlp(online), mlp(target)
    loss, mean_q = c51.update(online, target, Adam(online.flat), b, 0.9)

    with torch.no_grad():
        pmfs = torch.softmax(frozen(torch.from_numpy(b.next_obs)).view(16, 2, 7), dim=2)
        best = pmfs[torch.arange(16), (pmfs @ torch.from_numpy(atoms)).argmax(dim=1)].numpy()
    wanted_pmfs = torch.from_numpy(c51.project(best, b.reward, 0.9 * (1 - b.terminated), atoms))
    own = torch.softmax(
        module(torch.from_numpy(b.obs)).view(16, 2, 7)[torch.arange(16), torch.from_numpy(b.action)], dim=1
    )
    wanted = -(wanted_pmfs * own.log()).sum(dim=1).mean()
    torch.autograd.backward(wanted)
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    assert mean_q == pytest.approx((own @ torch.from_numpy(atoms)).mean().item(), rel=1e-4, abs=1e-5)
    assert_gradient(online, module)


def test_the_deterministic_actor_climbs_the_critic() -> None:
    rng = np.random.default_rng(2)
    actor, critics = DeterministicActor(4, Bounds(BOX)), Critics(4, 2, count=2)
    actor.net.init_uniform(rng)
    critics.init_uniform(rng)
    obs = rng.standard_normal((32, 4), dtype=np.float32)
    policy, q = mlp(actor.net), mlp(critics.nets[0])

    (value,) = critics.values(obs, actor.act(obs), first=True)
    mean = float(value.mean())
    actor.backward(critics.action_gradient([np.full(32, -1 / 32, np.float32)]))

    t = torch.from_numpy(obs)
    actions = torch.tanh(policy(t)) * torch.tensor([2.0, 2.5]) + torch.tensor([0.0, 2.5])
    loss = -q(torch.cat((t, actions), dim=1)).mean()
    torch.autograd.backward(loss)
    assert -mean == pytest.approx(loss.item(), rel=1e-4)
    assert_gradient(actor.net, policy)


class FixedNoise:
    """A generator that hands out the same noise again."""

    def __init__(self, noise: Array) -> None:
        self.noise = noise

    def standard_normal(self, shape: tuple[int, ...], dtype: type) -> Array:
        assert shape == self.noise.shape
        return self.noise


def test_sac_actor() -> None:
    """alpha * log pi(a|s) - min Q(s, a), through the sample, the squashing and both critics."""
    rng, size, alpha = np.random.default_rng(3), 64, 0.37
    actor, critics = Actor(4, Bounds(BOX)), Critics(4, 2, count=2)
    actor.net.init_uniform(rng)
    critics.init_uniform(rng)
    obs = rng.standard_normal((size, 4), dtype=np.float32)
    noise = rng.standard_normal((size, 2), dtype=np.float32)
    policy, q1, q2 = mlp(actor.net), *(mlp(net) for net in critics.nets)

    actions, log_prob = actor.sample(obs, FixedNoise(noise))  # type: ignore[arg-type] # only one method is used
    first, second = critics.values(obs, actions)
    pick = (first < second).astype(np.float32)
    assert 0 < pick.mean() < 1
    grad = critics.action_gradient([-pick / np.float32(size), (pick - np.float32(1.0)) / np.float32(size)])
    actor.backward(grad, np.full(size, alpha / size, np.float32))

    t = torch.from_numpy(obs)
    mean, raw = policy(t).chunk(2, dim=1)
    log_std = -5 + 0.5 * (2 - -5) * (torch.tanh(raw) + 1)
    x = mean + log_std.exp() * torch.from_numpy(noise)
    density = -((x - mean) ** 2) / (2 * log_std.exp() ** 2) - log_std - 0.5 * math.log(2 * math.pi)
    y = torch.tanh(x)
    scale, bias = torch.tensor([2.0, 2.5]), torch.tensor([0.0, 2.5])
    wanted = (density - torch.log(scale * (1 - y.pow(2)) + 1e-6)).sum(dim=1)
    np.testing.assert_allclose(actions, (y * scale + bias).detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_prob, wanted.detach().numpy(), rtol=1e-3, atol=1e-3)
    joined = torch.cat((t, y * scale + bias), dim=1)
    loss = (alpha * wanted - torch.min(q1(joined), q2(joined))[:, 0]).mean()
    torch.autograd.backward(loss)
    assert_gradient(actor.net, policy, rtol=2e-3, atol=2e-5)


def test_sac_actor_saves_its_two_heads() -> None:
    one, other = (Actor(4, Bounds(BOX)) for _ in range(2))
    one.net.init_uniform(np.random.default_rng(0))
    state = one.state_dict()
    assert state["fc_mean.weight"].shape == state["fc_logstd.weight"].shape == (2, 256)
    other.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    np.testing.assert_array_equal(one.net.flat, other.net.flat)


def test_q_lambda_returns_by_their_definition() -> None:
    rng = np.random.default_rng(0)
    rollout = Rollout(20, 3, 1)
    for array in (rollout.rewards, rollout.values):
        array[...] = rng.standard_normal(array.shape)
    rollout.ends[...] = rng.random(rollout.ends.shape) < 0.25
    cut = rng.random(rollout.ends.shape) < 0.5
    rollout.after_end[...] = rollout.ends * cut * 7.0
    last = rng.standard_normal(3).astype(np.float32)
    returns = q_lambda_returns(rollout, last, 0.9, 0.65)
    for env in range(3):
        for t in range(20):
            total, weight, at = 0.0, 1.0, t
            while True:  # walk forward: with probability lambda the return goes on, else it stops at the value
                total += weight * rollout.rewards[at, env]
                if rollout.ends[at, env]:
                    total += weight * 0.9 * rollout.after_end[at, env]
                    break
                if at == 19:
                    total += weight * 0.9 * last[env]
                    break
                total += weight * 0.9 * 0.35 * rollout.values[at + 1, env]
                weight *= 0.9 * 0.65
                at += 1
            assert returns[t, env] == pytest.approx(total, rel=1e-4, abs=1e-4)


def test_epsilon_falls_in_a_straight_line_and_stays() -> None:
    assert [dqn.linear_schedule(1.0, 0.05, 100, s) for s in (0, 50, 100, 500)] == pytest.approx(
        [1.0, 0.525, 0.05, 0.05]
    )


def test_sac_samples_again_as_if_it_had_looked_again() -> None:
    rng = np.random.default_rng(4)
    actor = Actor(4, Bounds(BOX))
    actor.net.init_uniform(rng)
    obs = rng.standard_normal((16, 4), dtype=np.float32)
    noise = [FixedNoise(rng.standard_normal((16, 2), dtype=np.float32)) for _ in range(2)]
    wanted = actor.sample(obs, noise[1])  # type: ignore[arg-type] # only one method is used
    actor.sample(obs, noise[0])  # type: ignore[arg-type]
    for ours, theirs in zip(actor.sample_again(noise[1]), wanted, strict=True):  # type: ignore[arg-type]
        np.testing.assert_array_equal(ours, theirs)

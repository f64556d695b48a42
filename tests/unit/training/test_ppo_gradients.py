"""The gradients that PPO's files write out are those of its loss, as torch differentiates it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.algorithms import ppo, ppo_continuous_action, rpo_continuous_action
from cleanrl_worker.training.ppo_torch import FlatAdam, ppo_loss

ROWS = 64
SWITCHES = list(itertools.product([True, False], [True, False], [0.0, 0.01]))


@pytest.mark.parametrize(("norm_adv", "clip_vloss", "ent_coef"), SWITCHES)
def test_discrete_ppo(norm_adv: bool, clip_vloss: bool, ent_coef: float) -> None:
    args = ppo.Args(norm_adv=norm_adv, clip_vloss=clip_vloss, ent_coef=ent_coef, minibatch_size=ROWS)
    rng = np.random.default_rng(0)
    learner = ppo.DenseLearner(5, 3, args, rng)
    learner.agent.flat[:] = rng.normal(0, 0.3, learner.agent.flat.shape)
    batch = ppo.Minibatch(
        obs=rng.normal(size=(ROWS, 5)).astype(np.float32),
        actions=rng.integers(0, 3, ROWS),
        logprobs=rng.normal(-1, 0.4, ROWS).astype(np.float32),
        values=rng.normal(0, 0.5, ROWS).astype(np.float32),
        advantages=rng.normal(1, 2, ROWS).astype(np.float32),
        returns=rng.normal(0, 1, ROWS).astype(np.float32),
    )
    figures, grad_logits, grad_values = learner.gradient(batch)
    learner.agent.backward((grad_logits, grad_values[:, None]))

    agent = MLPAgent(5, 3)
    agent.load_state_dict({name: torch.tensor(value) for name, value in learner.agent.state_dict().items()})
    obs, *rest = (torch.as_tensor(part) for part in batch)
    parts = ppo_loss(*agent(obs), *rest, args)
    parts.loss.backward()
    np.testing.assert_allclose(figures, parts.figures(), rtol=1e-4, atol=1e-6)
    for name, parameter in agent.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(learner.agent.grad_views[name], parameter.grad.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("norm_adv", "clip_vloss", "ent_coef"), SWITCHES)
@pytest.mark.parametrize("robust", [False, True])
def test_continuous_ppo(norm_adv: bool, clip_vloss: bool, ent_coef: float, robust: bool) -> None:
    args = rpo_continuous_action.Args(norm_adv=norm_adv, clip_vloss=clip_vloss, ent_coef=ent_coef)
    rng = np.random.default_rng(0)
    learner = (rpo_continuous_action.RobustLearner if robust else ppo_continuous_action.Learner)(5, 2, args, rng)
    learner.agent.flat[:] = rng.normal(0, 0.3, learner.agent.flat.shape)
    batch = ppo_continuous_action.Minibatch(
        obs=rng.normal(size=(ROWS, 5)).astype(np.float32),
        actions=rng.normal(0, 0.7, (ROWS, 2)).astype(np.float32),
        logprobs=rng.normal(-2, 0.4, ROWS).astype(np.float32),
        values=rng.normal(0, 0.5, ROWS).astype(np.float32),
        advantages=rng.normal(1, 2, ROWS).astype(np.float32),
        returns=rng.normal(0, 1, ROWS).astype(np.float32),
    )
    shift = learner.shift(rng, ROWS)
    assert (shift is not None and np.abs(shift).max() > 0.4) == robust
    figures, grad_means, grad_logstd, grad_values = learner.gradient(batch, shift)
    learner.agent.backward((grad_means, grad_values[:, None]))
    learner.agent.grad_views["actor_logstd"][0] = grad_logstd

    weights = {name: torch.tensor(value, requires_grad=True) for name, value in learner.agent.state_dict().items()}

    def network(prefix: str) -> torch.Tensor:
        hidden = torch.as_tensor(batch.obs)
        for index in (0, 2, 4):
            hidden = hidden @ weights[f"{prefix}.{index}.weight"].T + weights[f"{prefix}.{index}.bias"]
            hidden = hidden.tanh() if index < 4 else hidden
        return hidden

    means = network("actor_mean") + (0 if shift is None else torch.as_tensor(shift))
    normal = torch.distributions.Normal(means, weights["actor_logstd"].expand_as(means).exp())
    advantage = torch.as_tensor(batch.advantages)
    if norm_adv:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (normal.log_prob(torch.as_tensor(batch.actions)).sum(1) - torch.as_tensor(batch.logprobs)).exp()
    policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
    values, returns, old = network("critic")[:, 0], torch.as_tensor(batch.returns), torch.as_tensor(batch.values)
    error = (values - returns) ** 2
    if clip_vloss:
        error = torch.max(error, (old + (values - old).clamp(-0.2, 0.2) - returns) ** 2)
    entropy = normal.entropy().sum(1).mean()
    (policy_loss - ent_coef * entropy + 0.5 * 0.5 * error.mean()).backward()

    assert figures.policy_loss == pytest.approx(policy_loss.item(), rel=1e-4)
    assert figures.value_loss == pytest.approx(0.5 * error.mean().item(), rel=1e-4)
    assert figures.entropy == pytest.approx(entropy.item(), rel=1e-4)
    for name, weight in weights.items():
        assert weight.grad is not None
        np.testing.assert_allclose(learner.agent.grad_views[name], weight.grad.numpy(), rtol=1e-3, atol=1e-6)


def test_the_flat_optimizer_is_adam_with_clipping() -> None:
    torch.manual_seed(0)
    ours, theirs = MLPAgent(4, 2), MLPAgent(4, 2)
    theirs.load_state_dict(ours.state_dict())
    flat, adam = FlatAdam(ours), torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    for _ in range(5):
        obs = torch.randn(8, 4)
        for agent in (ours, theirs):
            logits, values = agent(obs)
            flat.zero_grad() if agent is ours else adam.zero_grad()
            (logits.square().sum() + 10 * values.sum()).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        adam.step()
        flat.step(0.01, 0.5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_initial_weights_are_orthogonal_with_the_gains_of_each_layer() -> None:
    learner = ppo.DenseLearner(4, 2, ppo.Args(minibatch_size=2), np.random.default_rng(0))
    for name, gain in (("actor.0", math.sqrt(2)), ("actor.4", 0.01), ("critic.4", 1.0)):
        weight = learner.agent.views[f"{name}.weight"]
        small = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        np.testing.assert_allclose(small, gain**2 * np.eye(len(small)), atol=1e-5)
        assert not learner.agent.views[f"{name}.bias"].any()


def test_the_optimizer_keeps_no_denormal_moments_of_weights_whose_gradients_stopped() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 4)
    flat = FlatAdam(layer)
    for step in range(1200):
        flat.zero_grad()
        flat.grad[: 20 if step < 200 else 10].normal_()
        flat.step(1e-3, 0.5)
    for moment in (flat.exp_avg, flat.exp_avg_sq):
        assert not ((moment != 0) & (moment.abs() < torch.finfo(torch.float32).tiny)).any()
    assert (flat.exp_avg[:10] != 0).all()
    assert (flat.exp_avg[10:20] == 0).all()

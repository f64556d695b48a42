"""Networks on images: known keys and shapes, sequences as single steps, flax as torch, initial weights, recognised again."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from cleanrl_worker.agents import atari, rnd
from cleanrl_worker.agents.loading import read_model, write_model
from cleanrl_worker.evals.pixel_policies import PixelPolicy
from cleanrl_worker.evals.policies import policy_of
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.normalise import RunningMoments

ACTIONS = 6


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def test_the_nature_agent_has_the_known_keys_and_sees_pixels_between_0_and_1() -> None:
    agent = atari.NatureAgent(ACTIONS)
    shapes = {name: tuple(weight.shape) for name, weight in agent.state_dict().items() if name.endswith("weight")}
    assert shapes == {
        "network.0.weight": (32, 4, 8, 8),
        "network.2.weight": (64, 32, 4, 4),
        "network.4.weight": (64, 64, 3, 3),
        "network.7.weight": (512, 3136),
        "actor.weight": (ACTIONS, 512),
        "critic.weight": (1, 512),
    }
    batch = images(3, 4, 84, 84)
    scaled = atari.scaled(batch)
    torch.testing.assert_close(scaled, batch.float() / 255)
    logits, values = agent(batch)
    assert logits.shape == (3, ACTIONS) and values.shape == (3,)
    assert logits.abs().max() < 0.1, "a new policy is nearly uniform"


def test_layer_norm_follows_every_layer_of_pqns_network() -> None:
    network = atari.NatureValues(ACTIONS).network
    kinds = [type(layer).__name__ for layer in network]
    block = ["Conv2d", "LayerNorm", "ReLU"]
    assert kinds == [*block * 3, "Flatten", "Linear", "LayerNorm", "ReLU", "Linear"]
    assert atari.NatureValues(ACTIONS)(images(2, 4, 84, 84)).shape == (2, ACTIONS)


def test_a_sequence_equals_its_steps_and_forgets_where_an_episode_starts() -> None:
    agent = atari.RecurrentNatureAgent(ACTIONS)
    sequence = images(4, 2, 1, 84, 84)
    starts = torch.tensor([[True, True], [False, False], [False, True], [False, False]])
    with torch.no_grad():
        logits, values, after = agent(sequence, agent.initial_memory(2), starts)
        memory = agent.initial_memory(2)
        for t in range(4):
            one, value, memory = agent(sequence[t : t + 1], memory, starts[t : t + 1])
            torch.testing.assert_close(one[0], logits[t])
            torch.testing.assert_close(value[0], values[t])
        torch.testing.assert_close(memory, after)
        fresh, *_ = agent(sequence[2:], agent.initial_memory(2), starts[2:])
    torch.testing.assert_close(fresh[:, 1], logits[2:, 1])
    assert not torch.allclose(fresh[:, 0], logits[2:, 0]), "the other row remembers"


def test_the_impala_trunk_has_the_known_size_and_ppgs_weights_have_their_norms() -> None:
    agent = atari.PhasicAgent(15, (3, 64, 64))
    weights = agent.state_dict()
    assert tuple(weights["network.5.weight"].shape) == (256, 2048)
    assert tuple(weights["network.0.res_block1.conv1.weight"].shape) == (16, 16, 3, 3)

    def norms(name: str) -> torch.Tensor:
        return weights[name].flatten(1).norm(dim=1)

    branch = math.sqrt(1 / math.sqrt(3) / math.sqrt(2))
    expected = {"network.1.conv": 1.0, "network.2.res_block0.conv0": branch, "network.5": 1.4, "actor": 0.1}
    for name, norm in expected.items():
        torch.testing.assert_close(norms(f"{name}.weight"), torch.full_like(norms(f"{name}.weight"), norm))
        assert not weights[f"{name}.bias"].any()


def test_ppgs_critic_leaves_the_features_alone_and_its_second_critic_does_not() -> None:
    agent = atari.PhasicAgent(15, (3, 64, 64))
    batch = images(2, 3, 64, 64)
    agent(batch)[1].sum().backward()
    assert all(p.grad is None for p in agent.network.parameters())
    agent.all_heads(batch)[2].sum().backward()
    assert all(p.grad is not None for p in agent.network.parameters())


def test_curiosity_falls_where_it_learns_and_its_target_never_moves() -> None:
    torch.manual_seed(0)
    curiosity = rnd.Curiosity()
    seen, unseen = torch.randn(4, 1, 84, 84), torch.randn(4, 1, 84, 84)
    target = {name: value.clone() for name, value in curiosity.target.state_dict().items()}
    optimizer = torch.optim.SGD(curiosity.predictor.parameters(), 1e-2)
    before, other = curiosity(seen).sum().item(), curiosity(unseen).sum().item()
    for _ in range(12):
        optimizer.zero_grad()
        curiosity(seen).mean().backward()
        optimizer.step()
    assert curiosity(seen).sum().item() < 0.7 * before
    assert curiosity(seen).sum().item() / before < curiosity(unseen).sum().item() / other
    for name, value in curiosity.target.state_dict().items():
        torch.testing.assert_close(value, target[name])


def test_images_are_normalised_by_what_was_seen() -> None:
    from cleanrl_worker.algorithms.ppo_rnd_envpool import ImageNormaliser

    batch = images(64, 4, 84, 84)
    moments = RunningMoments((1, 84, 84))
    moments.update(batch[:, -1:].numpy())
    normal = ImageNormaliser(moments)(batch)
    assert normal.shape == (64, 1, 84, 84)
    assert abs(float(normal.mean())) < 0.01 and float(normal.std()) == pytest.approx(1, abs=0.02)
    assert float(normal.abs().max()) <= 5


def test_flax_and_torch_give_the_same_answers(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    from cleanrl_worker.agents.jax_ppo import Actor, Critic, Network, torch_weights
    from cleanrl_worker.training.jax_tools import model_bytes

    batch = images(3, 4, 84, 84).numpy()
    network, actor, critic = Network(), Actor(ACTIONS), Critic()
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    trunk = network.init(keys[0], batch)
    features = network.apply(trunk, batch)
    heads = actor.init(keys[1], features), critic.init(keys[2], features)
    agent = atari.NatureAgent(ACTIONS)
    weights = torch_weights(trunk, *heads)
    agent.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    with torch.no_grad():
        logits, values = agent(torch.from_numpy(batch))
    np.testing.assert_allclose(logits.numpy(), actor.apply(heads[0], features), atol=1e-5)
    np.testing.assert_allclose(values.numpy(), critic.apply(heads[1], features), atol=1e-4)

    path = tmp_path / "scan.cleanrl_model"
    write_model(model_bytes([{"env_id": "Breakout-v5", "target_kl": None}, [trunk, *heads]]), path)
    policy = recognised(read_model(path), (4, 84, 84))
    greedy = policy(batch, np.ones(3, bool), np.random.default_rng(0), True)
    np.testing.assert_array_equal(greedy, np.asarray(actor.apply(heads[0], features)).argmax(axis=1))


def recognised(model: Any, shape: tuple[int, ...], actions: int = ACTIONS) -> PixelPolicy:
    envs: Any = SimpleNamespace(discrete=True, obs_shape=shape, single_action_space=gym.spaces.Discrete(actions))
    policy = policy_of(model, envs)
    assert isinstance(policy, PixelPolicy)
    return policy


KINDS = {
    "ppo_atari": (lambda: atari.NatureAgent(ACTIONS), (4, 84, 84)),
    "ppo_atari_lstm": (lambda: atari.RecurrentNatureAgent(ACTIONS), (4, 84, 84)),
    "ppo_procgen": (lambda: atari.ImpalaAgent(ACTIONS, (3, 64, 64)), (3, 64, 64)),
    "ppg_procgen": (lambda: atari.PhasicAgent(ACTIONS, (3, 64, 64)), (3, 64, 64)),
    "ppo_rnd_envpool": (lambda: rnd.RNDAgent(ACTIONS), (4, 84, 84)),
    "pqn_atari_envpool": (lambda: atari.NatureValues(ACTIONS), (4, 84, 84)),
    "pqn_atari_envpool_lstm": (lambda: atari.RecurrentNatureValues(ACTIONS), (4, 84, 84)),
    "ppo_pettingzoo_ma_atari": (lambda: atari.NatureAgent(ACTIONS, 6), (6, 84, 84)),
}


@pytest.mark.parametrize("algo", KINDS)
def test_a_model_file_is_known_again_and_acts_alike(algo: str, tmp_path: Path) -> None:
    make, shape = KINDS[algo]
    agent = make()
    with torch.no_grad():
        for parameter in agent.parameters():  # new actors are nearly uniform: give them an opinion
            parameter.add_(0.05 * torch.randn_like(parameter))
    path = tmp_path / "agent.cleanrl_model"
    write_model(agent.state_dict(), path)
    policy = recognised(read_model(path), shape)
    obs = images(5, *shape).numpy()
    starts = np.ones(5, bool)
    actions = policy(obs, starts, np.random.default_rng(0), True)
    with torch.no_grad():
        batch = torch.from_numpy(obs)
        if "lstm" in algo:
            scores = agent(batch[None, :, -1:], agent.initial_memory(5), torch.from_numpy(starts)[None])[0][0]
        else:
            answer = agent(batch)
            scores = answer[0] if isinstance(answer, tuple) else answer
    np.testing.assert_array_equal(actions, scores.argmax(-1).numpy())
    drawn = {tuple(policy(obs, starts, np.random.default_rng(seed), False)) for seed in range(40)}
    assert len(drawn) > 1, "without greed, actions are drawn"


def test_a_model_for_other_actions_is_refused() -> None:
    with pytest.raises(BadConfig, match="use its own --env-id"):
        recognised(atari.NatureAgent(4).state_dict(), (4, 84, 84))

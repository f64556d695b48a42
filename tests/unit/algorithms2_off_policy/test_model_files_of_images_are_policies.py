"""A model file of each network on images becomes a policy with the same values; a file of another game is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest
import torch

from cleanrl_worker.agents import atari_values, jax_atari
from cleanrl_worker.agents.loading import read_model, write_model
from cleanrl_worker.evals.policies import load_policy
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.jax_tools import model_bytes, plain

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 4, 84, 84), np.uint8)
BOUNDS = {"n_atoms": 5, "v_min": -1.0, "v_max": 2.0}


def games(actions: int = 3) -> Any:
    return SimpleNamespace(obs_shape=(4, 84, 84), discrete=True, single_action_space=gym.spaces.Discrete(actions))


def loaded(model: Any, folder: Path, actions: int = 3) -> Any:
    write_model(model, folder / "m.cleanrl_model")
    return load_policy(folder / "m.cleanrl_model", games(actions))


@pytest.mark.parametrize("kind", ["QNetwork", "ImpalaQNetwork", "CategoricalQNetwork", "RainbowNetwork"])
def test_torch(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    atoms = kind in ("CategoricalQNetwork", "RainbowNetwork")
    network = getattr(atari_values, kind)(3, *(BOUNDS.values() if atoms else ())).eval()
    model = {"model_weights": network.state_dict(), "args": dict(BOUNDS)} if atoms else network.state_dict()
    policy = loaded(model, tmp_path)
    with torch.no_grad():
        np.testing.assert_allclose(policy.values(IMAGES), network.values(torch.from_numpy(IMAGES)), rtol=1e-5)
    greedy = policy(IMAGES, np.zeros(3, bool), np.random.default_rng(0), True)
    np.testing.assert_array_equal(greedy, policy.values(IMAGES).argmax(axis=1))
    with pytest.raises(BadConfig, match="use its own --env-id"):
        loaded(model, tmp_path, actions=4)


@pytest.mark.parametrize("kind", ["QNetwork", "CategoricalQNetwork", "ImpalaQNetwork"])
def test_flax(kind: str, tmp_path: Path) -> None:
    atoms = kind == "CategoricalQNetwork"
    network: Any = getattr(jax_atari, kind)(3, *((5,) if atoms else ()))
    params = jax.jit(network.init)(jax.random.PRNGKey(0), IMAGES)
    model: Any = {"model_weights": plain(params), "args": dict(BOUNDS)} if atoms else params
    policy = loaded(model_bytes(model), tmp_path)
    wanted = jax.jit(network.apply)(params, IMAGES)
    wanted = wanted @ np.linspace(-1.0, 2.0, 5, dtype=np.float32) if atoms else wanted
    np.testing.assert_allclose(policy.values(IMAGES), wanted, rtol=1e-4, atol=1e-6)


def test_layers_are_numbered_from_the_image_to_the_values() -> None:
    def shapes(kind: Any) -> Any:
        tree = jax.eval_shape(kind(3).init, jax.random.PRNGKey(0), IMAGES)["params"]
        return jax.tree.map(lambda leaf: leaf.shape, tree)

    nature = shapes(jax_atari.QNetwork)
    assert nature["Conv_0"]["kernel"] == (8, 8, 4, 32)
    assert nature["Dense_0"]["kernel"] == (3136, 512)
    assert nature["Dense_1"]["kernel"] == (512, 3)
    impala = shapes(jax_atari.ImpalaQNetwork)
    assert impala["ConvSequence_2"]["ResidualBlock_1"]["Conv_0"]["kernel"] == (3, 3, 32, 32)
    assert impala["Dense_0"]["kernel"] == (11 * 11 * 32, 256)
    assert impala["Dense_1"]["kernel"] == (256, 3)


def test_the_actor_of_discrete_sac(tmp_path: Path) -> None:
    torch.manual_seed(0)
    actor, critic = atari_values.CategoricalActor(3), atari_values.SoftQNetwork(3)
    policy = loaded((actor.state_dict(), critic.state_dict(), critic.state_dict()), tmp_path)
    with torch.no_grad():
        log_probs = actor(torch.from_numpy(IMAGES)).numpy()
    starts, rng = np.zeros(3, bool), np.random.default_rng(0)
    np.testing.assert_array_equal(policy(IMAGES, starts, rng, True), log_probs.argmax(axis=1))
    drawn = np.array([policy(IMAGES[:1], starts[:1], rng, False)[0] for _ in range(60)])
    assert set(drawn.tolist()) <= {0, 1, 2}


def test_what_is_no_model_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "m.cleanrl_model"
    for content in (b"", b"\x81\xa6par", b"\x82" + bytes(50), b"PK\x03\x04", b"\x80\x02."):
        path.write_bytes(content)
        with pytest.raises(BadConfig):
            read_model(path)

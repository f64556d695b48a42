"""Evaluation: seeded, fair to long episodes, and at home with every model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_worker.agents.atari import NatureAgent
from cleanrl_worker.agents.gru import GRUAgent
from cleanrl_worker.agents.minigrid import MinigridAgent
from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.evals import EvalResult, evaluate
from cleanrl_worker.training.errors import BadConfig


def linear(*sizes: int, names: list[str]) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for name, inputs, outputs in zip(names, sizes[:-1], sizes[1:], strict=True):
        state |= {f"{name}.{key}": value for key, value in nn.Linear(inputs, outputs).state_dict().items()}
    return state


def q_network(outputs: int = 2) -> dict[str, torch.Tensor]:
    return linear(4, 120, 84, outputs, names=["network.0", "network.2", "network.4"])


def pqn_network() -> dict[str, torch.Tensor]:
    state = linear(4, 120, 84, 2, names=["network.0", "network.3", "network.6"])
    for name, size in (("network.1", 120), ("network.4", 84)):
        state |= {f"{name}.weight": torch.ones(size), f"{name}.bias": torch.zeros(size)}
    return state


def gaussian() -> dict[str, torch.Tensor]:
    state = linear(3, 64, 64, 1, names=["actor_mean.0", "actor_mean.2", "actor_mean.4"])
    state |= linear(3, 64, 64, 1, names=["critic.0", "critic.2", "critic.4"])
    return state | {"actor_logstd": torch.zeros(1, 1)}


def with_statistics() -> dict[str, torch.Tensor]:
    statistics = {"mean": torch.zeros(3).double(), "var": torch.ones(3).double(), "count": torch.tensor(10.0).double()}
    return gaussian() | {f"obs_normaliser.{name}": value for name, value in statistics.items()}


MODELS: dict[str, tuple[str, Any]] = {
    "ppo": ("CartPole-v1", MLPAgent(4, 2).state_dict()),
    "ppo, shared": ("CartPole-v1", MLPAgent(4, 2, shared=True).state_dict()),
    "ppo, discrete observations": ("FrozenLake-v1", MLPAgent(16, 4).state_dict()),
    "ppo, images": ("MiniGrid-Empty-5x5-v0", MinigridAgent(7).state_dict()),
    "ppo, images, MOSAIC's": ("MiniGrid-Empty-5x5-v0", MinigridAgent(7, features=None).state_dict()),
    "ppo_gru": ("MiniGrid-Empty-5x5-v0", GRUAgent(147, 7, 8).state_dict()),
    "ppo_continuous_action": ("Pendulum-v1", with_statistics()),
    "ppo_continuous_action, upstream's": ("Pendulum-v1", gaussian()),
    "dqn": ("CartPole-v1", q_network()),
    "pqn": ("CartPole-v1", pqn_network()),
    "c51": (
        "CartPole-v1",
        {"model_weights": q_network(202), "args": {"n_atoms": 101, "v_min": -100.0, "v_max": 100.0}},
    ),
    "td3_continuous_action": ("Pendulum-v1", (linear(3, 256, 256, 1, names=["fc1", "fc2", "fc_mu"]), {}, {})),
    "sac_continuous_action": ("Pendulum-v1", (linear(3, 256, 256, 1, names=["fc1", "fc2", "fc_mean"]), {})),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_plays_and_a_seed_repeats_it(name: str, tmp_path: Path) -> None:
    env_id, model = MODELS[name]
    path = tmp_path / "m.cleanrl_model"
    torch.save(model, path)
    options = {"episodes": 3, "seed": 5, "max_episode_steps": 40}
    first, second = (evaluate(name, path, env_id, **options) for _ in range(2))  # type: ignore[arg-type]
    assert first == second
    assert first.episodes == len(first.lengths) == 3
    assert all(1 <= length <= 40 for length in first.lengths)


def test_actions_that_were_masked_in_training_are_not_played(tmp_path: Path) -> None:
    always_right = evaluate_gru(GRUAgent(4, 2, 8, masked=(0,)), tmp_path)
    assert max(always_right.lengths) < 12, "a pole that is only pushed to one side falls at once"
    assert max(evaluate_gru(GRUAgent(4, 2, 8), tmp_path).lengths) > 12


def evaluate_gru(agent: GRUAgent, folder: Path) -> EvalResult:
    torch.save(agent.state_dict(), folder / "m.cleanrl_model")
    return evaluate("ppo_gru", folder / "m.cleanrl_model", "CartPole-v1", episodes=20)


def test_each_environment_plays_its_share_whatever_the_others_do(tmp_path: Path) -> None:
    path = tmp_path / "m.cleanrl_model"
    torch.save(MLPAgent(4, 2).state_dict(), path)
    told: list[tuple[int, float, int]] = []
    result = evaluate("ppo", path, "CartPole-v1", episodes=20, on_episode=lambda *episode: told.append(episode))
    assert result.episodes == 20
    assert sorted(length for _, _, length in told) == sorted(result.lengths)
    assert [index for index, _, _ in told] == list(range(20))
    assert result.returns == [float(length) for length in result.lengths]


def test_discounted_returns_are_of_the_score_as_returns_are(tmp_path: Path) -> None:
    """Of an Atari game, of which only the signs of rewards are learned from."""
    path = tmp_path / "m.cleanrl_model"
    torch.save(NatureAgent(6).state_dict(), path)
    options: dict[str, Any] = {"episodes": 2, "max_episode_steps": 150}
    result = evaluate("ppo_atari", path, "SpaceInvadersNoFrameskip-v4", gamma=1.0, **options)
    assert result.discounted == result.returns
    assert max(result.returns) > 20, "more than one point an invader"


def test_a_video_is_recorded_on_request(tmp_path: Path) -> None:
    path = tmp_path / "m.cleanrl_model"
    torch.save(MLPAgent(4, 2).state_dict(), path)
    evaluate("ppo", path, "CartPole-v1", episodes=1, max_episode_steps=10, video=tmp_path / "videos")
    (video,) = (tmp_path / "videos").glob("*.mp4")
    assert video.stat().st_size > 1000


def test_figures() -> None:
    result = EvalResult([1.0, 2.0, 6.0], [10, 20, 30])
    assert (result.avg_return, result.median_return, result.min_return, result.max_return) == (3.0, 2.0, 1.0, 6.0)
    assert result.std_return == pytest.approx(float(np.std([1, 2, 6])))
    assert (result.avg_length, EvalResult([4.0], [1]).std_return) == (20.0, 0.0)


def test_a_model_of_another_environment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.cleanrl_model"
    torch.save(MLPAgent(4, 2).state_dict(), path)
    with pytest.raises(BadConfig, match="vectors of 4"):
        evaluate("ppo", path, "Acrobot-v1")
    with pytest.raises(BadConfig, match="vectors of 4"):
        evaluate("ppo", path, "MiniGrid-Empty-5x5-v0")
    torch.save({"nothing": torch.zeros(1)}, path)
    with pytest.raises(BadConfig, match="no network that is known"):
        evaluate("ppo", path, "CartPole-v1")
    with pytest.raises(BadConfig, match="at least 1"):
        evaluate("ppo", path, "CartPole-v1", episodes=0)

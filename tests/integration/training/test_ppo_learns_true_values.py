"""Values at the ends of episodes, on environments whose values are known: a time limit cuts nothing off, a termination does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from cleanrl_worker.agents.gru import GRUAgent
from cleanrl_worker.algorithms import ppo, ppo_continuous_action, ppo_gru, rpo_continuous_action
from cleanrl_worker.training.checkpoints import load_checkpoint
from cleanrl_worker.training.run import Run

GAMMA = 0.8
NOISE = 2.0


class Constant(gym.Env[Any, Any]):
    """Reward 1 in each step, plus noise, and nothing to see.

    `end="truncated"`: it would go on for ever, and only its limit of 4 steps stops it: the value is 1 / (1 - gamma) = 5.
    `end="terminated"`: each episode is one step: the value is 1.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, end: str, continuous: bool, noise: float) -> None:
        self.end, self.noise, self.steps = end, noise, 0
        self.action_space: gym.Space[Any] = (
            gym.spaces.Box(-1, 1, (1,), np.float32) if continuous else gym.spaces.Discrete(2)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = 1 + self.noise * float(self.np_random.normal())
        limit = self.end == "truncated" and self.steps >= 4
        return np.ones(2, np.float32), reward, self.end == "terminated", limit, {}


@pytest.fixture(params=["truncated", "terminated"])
def end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def truth(end: str) -> float:
    return 1 / (1 - GAMMA) if end == "truncated" else 1.0


def trained(module: Any, monkeypatch: Any, folder: Path, end: str, **options: Any) -> Any:
    """The state of the checkpoint at the end of a training run in this process."""
    continuous = module in (ppo_continuous_action, rpo_continuous_action)
    noise = NOISE if continuous else 0.0
    monkeypatch.chdir(folder)
    monkeypatch.setitem(
        gym.registry,
        "Constant-v0",
        gym.envs.registration.EnvSpec("Constant-v0", lambda: Constant(end, continuous, noise)),
    )
    args = module.Args(env_id="Constant-v0", gamma=GAMMA, anneal_lr=False, clip_vloss=False, cuda=False, **options)
    run = Run(args)
    module.train(args, run)
    run.close()
    assert run.store.last is not None
    return load_checkpoint(run.store.last.path).state["kept"]


def test_ppo(end: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = trained(ppo, monkeypatch, tmp_path, end, total_timesteps=12_288, learning_rate=3e-3)
    learner = ppo.DenseLearner(2, 2, ppo.Args(minibatch_size=1), np.random.default_rng(0))
    learner.agent.load_state_dict(kept["agent"])
    assert learner.evaluate(np.ones((1, 2), np.float32))[1][0] == pytest.approx(truth(end), rel=0.05)


def test_ppo_gru(end: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = trained(
        ppo_gru, monkeypatch, tmp_path, end, total_timesteps=4096, learning_rate=3e-3, num_steps=32, gru_hidden_size=16
    )
    agent = GRUAgent(2, 2, 16)
    agent.load_state_dict(kept["agent"])
    with torch.no_grad():
        obs, starts = torch.ones(4, 1, 2), torch.tensor([[True], [False], [False], [False]])
        _, values, _ = agent(obs, agent.initial_memory(1), starts)
    seen = values[:, 0] if end == "truncated" else values[:1, 0]
    np.testing.assert_allclose(seen.numpy(), truth(end), rtol=0.1)


@pytest.mark.parametrize("module", [ppo_continuous_action, rpo_continuous_action])
def test_ppo_continuous(module: Any, end: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = trained(
        module,
        monkeypatch,
        tmp_path,
        end,
        total_timesteps=16_384,
        learning_rate=1e-3,
        num_steps=1024,
        num_minibatches=16,
    )
    learner = ppo_continuous_action.Learner(2, 1, module.Args(), np.random.default_rng(0))
    learner.agent.load_state_dict(kept["agent"])
    envs = kept["envs"]
    value = learner.evaluate(np.asarray(envs["obs"], np.float32))[1][0]
    spread = float(np.sqrt(envs["reward_normaliser"]["var"]))  # rewards were divided by it
    assert value * spread == pytest.approx(truth(end), rel=0.25)

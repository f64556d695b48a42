"""Means, spreads and intervals are those of the textbooks, and tables play like the environments they stand for."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.evals import EvalResult, Evaluation, evaluate
from cleanrl_worker.evals.statistics import half_interval, t95
from cleanrl_worker.evals.tabular import TabularEnvs, fits
from cleanrl_worker.modes import commands
from cleanrl_worker.training.envs import Envs, make_env
from cleanrl_worker.training.errors import BadConfig


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)]
)
def test_quantiles_of_students_t(freedom: int, quantile: float) -> None:
    assert t95(freedom) == pytest.approx(quantile, rel=0.002)


def test_the_figures_of_a_few_returns() -> None:
    result = EvalResult([1.0, 2.0, 3.0, 10.0], [1, 2, 3, 4], [0.5, 1.5, 2.0, 4.0])
    summary = result.summary()
    assert (summary["avg_return"], summary["median_return"], summary["min_return"]) == (4.0, 2.5, 1.0)
    assert summary["std_return"] == pytest.approx(np.std([1, 2, 3, 10]))
    half = 3.182 * np.std([1, 2, 3, 10], ddof=1) / 2
    assert summary["ci95_return"] == pytest.approx([4 - half, 4 + half], abs=0.02)
    assert summary["avg_discounted_return"] == 2.0


def test_one_episode_has_no_interval_and_no_spread() -> None:
    result = EvalResult([5.0], [3])
    assert (result.std_return, result.interval, half_interval([5.0])) == (0.0, None, None)
    assert result.summary()["avg_discounted_return"] is None


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_a_table_plays_like_its_environment(env_id: str) -> None:
    """Random actions, 600 episodes each: means agree within three standard errors, and so does the share of ends."""
    env = make_env(env_id, max_episode_steps=30)
    assert fits(env)
    results = []
    for envs in (TabularEnvs(env, 50), Envs.make(env_id, 50, max_episode_steps=30)):
        rng = np.random.default_rng(3)
        envs.reset(1)
        assert envs.obs.shape == (50, env.observation_space.n)  # type: ignore[attr-defined]
        episodes, cut = [], 0
        while len(episodes) < 600:
            step = envs.step(rng.integers(0, envs.single_action_space.n, 50))
            episodes += step.episodes
            cut += int(step.truncated.sum())
        results.append((np.array([episode.ret for episode in episodes]), np.array([e.length for e in episodes]), cut))
    (one, one_lengths, _), (other, other_lengths, _) = results
    for a, b in ((one, other), (one_lengths, other_lengths)):
        error = np.sqrt(a.var() / len(a) + b.var() / len(b))
        assert abs(a.mean() - b.mean()) <= 3 * error + 1e-9


def test_a_table_follows_one_trajectory_exactly() -> None:
    """Without chance there is nothing to draw: the same actions give the same course."""
    env = make_env("CliffWalking-v1")
    table = TabularEnvs(env, 1)
    table.reset(0)
    env.reset(seed=0)
    rng = np.random.default_rng(1)
    for action in rng.integers(0, 4, 300):
        step = table.step(np.array([action]))
        state, reward, terminated, *_ = env.step(int(action))
        assert (step.rewards[0], step.terminated[0]) == (reward, terminated)
        assert step.next_obs[0].argmax() == state
        if terminated:
            env.reset()


def test_a_fickle_passenger_is_more_than_a_table() -> None:
    assert not fits(gym.make("Taxi-v4", fickle_passenger=True))
    assert not fits(gym.make("CartPole-v1"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.save(MLPAgent(4, 2).state_dict(), tmp_path / "ppo.cleanrl_model")
    return tmp_path / "ppo.cleanrl_model"


def test_discounted_returns_are_those_of_the_rewards(model: Path) -> None:
    evaluation = Evaluation(model, "CartPole-v1", most_episodes=20, gamma=0.9)
    result = evaluation.play(20, 1)
    evaluation.close()
    assert result.discounted == pytest.approx([(1 - 0.9**length) / (1 - 0.9) for length in result.lengths])
    assert result.returns == [float(length) for length in result.lengths]


def test_batches_are_independent_and_repeatable(model: Path) -> None:
    evaluation = Evaluation(model, "CartPole-v1", most_episodes=8)
    first, second, again = (evaluation.play(8, seed) for seed in (1, 2, 1))
    evaluation.close()
    assert first.returns == again.returns
    assert first.returns != second.returns


def test_more_episodes_than_environments_are_shared_evenly(model: Path) -> None:
    told: list[int] = []
    result = evaluate("ppo", model, "CartPole-v1", episodes=70, seed=3, on_episode=lambda n, *_: told.append(n))
    assert result.episodes == 70
    assert told == list(range(70))
    assert statistics.fmean(result.returns) == result.avg_return


def test_frozen_lake_by_table_and_by_environment_agree(tmp_path: Path) -> None:
    torch.manual_seed(1)
    torch.save(MLPAgent(16, 4).state_dict(), tmp_path / "m")
    fast = evaluate("ppo", tmp_path / "m", "FrozenLake-v1", episodes=2000, seed=1)
    slow = evaluate("ppo", tmp_path / "m", "FrozenLake-v1", episodes=500, seed=1, max_episode_seconds=60.0)
    error = np.sqrt(np.var(fast.lengths) / 2000 + np.var(slow.lengths) / 500)
    assert abs(fast.avg_length - slow.avg_length) < 4 * error


def test_a_missing_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="does not exist"):
        evaluate("ppo", tmp_path / "no", "CartPole-v1")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(BadConfig, match="is not a model file"):
        evaluate("ppo", tmp_path / "text", "CartPole-v1")
    with pytest.raises(BadConfig, match="holds no usable checkpoint"):
        evaluate("ppo", tmp_path, "CartPole-v1")


def config(mode: str, **extras: Any) -> CleanRLWorkerConfig:
    payload = {"run_id": "r", "algo": "ppo", "env_id": "CartPole-v1", "seed": 4}
    return CleanRLWorkerConfig.from_dict({**payload, "extras": {"mode": mode, **extras}}, env={})


def test_every_extra_of_an_evaluation_becomes_its_flag() -> None:
    digest = "a" * 64
    found = commands.arguments(
        config(
            "policyEval",
            policy_path="/p/m",
            checkpoint_sha256=digest,
            eval_episodes=50,
            eval_batch_size=10,
            eval_gamma=0.9,
            eval_max_episode_steps=100,
            eval_max_episode_seconds=2.5,
            eval_repeat=True,
            eval_greedy=True,
            eval_capture_video=True,
        )
    )
    assert sorted(found) == sorted(
        [
            "--algo=ppo",
            "--env-id=CartPole-v1",
            "--policy-path=/p/m",
            f"--sha256={digest}",
            "--max-episode-steps=100",
            "--greedy",
            "--episodes=50",
            "--batch-size=10",
            "--max-episode-seconds=2.5",
            "--gamma=0.9",
            "--seed=4",
            "--repeat",
            "--capture-video",
        ]
    )


def test_what_the_policy_was_trained_with_is_the_default() -> None:
    params = {"gamma": 0.8, "max-episode-steps": 70, "procedural_generation": False}
    found = commands.arguments(config("policy_eval", policy_path="/p/m", algo_params=params))
    assert {"--gamma=0.8", "--max-episode-steps=70", "--no-procedural-generation", "--episodes=5"} <= set(found)


def test_null_says_nothing_about_an_evaluation() -> None:
    """Forms send every field, null or a limit of 0 where nothing was chosen."""
    nothing = dict.fromkeys(("eval_gamma", "eval_max_episode_steps", "eval_episodes", "eval_batch_size", "eval_repeat"))
    nothing |= {"eval_max_episode_seconds": 0.0}
    params = {"gamma": 0.8, "max_episode_steps": 70, "procedural_generation": "yes"}
    found = commands.arguments(config("policy_eval", policy_path="/p/m", algo_params=params, **nothing))
    assert {"--gamma=0.8", "--max-episode-steps=70", "--episodes=5"} <= set(found)
    assert not {"--no-procedural-generation", "--repeat"} & set(found)
    zero = config("policy_eval", policy_path="/p/m", algo_params=params, eval_max_episode_steps=0)
    assert commands.arguments(zero) == found


@pytest.mark.parametrize(
    ("mode", "extras", "message"),
    [
        ("interactive", {}, "extras.policy_path: interactive mode requires a policy_path extra"),
        ("script", {}, "extras.script_path: script mode requires the script to run"),
        (
            "policy_eval",
            {"policy_path": "m", "eval_gamma": 2},
            "extras.eval_gamma: expected a number of at most 1, got 2",
        ),
        ("resume", {"checkpoint_path": "c", "checkpoint_sha256": "beef"}, "a sha256 of 64 hexadecimal digits"),
        ("fly", {}, "extras.mode: expected one of 'train', 'resume_training'"),
    ],
)
def test_a_mode_without_what_it_needs_is_refused(mode: str, extras: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"configuration is wrong|fields are wrong") as caught:
        config(mode, **extras)
    assert message in str(caught.value)

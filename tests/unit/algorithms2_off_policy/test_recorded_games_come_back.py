"""Recorded games fill a replay memory with the transitions that were played, stacks and endings included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cleanrl_worker.agents.atari_values import QNetwork
from cleanrl_worker.agents.loading import write_model
from cleanrl_worker.evals.policies import load_policy
from cleanrl_worker.training.envs import Envs
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.replay_frames import FrameReplay
from cleanrl_worker.training.trajectories import Game, fill, read_games, record

GAME = "BreakoutNoFrameskip-v4"


def test_a_recorded_game_is_the_game_that_was_played(tmp_path: Path) -> None:
    torch.manual_seed(0)
    write_model(QNetwork(4).state_dict(), tmp_path / "m.cleanrl_model")
    (path,) = record(tmp_path / "m.cleanrl_model", GAME, tmp_path / "games", episodes=1, seed=3)
    (game,) = read_games(tmp_path / "games")
    assert path.parent == tmp_path / "games"
    replay = FrameReplay(len(game), (4, 84, 84), np.random.default_rng(0))
    fill(replay, [game], 4, (4, 84, 84))
    assert len(replay) == len(game)
    batch = replay.sample(len(game))
    replay._fill(batch, np.arange(len(game)))

    envs = Envs.make(GAME, 1, frames=4)
    policy, rng = load_policy(tmp_path / "m.cleanrl_model", envs), np.random.default_rng(3)
    obs, score = envs.reset(3), None
    for t in range(len(game)):
        action = policy(obs, envs.starts, rng, False)
        step = envs.step(action)
        np.testing.assert_array_equal(batch.obs[t], obs[0])
        np.testing.assert_array_equal(batch.next_obs[t], step.next_obs[0])
        assert (batch.action[t], batch.reward[t]) == (action[0], step.rewards[0])
        assert batch.terminated[t] == step.terminated[0]
        obs, score = step.obs, step.episodes[0].ret if step.episodes else None
    envs.close()
    assert score == game.score, "the last recorded step ends the game"
    assert game.ends.sum() > 1, "Breakout has several lives"


def test_games_of_another_kind_are_refused() -> None:
    replay = FrameReplay(10, (4, 84, 84), np.random.default_rng(0))
    frames = np.zeros((3, 84, 84), np.uint8)
    game = Game(frames, np.array([0, 17]), np.zeros(2), np.array([False, True]), True)
    with pytest.raises(BadConfig, match="another game"):
        fill(replay, [game], 4, (4, 84, 84))
    with pytest.raises(BadConfig, match="recorded images"):
        fill(replay, [game], 18, (4, 42, 42))

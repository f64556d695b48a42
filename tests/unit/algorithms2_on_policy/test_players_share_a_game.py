"""Games for several players: every player is a row that knows which one it is, and their ends and scores belong together."""

from __future__ import annotations

import numpy as np
import pytest

from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.pettingzoo import PlayersEnvs


def test_players_see_the_same_game_and_who_they_are() -> None:
    envs = PlayersEnvs("pong_v3", 4)
    obs = envs.reset(1)
    assert obs.shape == (4, 6, 84, 84) and envs.players == 2
    np.testing.assert_array_equal(obs[0, :4], obs[1, :4])
    indicators = (obs[:, 4:] == 255).all(axis=(2, 3))
    np.testing.assert_array_equal(indicators, [[True, False], [False, True]] * 2)
    step = envs.step(np.zeros(4, int))
    np.testing.assert_array_equal(step.obs[:, :3], obs[:, 1:4])
    np.testing.assert_array_equal(step.obs[:, 4:], obs[:, 4:])
    assert envs.render((1,))[0].shape == (210, 160, 3)
    envs.close()


def test_one_players_point_is_the_others_loss_and_the_end_is_both_of_theirs() -> None:
    envs = PlayersEnvs("pong_v3", 2, max_steps=150)
    envs.reset(1)
    rng = np.random.default_rng(0)
    points, ended = 0.0, None
    for _ in range(150):
        step = envs.step(rng.integers(0, 6, 2))
        assert step.rewards.sum() == 0 and set(np.abs(step.rewards)) <= {0.0, 1.0}
        points += float(step.rewards[0])
        if step.episodes:
            ended = step
    assert ended is not None and ended.truncated.all() and not ended.terminated.any()
    first, second = ended.episodes
    assert (first.env, second.env, first.length, second.length) == (0, 1, 150, 150)
    assert first.ret == points == -second.ret
    assert points != 0, "somebody scored in 150 steps of random play"
    assert (ended.obs[0, :4] != ended.next_obs[0, :4]).any(), "the next game has begun"
    envs.close()


def test_what_can_not_be_played_is_refused() -> None:
    with pytest.raises(BadConfig, match="not a multiple of the 2 players"):
        PlayersEnvs("pong_v3", 3)
    with pytest.raises(BadConfig, match="did you mean pong_v3"):
        PlayersEnvs("pong_v2", 2)

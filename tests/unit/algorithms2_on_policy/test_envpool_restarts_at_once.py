"""envpool through the adapter: no row is a reset, games are counted whole, all of Procgen is there by any of its names."""

from __future__ import annotations

import numpy as np
import pytest

from cleanrl_worker.training.envpool import (
    PROCGEN_GAMES,
    import_envpool,
    make_atari_pool,
    make_procgen,
    procgen_task,
)
from cleanrl_worker.training.errors import BadConfig


def test_every_step_is_a_transition_and_games_go_on_after_a_life() -> None:
    envs = make_atari_pool("Breakout-v5", 3, seed=1)
    envs.reset(1)
    step_of, frames = envs.pool.step, []

    def watched(actions: np.ndarray, rows: np.ndarray | None = None) -> object:
        answer = step_of(actions) if rows is None else step_of(actions, rows)
        if rows is None:
            frames.append(answer[4]["elapsed_step"].copy())
        return answer

    envs.pool.step = watched
    rng = np.random.default_rng(0)
    lives, games = 0, []
    before = np.zeros(3, int)
    for _ in range(260):
        obs = envs.obs
        step = envs.step(rng.integers(0, 4, 3))
        over = np.zeros(3, bool)
        for episode in step.episodes:
            over[episode.env] = True
            games.append(episode)
        lives += int((step.terminated & ~over).sum())
        # the emulator has moved by one step in every row: none of them was a reset
        np.testing.assert_array_equal(frames[-1], before + 1)
        before = np.where(over, 0, frames[-1])
        ended = step.dones
        np.testing.assert_array_equal(envs.starts, ended)
        np.testing.assert_array_equal(step.obs[~ended], step.next_obs[~ended])
        assert all((step.obs[i] != step.next_obs[i]).any() for i in np.flatnonzero(ended))
        assert (obs is not step.obs) and not np.shares_memory(obs, step.obs)
    assert games and lives == 4 * len(games) + int((5 - 1) * 3 - sum(_lives_left(envs))), (lives, games)
    envs.close()


def _lives_left(envs: object) -> list[int]:
    _, _, _, _, info = envs.pool.step(np.zeros(3, np.int32))  # type: ignore[attr-defined]
    return [int(n) - 1 for n in info["lives"]]


def test_another_seed_is_another_level_and_the_same_one_is_the_same() -> None:
    def first_images(seed: int) -> np.ndarray:
        envs = make_procgen("maze", 2, seed=1)
        obs = envs.reset(seed).copy()
        envs.close()
        return obs

    np.testing.assert_array_equal(first_images(1), first_images(1))
    assert (first_images(1) != first_images(2)).any()


def test_what_can_not_be_restored_begins_afresh_with_the_statistics_it_had() -> None:
    envs = make_procgen("starpilot", 2, seed=1, num_levels=3, reward_normaliser_gamma=0.99)
    envs.reset(1)
    for _ in range(30):
        envs.step(np.full(2, 9))
    state = envs.state_dict()
    levels = envs.pool.config["seed"]
    other = make_procgen("starpilot", 2, seed=1, num_levels=3, reward_normaliser_gamma=0.99)
    other.reset(1)
    other.load_state_dict(state)
    assert other.restarted == [0, 1]
    assert other.pool.config["seed"] != levels, "the run's first episodes are not played again"
    assert other.reward_normaliser is not None
    assert other.reward_normaliser.state_dict()["count"] == pytest.approx(60.0001)
    for pool in (envs, other):
        pool.close()


def test_all_sixteen_games_step_and_draw() -> None:
    known = import_envpool("starpilot").list_all_envs()
    assert len(PROCGEN_GAMES) == 16
    for game in PROCGEN_GAMES:
        assert procgen_task(game) in known
    for game in ("coinrun", "maze"):
        envs = make_procgen(game, 2, seed=1, render=True)
        assert envs.reset(1).shape == (2, 3, 64, 64)
        envs.step(np.zeros(2, int))
        (picture,) = envs.render((1,))
        assert picture.shape == (64, 64, 3)
        envs.close()


def test_games_are_known_by_their_usual_names() -> None:
    for name in ("starpilot", "Starpilot", "procgen-starpilot-v0", "procgen:procgen-starpilot-v0", "StarpilotEasy-v0"):
        assert procgen_task(name) == "StarpilotEasy-v0"
    assert procgen_task("StarpilotHard-v0") == "StarpilotHard-v0"


def test_unknown_names_are_refused_with_those_that_are_close() -> None:
    with pytest.raises(BadConfig, match="did you mean starpilot"):
        procgen_task("starpilt")
    with pytest.raises(BadConfig, match="did you mean Breakout-v5"):
        make_atari_pool("BreakoutNoFrameskip-v4", 1, seed=1)
    with pytest.raises(BadConfig, match="Pong-v5 and so on"):
        make_atari_pool("CartPole-v1", 1, seed=1)
    with pytest.raises(BadConfig, match="at least 1"):
        make_procgen("maze", 0, seed=1)

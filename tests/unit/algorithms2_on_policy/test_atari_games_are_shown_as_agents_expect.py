"""Atari on the real emulator: stacked images, whole games counted, lives as episodes, and an exact return to mid-game."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.training.atari import AtariGame, make_atari
from cleanrl_worker.training.envs import Envs, Step
from cleanrl_worker.training.errors import BadConfig

BREAKOUT = "BreakoutNoFrameskip-v4"


def played(envs: Envs, steps: int, seed: int = 0) -> list[Step]:
    rng = np.random.default_rng(seed)
    return [envs.step(rng.integers(0, envs.single_action_space.n, envs.num_envs)) for _ in range(steps)]


@pytest.mark.parametrize(("env_id", "actions"), [(BREAKOUT, 4), ("ALE/Breakout-v5", 4), ("ALE/Pong-v5", 6)])
def test_both_spellings_give_stacked_grey_images(env_id: str, actions: int) -> None:
    env = make_atari(env_id, frames=4)
    obs, _ = env.reset(seed=1)
    assert (obs.shape, obs.dtype, env.action_space.n) == ((4, 84, 84), np.uint8, actions)
    assert all((image == obs[0]).all() for image in obs), "an episode begins with one image, four times"
    after, *_ = env.step(0)
    np.testing.assert_array_equal(after[:3], obs[1:])
    assert env.observation_space.contains(after)


def test_one_image_can_be_asked_for() -> None:
    envs = Envs.make(BREAKOUT, 1, frames=1)
    assert envs.reset(1).shape == (1, 1, 84, 84)
    assert len(np.unique(envs.step(np.array([0])).obs)) > 2


def test_a_step_is_four_frames_and_a_game_begins_with_idle_ones() -> None:
    env: Any = make_atari("ALE/Freeway-v5", frames=4)
    counts = set()
    for seed in range(4):
        env.reset(seed=seed)
        counts.add(env.unwrapped.ale.getEpisodeFrameNumber())
    assert len(counts) > 1 and all(1 <= count <= 30 for count in counts), counts
    before = env.unwrapped.ale.getEpisodeFrameNumber()
    env.step(0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() == before + 4


def test_fire_is_pressed_where_a_game_waits_for_it() -> None:
    """In Breakout no ball moves before fire: without it no life is ever lost."""
    envs = Envs.make(BREAKOUT, 1, frames=4)
    envs.reset(1)
    for _ in range(100):
        if envs.step(np.array([0])).terminated[0]:
            return
    pytest.fail("no life was lost in 100 idle steps: the ball was never served")


def test_a_lost_life_ends_the_episode_and_the_return_is_of_the_whole_game() -> None:
    envs = Envs.make(BREAKOUT, 1, frames=4)
    envs.reset(3)
    ale = envs.inner[0].unwrapped.ale
    score, lives_lost, ended = 0.0, 0, None
    act, total = ale.act, [0.0]

    class Counting:
        """The emulator, with every point it ever gives counted."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ale, name)

        def act(self, button: Any) -> float:
            points = act(button)
            total[0] += points
            return float(points)

    game = envs.inner[0]
    assert isinstance(game, AtariGame)
    game._ale = Counting()  # type: ignore[assignment]
    rng = np.random.default_rng(0)
    for _ in range(2000):
        step = envs.step(rng.integers(0, 4, 1))
        score += float(step.rewards[0])
        if step.terminated[0] and not step.episodes:
            lives_lost += 1
        if step.episodes:
            ended = step.episodes[0]
            break
    assert ended is not None and step.terminated[0]
    assert lives_lost == 4, "five lives: four losses, then the end"
    assert ended.ret == total[0], "what is logged is the game's own score, from its first frame to its last"
    assert ended.ret >= score


def test_rewards_are_signs_and_returns_are_not() -> None:
    env = make_atari("ALE/SpaceInvaders-v5", frames=1)
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    seen = [env.step(int(rng.integers(0, 6))) for _ in range(200)]
    assert {reward for _, reward, *_ in seen} == {0.0, 1.0}
    assert max(info["raw_reward"] for *_, info in seen) >= 5


def test_a_limit_of_steps_truncates_the_game() -> None:
    envs = Envs.make(BREAKOUT, 2, frames=4, max_episode_steps=7)
    envs.reset(1)
    steps = played(envs, 7)
    assert not any(step.truncated.any() for step in steps[:6])
    assert steps[6].truncated.all() and [episode.length for episode in steps[6].episodes] == [7, 7]


@pytest.mark.parametrize("env_id", [BREAKOUT, "ALE/Breakout-v5"])
def test_a_game_is_put_back_exactly_across_lives(env_id: str) -> None:
    """v5 repeats actions at random inside of the emulator; both lose lives between the cut and the comparison's end."""
    envs = Envs.make(env_id, 2, frames=4)
    envs.reset(1)
    played(envs, 60)
    state = copy.deepcopy(envs.state_dict())
    expected = played(envs, 160, seed=5)
    assert any(step.terminated.any() for step in expected) and any(step.episodes for step in expected)

    other = Envs.make(env_id, 2, frames=4)
    other.reset(99)
    other.load_state_dict(state)
    assert not other.restarted
    for a, b in zip(expected, played(other, 160, seed=5), strict=True):
        np.testing.assert_array_equal(a.obs, b.obs)
        np.testing.assert_array_equal(a.rewards, b.rewards)
        assert a.episodes == b.episodes


def test_an_unknown_game_is_refused_with_those_that_are_close() -> None:
    with pytest.raises(BadConfig, match="did you mean BreakoutNoFrameskip-v4"):
        make_atari("BrakoutNoFrameskip-v4", frames=4)
    with pytest.raises(BadConfig, match=r"CartPole-v1 is not an Atari game.*BreakoutNoFrameskip-v4"):
        make_atari("CartPole-v1", frames=4)

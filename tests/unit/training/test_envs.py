"""Environments stepped together: restarted at once, observed rightly at the end, counted truly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.training.envs import (
    Envs,
    make_env,
    require_continuous_actions,
    require_discrete_actions,
    require_vectors,
)
from cleanrl_worker.training.errors import BadConfig, Diverged


def test_steps_equal_gymnasiums_own_vector_of_the_same_step_kind() -> None:
    ours = Envs.make("CartPole-v1", 3)
    theirs = gym.vector.SyncVectorEnv(
        [lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    np.testing.assert_array_equal(ours.reset(7), theirs.reset(seed=7)[0])
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(300):
        actions = rng.integers(0, 2, 3)
        step = ours.step(actions)
        obs, rewards, terminated, truncated, info = theirs.step(actions)
        np.testing.assert_array_equal(step.obs, obs)
        np.testing.assert_array_equal(step.rewards, rewards)
        np.testing.assert_array_equal(step.terminated, terminated)
        np.testing.assert_array_equal(step.truncated, truncated)
        np.testing.assert_array_equal(ours.obs, obs)
        np.testing.assert_array_equal(ours.starts, terminated | truncated)
        for i in np.flatnonzero(step.dones):
            np.testing.assert_array_equal(step.next_obs[i], info["final_obs"][i])
        if not step.dones.any():
            assert step.next_obs is step.obs
        ended += int(step.dones.sum())
    assert ended > 20


def test_returns_and_lengths_are_those_of_the_episode_whatever_is_learned_from() -> None:
    envs = Envs.make("CartPole-v1", 2, reward_scale=0.5)
    envs.reset(1)
    lengths, counted = np.zeros(2), []
    for _ in range(100):
        step = envs.step(np.array([0, 1]))
        assert set(step.rewards.tolist()) == {0.5}
        lengths += 1
        for episode in step.episodes:
            assert episode.length == episode.ret == lengths[episode.env]
            lengths[episode.env] = 0
            counted.append(episode)
    assert counted


def test_a_time_limit_truncates_and_an_end_terminates() -> None:
    envs = Envs.make("CartPole-v1", 1, max_episode_steps=3)
    envs.reset(1)
    steps = [envs.step(np.array([i % 2])) for i in range(3)]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True]
    assert not any(step.terminated[0] for step in steps)


def test_normalised_rewards_and_observations_leave_the_episode_as_it_was() -> None:
    plain, normalised = (
        Envs.make("Pendulum-v1", 2, clip_actions=True),
        Envs.make("Pendulum-v1", 2, clip_actions=True, obs_normaliser=True, reward_normaliser_gamma=0.99),
    )
    plain.reset(3)
    normalised.reset(3)
    for _ in range(200):
        actions = np.full((2, 1), 5.0, np.float32)  # beyond the bounds: clipped
        a, b = plain.step(actions), normalised.step(actions)
    assert [e.ret for e in a.episodes] == [e.ret for e in b.episodes]
    assert np.abs(b.obs).max() <= 10
    assert normalised.obs_normaliser is not None
    assert normalised.obs_normaliser.moments.count == pytest.approx(2 + 2 * 200 + 2, abs=1e-3)


def test_observations_of_every_kind_become_rows() -> None:
    assert Envs.make("FrozenLake-v1", 2).reset(0).tolist() == [[1.0] + [0.0] * 15] * 2
    assert Envs.make("Blackjack-v1", 1).obs_shape == (32 + 11 + 2,)
    images = Envs.make("MiniGrid-Empty-5x5-v0", 2)
    assert (images.reset(0).shape, images.obs_dtype) == ((2, 7, 7, 3), np.uint8)
    mujoco = Envs.make("HalfCheetah-v4", 1).reset(0)
    assert (mujoco.shape, mujoco.dtype) == ((1, 17), np.float32)


def test_levels_are_new_each_episode_or_always_the_same() -> None:
    def layouts(**options: Any) -> list[bytes]:
        env = make_env("MiniGrid-FourRooms-v0", **options)
        seeds = [env.reset(seed=5 if i == 0 else None)[1]["episode_seed"] for i in range(3)]
        assert len(set(seeds)) == (3 if options.get("procedural_generation", True) else 1)
        found = []
        for _ in range(3):
            env.reset()
            found.append(env.unwrapped.grid.encode().tobytes() + bytes(env.unwrapped.agent_pos))  # type: ignore[attr-defined]
        return found

    assert len(set(layouts())) > 1
    assert len(set(layouts(procedural_generation=False))) == 1
    assert layouts() == layouts(), "the same seed must give the same levels"


def test_minigrid_has_a_time_limit_of_its_own_and_others_keep_theirs() -> None:
    def limit(env_id: str, **options: Any) -> int:
        spec = make_env(env_id, **options).spec
        assert spec is not None
        assert spec.max_episode_steps is not None
        return spec.max_episode_steps

    assert limit("CartPole-v1") == 500
    assert limit("CartPole-v1", max_episode_steps=100) == 100
    assert limit("MiniGrid-Empty-5x5-v0") == 256


def test_what_does_not_fit_is_refused_with_the_remedy() -> None:
    cartpole, pendulum = Envs.make("CartPole-v1", 1), Envs.make("Pendulum-v1", 1)
    assert require_discrete_actions(cartpole, "dqn", "td3_continuous_action") == 2
    assert require_continuous_actions(pendulum, "td3_continuous_action", "dqn", bounded=True) == 1
    assert require_vectors(pendulum, "dqn") == 3
    with pytest.raises(BadConfig, match="use --algo td3_continuous_action"):
        require_discrete_actions(pendulum, "dqn", "td3_continuous_action")
    with pytest.raises(BadConfig, match="use --algo dqn"):
        require_continuous_actions(cartpole, "td3_continuous_action", "dqn")
    with pytest.raises(BadConfig, match="images"):
        require_vectors(Envs.make("MiniGrid-Empty-5x5-v0", 1), "dqn")
    with pytest.raises(BadConfig, match="at least 1"):
        Envs.make("CartPole-v1", 0)
    with pytest.raises(BadConfig, match="NoSuch"):
        Envs.make("NoSuchEnv-v1", 1)


class Odd(gym.Env[Any, Any]):
    """Gives rewards, and shows observations, that are not what they should be."""

    def __init__(
        self, reward: Any = 1.0, shown: Any = (0.0, 0.0), actions: gym.spaces.Space[Any] | None = None
    ) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
        self.action_space = actions or gym.spaces.Discrete(2)
        self.reward, self.shown = reward, shown

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return np.array(self.shown), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        del action
        return np.array(self.shown), self.reward, False, False, {}


@pytest.mark.parametrize("reward", [1, True, np.float64(2.5), np.array(0.5)])
def test_a_reward_is_a_number_of_any_kind(reward: Any) -> None:
    envs = Envs([Odd(reward)])
    envs.reset(1)
    assert envs.step(np.array([0])).rewards.tolist() == [float(reward)]


@pytest.mark.parametrize("reward", [None, "1", [1.0, 2.0], np.array([1.0, 2.0])])
def test_a_reward_that_is_not_a_number_is_refused(reward: Any) -> None:
    envs = Envs([Odd(reward)])
    envs.reset(1)
    with pytest.raises(BadConfig, match=r"gave the reward .*, which is not a number"):
        envs.step(np.array([0]))


@pytest.mark.parametrize("reward", [float("nan"), np.float32("inf")])
def test_a_reward_that_is_not_finite_ends_the_run_before_it_is_kept(reward: Any) -> None:
    envs = Envs([Odd(), Odd(reward)])
    envs.reset(1)
    with pytest.raises(Diverged, match=r"environment 1 is (nan|inf) in step 1") as ended:
        envs.step(np.array([0, 0]))
    assert (ended.value.reason, ended.value.exit_code) == ("NaNReward", 3)


class Old(Odd):
    """Has the interface that gym had: no truncation, and no info at a reset."""

    def __init__(self, *, old_reset: bool) -> None:
        super().__init__()
        self.old_reset = old_reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        given = super().reset(seed=seed, options=options)
        return given[0] if self.old_reset else given

    def step(self, action: Any) -> Any:
        obs, reward, done, _, info = super().step(action)
        return obs, reward, done, info


def test_the_interface_that_gym_had_is_refused() -> None:
    """An observation of two numbers would else be taken for an observation and its info."""
    with pytest.raises(BadConfig, match=r"reset does not give .* \(observation, info\)"):
        Envs([Old(old_reset=True)]).reset(1)
    envs = Envs([Old(old_reset=False)])
    envs.reset(1)
    with pytest.raises(BadConfig, match="step does not give five things"):
        envs.step(np.array([0]))
    for reset in (lambda _: None, lambda _, seed=None: None):
        before = type("Before", (Odd,), {"reset": reset})
        before.reset.__qualname__ = "Before.reset"
        with pytest.raises(BadConfig, match="let it take seed=None and options=None"):
            Envs([gym.wrappers.OrderEnforcing(before())]).reset(1)


def test_an_environment_that_takes_no_render_mode_is_trained_on_unseen(tmp_path: Path) -> None:
    """Frames are asked for by default, and an environment need not be able to draw."""
    gym.register("Unseen-v0", entry_point=lambda: Odd())
    try:
        envs = Envs.make("Unseen-v0", 1, render=True)
        envs.reset(1)
        envs.step(np.array([0]))
        with pytest.raises(BadConfig, match="can't be recorded here"):
            Envs.make("Unseen-v0", 1, video=tmp_path)
    finally:
        del gym.registry["Unseen-v0"]


def test_a_module_that_is_to_register_an_environment_and_is_not_there_is_named() -> None:
    with pytest.raises(BadConfig, match=r"given with the module that registers it: MODULE:Quixotic-v0"):
        make_env("Quixotic-v0")
    with pytest.raises(BadConfig, match=r"there is no module nowhere_envs: install it, or .* PYTHONPATH"):
        make_env("nowhere_envs:Maze-v0")


@pytest.mark.parametrize("shown", [0.5, (0.1, 0.2, 0.3)])
def test_an_observation_of_another_size_than_its_space_is_refused(shown: Any) -> None:
    with pytest.raises(BadConfig, match=r"its observation space has \(2,\)"):
        Envs([Odd(shown=shown)]).reset(1)


@pytest.mark.parametrize("several", [gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(3)])
def test_no_algorithm_is_named_for_actions_that_none_takes(several: gym.spaces.Space[Any]) -> None:
    for require in (require_discrete_actions, require_continuous_actions):
        with pytest.raises(BadConfig, match="no algorithm takes those") as refused:
            require(Envs([Odd(actions=several)]), "ppo", "dqn")
        assert "--algo" not in str(refused.value)


def test_no_algorithm_is_named_for_boxes_that_none_takes() -> None:
    for box in (gym.spaces.Box(0, 3, (1,), np.int32), gym.spaces.Box(-1, 1, (2, 2))):
        with pytest.raises(BadConfig, match="no algorithm takes those"):
            require_discrete_actions(Envs([Odd(actions=box)]), "ppo", "ppo_continuous_action")


def test_bounds_must_be_real_and_within_reach_of_each_other() -> None:
    """A Box of whole numbers is not continuous; bounds may be finite, and what lies between them not."""
    whole, huge = gym.spaces.Box(0, 5, (2,), np.int64), gym.spaces.Box(-3e38, 3e38, (2,), np.float32)
    with pytest.raises(BadConfig, match="real numbers"):
        require_continuous_actions(Envs([Odd(actions=whole)]), "ppo_continuous_action", "ppo")
    with pytest.raises(BadConfig, match="finite bounds"):
        require_continuous_actions(Envs([Odd(actions=huge)]), "sac_continuous_action", "dqn", bounded=True)
    assert require_continuous_actions(Envs([Odd(actions=huge)]), "ppo_continuous_action", "ppo") == 2


def test_an_environment_that_cannot_draw_is_not_recorded(tmp_path: Path) -> None:
    class Blind(gym.Wrapper[Any, Any, Any, Any]):
        def render(self) -> Any:
            raise OSError("no screen")

    blind = Blind(gym.make("CartPole-v1", render_mode="rgb_array"))
    with pytest.raises(
        BadConfig, match=r"can't be recorded here \(OSError: no screen\): leave the capture of video out"
    ):
        Envs([blind], video=tmp_path, video_trigger=lambda _: True).reset(1)
    with pytest.raises(BadConfig, match="can't be recorded here"):
        Envs([gym.make("CartPole-v1")], video=tmp_path)

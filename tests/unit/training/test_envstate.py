"""An environment put back in mid-episode goes on exactly as the one it was taken from, for every family we promise."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.training.envs import Envs

PROMISED = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Pendulum-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "MiniGrid-DoorKey-5x5-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "BabyAI-GoToLocal-v0",
    "HalfCheetah-v4",
    "Hopper-v5",
    "Humanoid-v4",
    "ALE/Pong-v5",
]


class Atari:
    """Pong behind the wrappers that keep something between steps."""

    @staticmethod
    def make() -> Envs:
        gym.register_envs(ale_py)
        env: Any = gym.make("ALE/Pong-v5", frameskip=1)  # sticky actions: the emulator draws random numbers itself
        env = gym.wrappers.AtariPreprocessing(env, noop_max=30)
        return Envs([gym.wrappers.FrameStackObservation(env, 4)], flatten=False)


def envs_of(env_id: str, num_envs: int = 2, **options: Any) -> Envs:
    return Atari.make() if env_id.startswith("ALE") else Envs.make(env_id, num_envs, clip_actions=True, **options)


def actions(envs: Envs, rng: np.random.Generator) -> np.ndarray:
    if envs.discrete:
        return rng.integers(0, envs.single_action_space.n, envs.num_envs)
    return rng.uniform(-1, 1, (envs.num_envs, *envs.single_action_space.shape)).astype(np.float32)


def trace(envs: Envs, steps: int, seed: int) -> list[tuple[bytes, ...]]:
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        step = envs.step(actions(envs, rng))
        seen.append((step.obs.tobytes(), step.rewards.tobytes(), step.dones.tobytes(), repr(step.episodes).encode()))
    return seen


@pytest.mark.parametrize("env_id", PROMISED)
@pytest.mark.parametrize("steps", [0, 23, 61])
def test_the_restored_one_goes_on_exactly(env_id: str, steps: int) -> None:
    first = envs_of(env_id)
    first.reset(11)
    trace(first, steps, seed=1)
    state = first.state_dict()

    second = envs_of(env_id)
    second.reset(99)
    second.load_state_dict(state)
    assert second.restarted == []
    assert trace(first, 60, seed=2) == trace(second, 60, seed=2)


def test_after_rendering_it_is_still_exact() -> None:
    first, second = (Envs.make("CartPole-v1", 1, render=True) for _ in range(2))
    first.reset(1)
    trace(first, 7, seed=1)
    assert first.render((0,))[0].ndim == 3
    second.reset(5)
    second.load_state_dict(first.state_dict())
    assert trace(first, 50, seed=2) == trace(second, 50, seed=2)


class Unknown(gym.Env[Any, Any]):
    """Not in the table: it could hide anything."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(1, np.float32), 1.0, False, False, {}


def test_an_unknown_family_begins_a_fresh_episode_and_says_so() -> None:
    first, second = Envs([Unknown()]), Envs([Unknown()])
    first.reset(1)
    trace(first, 5, seed=1)
    second.reset(1)
    second.load_state_dict(first.state_dict())
    assert second.restarted == [0]
    assert second.obs.tolist() == [[0.0]]
    assert second.starts.tolist() == [True]


class Drawn(Unknown):
    """Each episode shows its own number."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.np_random.random(1, np.float32), {}


def test_a_fresh_episode_is_none_that_an_earlier_attempt_began_with() -> None:
    first = Envs([Drawn(), Drawn()])
    begun = [first.reset(1).ravel().tolist()]
    for _ in range(3):
        trace(first, 5, seed=1)
        state, first = first.state_dict(), Envs([Drawn(), Drawn()])
        first.reset(1)
        first.load_state_dict(state)
        begun.append(first.obs.ravel().tolist())
    assert len({number for attempt in begun for number in attempt}) == 8


def test_a_replay_that_shows_something_else_is_not_accepted() -> None:
    first, second = Envs.make("CartPole-v1", 1), Envs.make("CartPole-v1", 1)
    first.reset(1)
    trace(first, 5, seed=1)
    state = first.state_dict()
    state["raw"] = state["raw"] + 1
    second.reset(1)
    second.load_state_dict(state)
    assert second.restarted == [0]


def test_statistics_return_even_when_the_number_of_environments_changed() -> None:
    first, second = (Envs.make("Pendulum-v1", n, clip_actions=True, obs_normaliser=True) for n in (2, 3))
    first.reset(1)
    trace(first, 50, seed=1)
    second.reset(1)
    second.load_state_dict(first.state_dict())
    assert second.restarted == [0, 1, 2]
    assert first.obs_normaliser is not None
    assert second.obs_normaliser is not None
    np.testing.assert_array_equal(second.obs_normaliser.moments.mean, first.obs_normaliser.moments.mean)
    shown = second.state_dict()["raw"]
    np.testing.assert_array_equal(second.obs, first.obs_normaliser(shown), "what is shown already is normalised so too")

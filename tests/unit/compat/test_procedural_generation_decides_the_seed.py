from __future__ import annotations

from typing import Any

import gymnasium as gym

from cleanrl_worker.compat.procedural import ProceduralGenerationWrapper


class SeedRecorder(gym.Env[Any, Any]):
    observation_space = gym.spaces.Discrete(1)
    action_space = gym.spaces.Discrete(1)

    def __init__(self) -> None:
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.seeds.append(seed)
        return 0, {"own": 1}


def test_procedural_ignores_the_given_seed_and_draws_a_new_one_each_time() -> None:
    env = SeedRecorder()
    wrapped = ProceduralGenerationWrapper(env)
    infos = [wrapped.reset(seed=7)[1] for _ in range(3)]
    assert 7 not in env.seeds
    assert len(set(env.seeds)) == 3
    assert [info["episode_seed"] for info in infos] == env.seeds
    assert [info["episode_number"] for info in infos] == [0, 1, 2]
    assert all(info["procedural_generation"] and info["own"] == 1 for info in infos)


def test_fixed_always_uses_its_seed() -> None:
    env = SeedRecorder()
    wrapped = ProceduralGenerationWrapper(env, procedural=False, fixed_seed=42)
    infos = [wrapped.reset(seed=seed)[1] for seed in (1, None)]
    assert env.seeds == [42, 42]
    assert [info["fixed_seed"] for info in infos] == [42, 42]


def test_draws_can_be_reproduced() -> None:
    sequences = []
    for _ in range(2):
        env = SeedRecorder()
        wrapped = ProceduralGenerationWrapper(env, draw_seed=5)
        for _ in range(3):
            wrapped.reset()
        sequences.append(env.seeds)
    assert sequences[0] == sequences[1]

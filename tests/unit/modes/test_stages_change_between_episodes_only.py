"""A curriculum over real environments: who plays what, when a stage ends, and that a checkpoint holds all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cleanrl_worker.schedule import Stage
from cleanrl_worker.training.envs import Envs, make_env
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.wrappers.curriculum import FEWEST, BabyAITaskWrapper, StageCurriculum

SMALL, LARGE = "MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-6x6-v0"
LEFT = 0


def envs(*stages: Stage, count: int = 3, limit: int = 7) -> Envs:
    made = Envs.make(stages[-1].env_id, count, max_episode_steps=limit, schedule=list(stages))
    made.reset(1)
    return made


def played(vector: Envs) -> list[str]:
    return [env.current_env_id for env in vector.inner]  # type: ignore[attr-defined]


def test_each_environment_switches_at_the_end_of_its_own_episode() -> None:
    vector = envs(Stage(SMALL, steps=10), Stage(LARGE))
    assert vector.stages is not None
    vector._lengths[1] = 0
    vector.envs[1].step(LEFT)  # from now on this environment's episodes end one step before the others'
    before, mixed = played(vector), False
    for _ in range(40):
        step = vector.step(np.full(3, LEFT))
        ended = {episode.env for episode in step.episodes}
        now = played(vector)
        for env in range(3):
            assert now[env] == before[env] or env in ended, "an environment changed within an episode"
        before, mixed = now, mixed or len(set(now)) == 2
    assert mixed, "they should not have switched in the same step"
    assert before == [LARGE] * 3


def test_steps_are_counted_as_they_are_taken_and_an_end_comes_with_an_episode() -> None:
    vector = envs(Stage(SMALL, steps=20), Stage(LARGE), count=2, limit=7)
    assert vector.stages is not None
    seen = []
    for _ in range(21):
        vector.step(np.full(2, LEFT))
        seen.append(vector.stages.stage)
    # Episodes end in steps 7 and 14 of each environment: 14 environment steps are too few, 28 are enough.
    assert seen.index(1) == 13
    assert vector.stages.curriculum.n_steps == 2 * 7, "the counters begin again with the stage"
    assert vector.stages.curriculum.total_steps == 2 * 21


def test_an_episode_counts_for_the_stage_it_was_played_in() -> None:
    curriculum = StageCurriculum([Stage(SMALL, episodes=2), Stage(LARGE, episodes=2), Stage(SMALL)])
    for task in (0, 0, 0, 0, 0):  # the last three are stragglers
        curriculum.update_on_episode(1.0, 5, task, 1.0)
    assert (curriculum.stage, curriculum.n_episodes, curriculum.total_episodes) == (1, 0, 5)
    curriculum.update_on_episode(1.0, 5, 1, 1.0)
    curriculum.update_on_episode(1.0, 5, 1, 1.0)
    assert curriculum.stage == 2
    curriculum.update_on_episode(1.0, 5, 2, 1.0)
    assert curriculum.stage == 2, "the last stage has no end"


def test_one_lucky_episode_ends_nothing() -> None:
    curriculum = StageCurriculum([Stage(SMALL, episode_return=0.5), Stage(LARGE)])
    for _ in range(FEWEST - 1):
        curriculum.update_on_episode(1.0, 5, 0, 1.0)
    assert curriculum.stage == 0
    curriculum.update_on_episode(0.0, 5, 0, 1.0)
    assert curriculum.stage == 1


def test_the_first_condition_that_holds_ends_the_stage() -> None:
    curriculum = StageCurriculum([Stage(SMALL, steps=1000, episodes=3, episode_return=0.9), Stage(LARGE)])
    for _ in range(3):
        curriculum.update_on_episode(0.0, 5, 0, 1.0)
    assert curriculum.stage == 1


def trace(vector: Envs, steps: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        step = vector.step(rng.integers(0, 3, vector.num_envs))
        seen.append((step.obs.tobytes(), step.rewards.tobytes(), step.episodes, played(vector)))
    return seen


@pytest.mark.parametrize("cut", [5, 12, 31], ids=["before", "between", "after"])
def test_a_checkpoint_holds_stage_counters_and_episodes(cut: int) -> None:
    stages = (Stage(SMALL, steps=20), Stage(LARGE))
    one = envs(*stages)
    trace(one, cut, 1)
    state = one.state_dict()
    expected = trace(one, 40, 2)
    other = envs(*stages)
    trace(other, 3, 9)  # what a fresh process does before it restores must not matter
    other.load_state_dict(state)
    assert not other.restarted
    assert trace(other, 40, 2) == expected
    assert one.stages is not None
    assert other.stages is not None
    assert one.stages.state_dict() == other.stages.state_dict()


def test_a_curriculum_of_one_stage_is_a_plain_run() -> None:
    plain = Envs.make(SMALL, 3, max_episode_steps=7)
    plain.reset(1)
    rng = np.random.default_rng(2)
    single = envs(Stage(SMALL))
    for _ in range(20):
        actions = rng.integers(0, 3, 3)
        one, other = plain.step(actions), single.step(actions)
        assert one.obs.tobytes() == other.obs.tobytes()


def test_another_schedule_is_not_taken_for_this_one() -> None:
    state = envs(Stage(SMALL, steps=20), Stage(LARGE)).state_dict()
    with pytest.raises(ValueError, match="another curriculum schedule"):
        envs(Stage(SMALL, steps=21), Stage(LARGE)).load_state_dict(state)


def test_a_plain_runs_environments_are_not_taken_for_a_curriculums() -> None:
    plain = Envs.make(SMALL, 3, max_episode_steps=7)
    plain.reset(1)
    vector = envs(Stage(SMALL, steps=20), Stage(LARGE))
    vector.load_state_dict(plain.state_dict())
    assert vector.restarted == [0, 1, 2]


def test_stages_with_other_spaces_are_refused_before_the_first_step() -> None:
    with pytest.raises(BadConfig, match="Acrobot-v1 does not fit into this curriculum"):
        Envs.make("Acrobot-v1", 1, schedule=[Stage("CartPole-v1"), Stage("Acrobot-v1")])


def test_a_stage_that_does_not_exist_is_refused_before_the_first_step() -> None:
    with pytest.raises(BadConfig, match="MiniGrid-DoorKey-7x5-v0"):
        Envs.make(SMALL, 1, schedule=[Stage(SMALL), Stage("MiniGrid-DoorKey-7x5-v0")])


def test_the_wrapper_takes_a_number_or_an_id_at_a_reset() -> None:
    env = BabyAITaskWrapper(make_env, [SMALL, LARGE])
    _, info = env.reset(seed=3)
    assert (env.current_env_id, info["task"]) == (SMALL, 0)
    env.reset(new_task=LARGE)
    assert env.current_env_id == LARGE
    env.reset(new_task=0)
    assert env.current_env_id == SMALL
    with pytest.raises(ValueError, match="there is no stage 2"):
        env.reset(new_task=2)


def test_pictures_of_two_stages_stand_side_by_side() -> None:
    made = Envs.make(LARGE, 2, render=True, schedule=[Stage(SMALL), Stage(LARGE)])
    made.reset(1)
    made.inner[1].reset(new_task=1)  # type: ignore[call-arg]
    first, second = made.render((0, 1))
    assert first.shape == second.shape

"""Schedules: every form that is promised is read, everything else is refused with one sentence that says where."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanrl_worker.config import CleanRLWorkerConfig, ConfigError
from cleanrl_worker.schedule import PRESETS, ScheduleError, Stage, parse


def test_conditions_are_joined_in_a_fixed_order() -> None:
    stage = {"episode_return": 0.5, "env_id": "A-v0", "episodes": 10, "steps": 100}
    assert parse([stage])[0].condition == "steps>=100|episodes>=10|episode_return>=0.5"


def test_a_stage_without_conditions_ends_after_100000_steps() -> None:
    assert parse([{"env_id": "A-v0"}])[0].condition == "steps>=100000"


@pytest.mark.parametrize("text", ["steps>=200|episode_return>=0.9", " steps >= 200 | episode_return >= 0.9 "])
def test_conditions_may_be_given_as_one_text(text: str) -> None:
    assert parse([{"env_id": "A-v0", "until": text}]) == [Stage("A-v0", steps=200, episode_return=0.9)]


@pytest.mark.parametrize("name", ["BABYAI_GOTO_CURRICULUM", "babyai-goto", "babyai_goto_curriculum"])
def test_presets_are_known_by_their_names(name: str) -> None:
    stages = parse(name)
    assert [stage.env_id for stage in stages] == [
        "BabyAI-GoToRedBallNoDists-v0",
        "BabyAI-GoToRedBall-v0",
        "BabyAI-GoToObj-v0",
        "BabyAI-GoToLocal-v0",
    ]
    assert [stage.steps for stage in stages] == [200_000, 200_000, 200_000, None]


def test_the_doorkey_preset_goes_from_5x5_to_16x16() -> None:
    stages = parse("BABYAI_DOORKEY_CURRICULUM")
    assert [stage.env_id.split("-")[2] for stage in stages] == ["5x5", "6x6", "8x8", "16x16"]
    assert [stage.steps for stage in stages] == [100_000, 150_000, 200_000, None]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([], "the schedule is empty"),
        ("babyai-fly", "there is no preset 'babyai-fly'; there are BABYAI_GOTO_CURRICULUM, BABYAI_DOORKEY_CURRICULUM"),
        (7, "expected a list of stages or a preset"),
        ({"env_id": "A-v0"}, "expected a list of stages or a preset"),
        ([{"env_id": "A-v0"}, {}], "stage 2 is empty"),
        (["A-v0"], "stage 1: expected an object with an env_id"),
        ([{"steps": 5}], "stage 1: env_id must name an environment, got None"),
        ([{"env_id": "A v0"}], "stage 1: env_id must name an environment"),
        ([{"env_id": "A-v0", "step": 5}], "stage 1: 'step' is unknown; did you mean steps?"),
        ([{"env_id": "A-v0", "steps": 0}], "stage 1: steps must be a whole number of at least 1, got 0"),
        ([{"env_id": "A-v0", "steps": True}], "steps must be a whole number"),
        ([{"env_id": "A-v0", "episodes": 1.5}], "episodes must be a whole number"),
        ([{"env_id": "A-v0", "episode_return": "nan"}], "episode_return must be a finite number"),
        ([{"env_id": "A-v0", "until": "lives>=3"}], "the condition 'lives>=3' is unknown; expected steps>=..."),
        ([{"env_id": "A-v0", "until": "steps>5"}], "the condition 'steps>5' is unknown"),
        ([{"env_id": "A-v0", "until": "steps>=5|"}], "the condition '' is unknown"),
        ([{"env_id": "A-v0", "until": "steps>=5|steps>=6"}], "steps is given twice"),
        ([{"env_id": "A-v0", "until": "steps>=5", "episodes": 3}], "give either until or episodes, not both"),
        ([{"env_id": "A-v0"}] * 65, "at most 64"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(schedule: Any, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(schedule)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["env_id", "steps", "episodes", "episode_return", "until", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(json_like)
def test_anything_is_a_schedule_or_one_sentence(schedule: Any) -> None:
    try:
        stages = parse(schedule)
    except ScheduleError as error:
        assert "\n" not in str(error)
    else:
        assert parse([stage.to_dict() for stage in stages]) == stages


def config(**extras: Any) -> CleanRLWorkerConfig:
    payload = {"run_id": "r", "algo": "ppo", "total_timesteps": 1000, "extras": extras}
    return CleanRLWorkerConfig.from_dict(payload, env={})


def test_a_presets_name_becomes_its_stages_and_the_last_one_is_trained_for() -> None:
    found = config(curriculum_schedule="BABYAI_DOORKEY_CURRICULUM")
    assert found.mode == "curriculum"
    assert found.to_dict()["extras"]["curriculum_schedule"] == PRESETS["BABYAI_DOORKEY_CURRICULUM"]
    assert found.trained_env_id == found.env_id == "MiniGrid-DoorKey-16x16-v0"


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"mode": "curriculum"}, "curriculum_schedule is required"),
        ({"curriculum_schedule": []}, "extras.curriculum_schedule: the schedule is empty"),
        ({"curriculum_schedule": [{"env_id": "A-v0", "until": "moves>=1"}]}, "the condition 'moves>=1' is unknown"),
    ],
)
def test_a_bad_schedule_is_a_fault_of_the_configuration(extras: dict[str, Any], message: str) -> None:
    payload = {"run_id": "r", "algo": "ppo", "env_id": "A-v0", "total_timesteps": 9, "extras": extras}
    with pytest.raises(ConfigError) as caught:
        CleanRLWorkerConfig.from_dict(payload, env={})
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_foreign_script_is_told_that_it_cannot_follow() -> None:
    payload = {"run_id": "r", "algo": "cleanrl.ppo", "env_id": "A-v0", "total_timesteps": 9}
    payload["extras"] = {"curriculum_schedule": [{"env_id": "A-v0"}]}  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"the foreign script cleanrl\.ppo can't follow a curriculum"):
        CleanRLWorkerConfig.from_dict(payload, env={})

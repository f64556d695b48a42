"""A curriculum's schedule: environments in order, and what ends each stage. Pure, and free of heavy imports.

A stage is `{"env_id", "steps", "episodes", "episode_return"}`, where the first of the given conditions that holds ends it.
The same can be said in one text: `{"env_id", "until": "steps>=200000|episode_return>=0.9"}`. A stage that says nothing ends
after 100,000 steps; the last one has no end, and what it says about one is ignored.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_STEPS = 100_000
MOST_STAGES = 64

BABYAI_GOTO_CURRICULUM: list[dict[str, Any]] = [
    {"env_id": "BabyAI-GoToRedBallNoDists-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToRedBall-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToObj-v0", "steps": 200_000},
    {"env_id": "BabyAI-GoToLocal-v0"},
]
BABYAI_DOORKEY_CURRICULUM: list[dict[str, Any]] = [
    {"env_id": "MiniGrid-DoorKey-5x5-v0", "steps": 100_000},
    {"env_id": "MiniGrid-DoorKey-6x6-v0", "steps": 150_000},
    {"env_id": "MiniGrid-DoorKey-8x8-v0", "steps": 200_000},
    {"env_id": "MiniGrid-DoorKey-16x16-v0"},
]
PRESETS = {
    "BABYAI_GOTO_CURRICULUM": BABYAI_GOTO_CURRICULUM,
    "BABYAI_DOORKEY_CURRICULUM": BABYAI_DOORKEY_CURRICULUM,
}

_KEYS = ("env_id", "steps", "episodes", "episode_return", "until")
_METRICS = ("steps", "episodes", "episode_return")
_CLAUSE = re.compile(r"\s*([A-Za-z_]+)\s*>=\s*([^|>=\s]+)\s*")


class ScheduleError(ValueError):
    """A schedule that can't be followed. The message says where and what was expected."""


@dataclass(frozen=True)
class Stage:
    """One environment and the conditions of which the first to hold ends its stage."""

    env_id: str
    steps: int | None = None
    episodes: int | None = None
    episode_return: float | None = None

    @property
    def condition(self) -> str:
        """`steps>=N|episodes>=N|episode_return>=X`, as Syllabus reads it."""
        given = [(name, getattr(self, name)) for name in _METRICS]
        clauses = [f"{name}>={value!r}" for name, value in given if value is not None]
        return "|".join(clauses) or f"steps>={DEFAULT_STEPS}"

    def to_dict(self) -> dict[str, Any]:
        named = {"env_id": self.env_id, **{name: getattr(self, name) for name in _METRICS}}
        return {name: value for name, value in named.items() if value is not None}


def parse(schedule: Any) -> list[Stage]:
    """A list of stages, or a preset's name. Raises ScheduleError, with one sentence."""
    if isinstance(schedule, str):
        schedule = _preset(schedule)
    if not isinstance(schedule, list | tuple):
        raise ScheduleError(f"expected a list of stages or a preset ({', '.join(PRESETS)}), got {_show(schedule)}")
    if not schedule:
        raise ScheduleError('the schedule is empty; expected at least one stage, {"env_id": ...}')
    if len(schedule) > MOST_STAGES:
        raise ScheduleError(f"the schedule has {len(schedule)} stages; at most {MOST_STAGES} are possible")
    return [_stage(stage, f"stage {number}") for number, stage in enumerate(schedule, 1)]


def _preset(name: str) -> list[dict[str, Any]]:
    wanted = name.strip().upper().replace("-", "_").removesuffix("_CURRICULUM")
    found = {preset.removesuffix("_CURRICULUM"): stages for preset, stages in PRESETS.items()}
    if wanted not in found:
        raise ScheduleError(f"there is no preset {_show(name)}; there are {', '.join(PRESETS)}")
    return found[wanted]


def _stage(stage: Any, where: str) -> Stage:
    if not isinstance(stage, Mapping):
        raise ScheduleError(f"{where}: expected an object with an env_id, got {_show(stage)}")
    if not stage:
        raise ScheduleError(f'{where} is empty; expected {{"env_id": ...}}')
    for key in stage:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key), _KEYS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"a stage has {', '.join(_KEYS)}"
            raise ScheduleError(f"{where}: {_show(key)} is unknown; {hint}")
    env_id = stage.get("env_id")
    if not isinstance(env_id, str) or not env_id or any(character.isspace() for character in env_id):
        raise ScheduleError(f"{where}: env_id must name an environment, got {_show(env_id)}")
    given = {name: stage[name] for name in _METRICS if stage.get(name) is not None}
    if stage.get("until") is not None:
        if given:
            raise ScheduleError(f"{where}: give either until or {', '.join(given)}, not both")
        given = _clauses(stage["until"], where)
    values: dict[str, Any] = {name: _value(name, value, where) for name, value in given.items()}
    return Stage(env_id, **values)


def _clauses(text: Any, where: str) -> dict[str, Any]:
    if not isinstance(text, str) or not text.strip():
        raise ScheduleError(
            f"{where}: until must be a text such as 'steps>=200000|episode_return>=0.9', got {_show(text)}"
        )
    found: dict[str, Any] = {}
    for clause in text.split("|"):
        match = _CLAUSE.fullmatch(clause)
        if match is None or match[1] not in _METRICS:
            raise ScheduleError(
                f"{where}: the condition {_show(clause.strip())} is unknown; "
                f"expected {' or '.join(f'{name}>=...' for name in _METRICS)}, joined by '|'"
            )
        if match[1] in found:
            raise ScheduleError(f"{where}: {match[1]} is given twice")
        found[match[1]] = match[2]
    return found


def _value(name: str, value: Any, where: str) -> int | float:
    problem = ScheduleError(
        f"{where}: {name} must be {'a finite number' if name == 'episode_return' else 'a whole number of at least 1'}, "
        f"got {_show(value)}"
    )
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise problem
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise problem from None
    if not math.isfinite(number):
        raise problem
    if name == "episode_return":
        return number
    if number != int(number) or not 1 <= number < 2**53:
        raise problem
    return int(number)


def _show(value: Any) -> str:
    text = "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, list | tuple) else ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

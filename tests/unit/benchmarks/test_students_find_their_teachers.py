"""A student's benchmark needs the teacher's network, which a record of the teacher's score is not."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("learning")


def named(learning: Any, algo: str) -> Any:
    return next(case for case in learning.CASES if case.algo == algo)


def test_a_teacher_whose_network_is_gone_is_trained_again(learning: Any, tmp_path: Path) -> None:
    student, teacher = named(learning, "qdagger_dqn_atari_impalacnn"), named(learning, "dqn_atari")
    other = named(learning, "ppo_procgen")

    assert learning.absent_teachers([(student, 1), (other, 1)], tmp_path) == [(teacher, 1)]
    assert learning.absent_teachers([(student, 1), (teacher, 1)], tmp_path) == [], "it is about to be trained anyway"

    network = tmp_path / f"{teacher.file_name}-1" / "runs" / "any" / "dqn_atari.cleanrl_model"
    network.parent.mkdir(parents=True)
    network.touch()
    assert learning.absent_teachers([(student, 1)], tmp_path) == []
    assert learning.absent_teachers([(student, 2)], tmp_path) == [(teacher, 2)], "a seed has a teacher of its own"

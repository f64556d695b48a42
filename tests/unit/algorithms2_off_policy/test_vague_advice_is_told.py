"""A teacher whose values lie closer together than the temperature teaches nothing, and the student is told what to do."""

from __future__ import annotations

import re

import numpy as np

from cleanrl_worker.training.teacher import vague_advice


def advice(values: np.ndarray, temperature: float) -> np.ndarray:
    powers = np.exp(values / temperature - (values / temperature).max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def test_the_temperature_that_is_proposed_makes_advice_of_it() -> None:
    values = np.random.default_rng(0).normal(-1.0, 0.02, (32, 6))
    told = vague_advice(advice(values, 1.0), 1.0)
    proposed = re.search(r"try --temperature ([\d.e-]+)\.$", told)
    assert proposed is not None, told
    assert vague_advice(advice(values, float(proposed[1])), float(proposed[1])) == ""


def test_clear_advice_is_left_alone() -> None:
    certain = np.eye(6, dtype=np.float32)[np.arange(32) % 6]
    assert vague_advice(certain, 1.0) == ""
    assert vague_advice(advice(np.random.default_rng(0).normal(0.0, 2.0, (32, 6)), 1.0), 1.0) == ""


def test_a_teacher_that_knows_nothing_is_not_a_matter_of_temperature() -> None:
    told = vague_advice(np.full((32, 4), 0.25, np.float32), 1.0)
    assert "temperature" not in told and told.endswith("take one that has learned something.")

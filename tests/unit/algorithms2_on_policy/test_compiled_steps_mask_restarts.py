"""envpool from within compiled functions: the step after an end is no transition, and is counted as none."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")


def test_rows_after_an_end_are_not_valid_and_games_are_counted_whole() -> None:
    from cleanrl_worker.training.jax_envpool import Outcome, XlaAtari

    envs = XlaAtari("Breakout-v5", 2, seed=1)
    envs.reset(1)
    step = jax.jit(envs.step)
    rng = np.random.default_rng(0)
    outcomes, restarts, episodes = [], 0, []
    state, ended, before = envs.state, np.zeros(2, bool), np.asarray(envs.state.obs)
    for _ in range(260):
        state, outcome = step(state, rng.integers(0, 4, 2))
        outcome = Outcome(*(np.asarray(part) for part in outcome))
        np.testing.assert_array_equal(outcome.valid, ~ended)
        assert not (outcome.terminated & ended).any() and not outcome.rewards[ended].any()
        restarts += int(ended.sum())
        ended = outcome.terminated | outcome.truncated
        outcomes.append(outcome)
        before = np.asarray(state.obs)
    assert before.shape == (2, 4, 84, 84)
    for counted in envs.steps(Outcome(*(np.stack(parts) for parts in zip(*outcomes, strict=True)))):
        episodes += counted.episodes
    assert restarts > 5 and episodes
    valid = np.stack([outcome.valid for outcome in outcomes])
    over = np.stack([outcome.over for outcome in outcomes])
    first = episodes[0]
    end = int(np.flatnonzero(over[:, first.env])[0])
    assert first.length == int(valid[: end + 1, first.env].sum())
    assert first.ret == sum(float(outcome.scores[first.env]) for outcome in outcomes[: end + 1])
    envs.close()

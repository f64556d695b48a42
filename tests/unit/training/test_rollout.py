"""Advantages by their definition, at terminations, at truncations and at the rollout's end."""

from __future__ import annotations

import numpy as np
import pytest

from cleanrl_worker.training.rollout import Rollout, advantages, explained_variance


def by_definition(rewards, values, last_value, ends, end_values, gamma, lam):  # type: ignore[no-untyped-def]
    """Sum over k of (gamma lambda)^k delta, one environment, stopping where the episode ends."""
    steps = len(rewards)
    result = []
    for start in range(steps):
        total, weight = 0.0, 1.0
        for t in range(start, steps):
            following = end_values[t] if ends[t] else (values[t + 1] if t + 1 < steps else last_value)
            total += weight * (rewards[t] + gamma * following - values[t])
            weight *= gamma * lam
            if ends[t]:
                break
        result.append(total)
    return result


def test_advantages_follow_the_definition() -> None:
    rng = np.random.default_rng(0)
    steps, envs = 20, 3
    rewards, values = rng.normal(size=(2, steps, envs)).astype(np.float32)
    last = rng.normal(size=envs).astype(np.float32)
    ends = rng.random((steps, envs)) < 0.3
    end_values = (rng.normal(size=(steps, envs)) * ends * (rng.random((steps, envs)) < 0.5)).astype(np.float32)
    got = advantages(rewards, values, last, ends, end_values, 0.97, 0.9)
    for env in range(envs):
        columns = (rewards[:, env], values[:, env], last[env], ends[:, env], end_values[:, env])
        np.testing.assert_allclose(got[:, env], by_definition(*columns, 0.97, 0.9), rtol=1e-4, atol=1e-5)


def test_stale_end_values_do_not_matter_where_no_episode_ended() -> None:
    ones = np.ones((4, 1), np.float32)
    no = np.zeros((4, 1), bool)
    a = advantages(ones, ones, ones[0], no, ones * 0, 0.9, 0.9)
    b = advantages(ones, ones, ones[0], no, ones * 99, 0.9, 0.9)
    np.testing.assert_array_equal(a, b)


def test_a_half_filled_rollout_is_saved_and_completed() -> None:
    a = Rollout(4, 2, obs=((3,), np.float32), actions=((), np.int64))
    a.obs[:2], a.actions[:2], a.t = 7, 5, 2
    b = Rollout(4, 2, obs=((3,), np.float32), actions=((), np.int64))
    b.load_state_dict(a.state_dict())
    assert b.t == 2
    assert b.obs[:2].tolist() == a.obs[:2].tolist()
    with pytest.raises(ValueError, match="shape"):
        Rollout(4, 3, obs=((3,), np.float32), actions=((), np.int64)).load_state_dict(a.state_dict())
    with pytest.raises(ValueError, match="shape"):
        Rollout(1, 2, obs=((3,), np.float32), actions=((), np.int64)).load_state_dict(a.state_dict())


def test_explained_variance() -> None:
    actual = np.array([1.0, 2.0, 3.0], np.float32)
    assert explained_variance(actual, actual) == 1
    assert explained_variance(np.full(3, 2.0, np.float32), actual) == 0
    assert np.isnan(explained_variance(actual, np.ones(3, np.float32)))

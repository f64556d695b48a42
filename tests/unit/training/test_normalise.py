"""Running statistics equal those of all the data, in whatever portions it came, and survive saving."""

from __future__ import annotations

import numpy as np
import pytest

from cleanrl_worker.training.normalise import ObservationNormaliser, RewardNormaliser, RunningMoments


@pytest.mark.parametrize("portion", [1, 3, 64])
def test_moments_are_those_of_all_rows(portion: int) -> None:
    rows = np.random.default_rng(0).normal(5, 3, (192, 4))
    moments = RunningMoments((4,))
    for start in range(0, len(rows), portion):
        moments.update(rows[start : start + portion])
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(moments.var, rows.var(axis=0), rtol=1e-4)


def test_observations_become_standard_and_are_clipped() -> None:
    rows = np.random.default_rng(0).normal(5, 3, (500, 2))
    normaliser = ObservationNormaliser((2,))
    out = normaliser.update(rows)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(out.std(axis=0), 1, atol=1e-3)
    assert normaliser(np.full((1, 2), 1e6)).tolist() == [[10.0, 10.0]]


def test_rewards_are_divided_by_the_spread_of_the_return() -> None:
    rng = np.random.default_rng(0)
    normaliser = RewardNormaliser(8, gamma=0.9)
    for _ in range(3000):
        out = normaliser.update(rng.normal(0, 2, 8), np.zeros(8, bool))
    assert out.dtype == np.float32
    expected = 2 / np.sqrt(1 - 0.9**2)  # the standard deviation of a discounted sum of independent rewards
    assert np.sqrt(normaliser.moments.var) == pytest.approx(expected, rel=0.05)


def test_a_termination_ends_the_return_and_a_truncation_does_not() -> None:
    normaliser = RewardNormaliser(2, gamma=0.5)
    normaliser.update(np.ones(2), np.array([True, False]))
    normaliser.update(np.ones(2), np.array([True, False]))
    assert normaliser.returns.tolist() == [1.0, 1.5]


def test_saved_statistics_go_on_the_same() -> None:
    rng = np.random.default_rng(0)
    a, b = ObservationNormaliser((3,)), ObservationNormaliser((3,))
    a.update(rng.normal(size=(5, 3)))
    b.load_state_dict(a.state_dict())
    rows = rng.normal(size=(4, 3))
    assert a.update(rows).tobytes() == b.update(rows).tobytes()
    with pytest.raises(ValueError, match="do not fit"):
        ObservationNormaliser((4,)).load_state_dict(a.state_dict())

"""Actions are drawn from the softmax of the logits, whatever numbers the generator comes up with."""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanrl_worker.training.dense import draw


class Unlucky(np.random.Generator):
    """Draws zero for the second of three, as a float32 exponential is once in nine million."""

    def standard_exponential(self, size: Any = None, dtype: Any = None, **_: Any) -> Any:
        drawn = np.ones(size, dtype)
        drawn[..., 1] = 0.0
        return drawn


def test_frequencies_are_the_probabilities() -> None:
    logits = np.log(np.tile(np.array([[0.7, 0.2, 0.1]], np.float32), (20_000, 1)))
    drawn = np.bincount(draw(logits, np.random.default_rng(1)), minlength=3) / len(logits)
    np.testing.assert_allclose(drawn, [0.7, 0.2, 0.1], atol=0.01)


def test_a_draw_of_exactly_zero_is_a_draw_like_any_other() -> None:
    logits = np.array([[1.0, 0.0, -1.0], [-3.0, 2.0, 0.0]], np.float32)
    with np.errstate(all="raise"):
        assert draw(logits, Unlucky(np.random.PCG64(1))).tolist() == [1, 1]

"""Scores over seeds, judged as few runs have to be judged: the interquartile mean, with bootstrap intervals.

The interquartile mean leaves out the lowest and the highest quarter of all runs: it is less moved by one bad seed than the
mean, and uses more of the data than the median. Its interval comes from resampling the seeds of each case on their own
(stratified), so that no case counts for more by chance (Agarwal et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 5000


def iqm(values: Sequence[float]) -> float:
    """The mean of the middle half; a quarter of the values, rounded down, is left out at each end."""
    ordered = np.sort(np.asarray(values, float))
    cut = len(ordered) // 4
    return float(np.mean(ordered[cut : len(ordered) - cut]))


def interval(
    cases: Sequence[Sequence[float]], statistic: Callable[[Sequence[float]], float] = iqm, *, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of a statistic over all runs of all cases, by resampling each case's seeds."""
    generator = np.random.default_rng(seed)
    strata = [np.asarray(case, float) for case in cases]
    drawn = [
        statistic(np.concatenate([generator.choice(stratum, len(stratum)) for stratum in strata]))  # type: ignore[arg-type]
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def normalised(score: float, random: float, target: float) -> float:
    """0 is what a random policy gets, 1 the target."""
    return (score - random) / (target - random)

"""What returns of several episodes say: centre, spread, and how sure the mean is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

_Z = 1.959963984540054
_SMALL = {1: 12.7062, 2: 4.3027}


def t95(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t, to 0.2 % (Fisher's expansion around the normal quantile)."""
    if freedom in _SMALL:
        return _SMALL[freedom]
    z, n = _Z, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def half_interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the mean; None for fewer than two values."""
    n = len(values)
    return None if n < 2 else t95(n - 1) * statistics.stdev(values) / math.sqrt(n)


@dataclass
class EvalResult:
    """Returns and lengths, episode by episode, in the order of their seeds."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    discounted: list[float] = field(default_factory=list)
    """Returns discounted by the gamma that was asked for; empty when none was."""

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def avg_return(self) -> float:
        return statistics.fmean(self.returns)

    @property
    def avg_length(self) -> float:
        return statistics.fmean(self.lengths)

    @property
    def min_return(self) -> float:
        return min(self.returns)

    @property
    def max_return(self) -> float:
        return max(self.returns)

    @property
    def median_return(self) -> float:
        return statistics.median(self.returns)

    @property
    def std_return(self) -> float:
        """Of the population: 0 for one episode."""
        return statistics.pstdev(self.returns)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean return."""
        half = half_interval(self.returns)
        return None if half is None else (self.avg_return - half, self.avg_return + half)

    def summary(self) -> dict[str, float | int | list[float] | None]:
        """The figures by the names they have in files and events."""
        interval = self.interval
        return {
            "episodes": self.episodes,
            "avg_return": self.avg_return,
            "min_return": self.min_return,
            "max_return": self.max_return,
            "median_return": self.median_return,
            "std_return": self.std_return,
            "ci95_return": None if interval is None else list(interval),
            "avg_length": self.avg_length,
            "avg_discounted_return": statistics.fmean(self.discounted) if self.discounted else None,
        }

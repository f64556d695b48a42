"""Running mean and variance of observations and of discounted returns, with a state that can be saved.

Statistics are updated per batch by the parallel form of Welford's algorithm, so one update with n rows equals n updates with
one row. They start with a weight of `EPSILON` at mean 0 and variance 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

EPSILON = 1e-4


class RunningMoments:
    """Mean and variance of all rows seen so far. `m2` is the sum of squared deviations from the mean."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: Any = np.zeros(shape) if shape else 0.0
        self.m2: Any = np.full(shape, EPSILON) if shape else EPSILON
        self.count = EPSILON

    @property
    def var(self) -> Any:
        return self.m2 / self.count

    def update(self, rows: np.ndarray) -> None:
        """Take in a batch, first axis the rows."""
        n = len(rows)
        before, self.count = self.count, self.count + n
        if n == 1:  # the usual case with one environment: no reductions needed
            delta = rows[0] - self.mean
            self.mean = self.mean + delta * (1 / self.count)
            self.m2 = self.m2 + delta * (rows[0] - self.mean)
            return
        batch_mean = rows.mean(axis=0, dtype=np.float64)
        delta = batch_mean - self.mean
        self.mean = self.mean + delta * (n / self.count)
        self.m2 = self.m2 + np.square(rows - batch_mean).sum(axis=0) + delta * delta * (before * n / self.count)

    def state_dict(self) -> dict[str, Any]:
        return {
            "mean": np.asarray(self.mean),
            "var": np.asarray(self.var),
            "m2": np.asarray(self.m2),
            "count": self.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """`m2` may be missing: model files hold mean, variance and count."""
        if np.shape(state["mean"]) != np.shape(self.mean):
            raise ValueError(f"statistics of shape {np.shape(state['mean'])} do not fit {np.shape(self.mean)}")
        m2 = state["m2"] if "m2" in state else state["var"] * state["count"]
        self.count = float(state["count"])
        scalar = np.ndim(self.mean) == 0
        self.mean, self.m2 = (float(x) if scalar else np.asarray(x) for x in (state["mean"], m2))


class ObservationNormaliser:
    """Observations to zero mean and unit variance, clipped."""

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0, epsilon: float = 1e-8) -> None:
        self.moments = RunningMoments(shape)
        self.clip = clip
        self.epsilon = epsilon

    def update(self, rows: np.ndarray) -> np.ndarray:
        """Take in observations and return them normalised."""
        self.moments.update(rows)
        return self(rows)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Normalise without learning from the rows."""
        moments = self.moments
        deviation = np.sqrt(moments.m2 * (1 / moments.count) + self.epsilon)
        scaled: np.ndarray = ((rows - moments.mean) / deviation).astype(np.float32)
        np.maximum(scaled, -self.clip, out=scaled)
        np.minimum(scaled, self.clip, out=scaled)
        return scaled

    def state_dict(self) -> dict[str, Any]:
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state)


class RewardNormaliser:
    """Rewards divided by the standard deviation of the discounted return, clipped; the mean is left alone."""

    def __init__(self, num_envs: int, gamma: float, clip: float = 10.0, epsilon: float = 1e-8) -> None:
        self.moments = RunningMoments()
        self.returns = np.zeros(num_envs)
        self.gamma = gamma
        self.clip = clip
        self.epsilon = epsilon

    def update(self, rewards: np.ndarray, terminated: np.ndarray) -> np.ndarray:
        """Take in one step's rewards and return them normalised."""
        if len(rewards) == 1:
            return self._update_one(float(rewards[0]), bool(terminated[0]))
        self.returns = self.returns * (self.gamma * (1.0 - terminated)) + rewards
        self.moments.update(self.returns)
        scale = 1.0 / math.sqrt(self.moments.var + self.epsilon)
        scaled = np.asarray(rewards * scale, np.float32)
        np.maximum(scaled, -self.clip, out=scaled)
        np.minimum(scaled, self.clip, out=scaled)
        return scaled

    def _update_one(self, reward: float, terminated: bool) -> np.ndarray:
        """The same in plain numbers, which with one environment takes a fifth of the time."""
        moments = self.moments
        discounted = reward if terminated else self.gamma * float(self.returns[0]) + reward
        self.returns[0] = discounted
        moments.count += 1
        delta = discounted - float(moments.mean)
        moments.mean = moments.mean + delta / moments.count
        moments.m2 = moments.m2 + delta * (discounted - float(moments.mean))
        scaled = reward / math.sqrt(float(moments.m2) / moments.count + self.epsilon)
        return np.array([min(max(scaled, -self.clip), self.clip)], np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {**self.moments.state_dict(), "returns": self.returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state)
        if state["returns"].shape == self.returns.shape:
            self.returns = np.asarray(state["returns"])


def statistics_in(weights: Any) -> dict[str, Any] | None:
    """The observations' statistics that a model file holds beside its weights, as `load_state_dict` takes them."""
    names = ("mean", "var", "count")
    if not isinstance(weights, Mapping) or any(f"obs_normaliser.{name}" not in weights for name in names):
        return None
    return {name: np.asarray(weights[f"obs_normaliser.{name}"], np.float64) for name in names}

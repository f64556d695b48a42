"""What an on-policy algorithm collects between two updates, and the advantages computed from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt


class Rollout:
    """Named arrays of shape (num_steps, num_envs, ...) and `t`, the number of steps collected so far.

    Fields are given as name=(shape, dtype) and are attributes afterwards. A checkpoint in the middle of a rollout holds all
    of it, so that the rollout is completed by whoever resumes.
    """

    def __init__(self, num_steps: int, num_envs: int, **fields: tuple[tuple[int, ...], npt.DTypeLike]) -> None:
        self.num_steps, self.num_envs = num_steps, num_envs
        self.t = 0
        self._arrays = {name: np.zeros((num_steps, num_envs, *shape), dtype) for name, (shape, dtype) in fields.items()}
        vars(self).update(self._arrays)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def full(self) -> bool:
        return self.t >= self.num_steps

    def clear(self) -> None:
        self.t = 0

    def flat(self, name: str) -> npt.NDArray[Any]:
        """A field as one batch, steps and environments merged. No copy."""
        array = self._arrays[name]
        return array.reshape(-1, *array.shape[2:])

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t, **{name: array[: self.t] for name, array in self._arrays.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        t = int(state["t"])
        for name, array in self._arrays.items():
            if t > self.num_steps or state[name].shape[1:] != array.shape[1:]:
                raise ValueError(f"the saved rollout's {name} has shape {state[name].shape}, this run's {array.shape}")
        for name, array in self._arrays.items():
            array[:t] = state[name]
        self.t = t


def advantages(
    rewards: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    last_values: npt.NDArray[np.float32],
    ends: npt.NDArray[np.bool_],
    end_values: npt.NDArray[np.float32],
    gamma: float,
    gae_lambda: float,
) -> npt.NDArray[np.float32]:
    """Generalised advantage estimation (Schulman et al. 2016), arrays of shape (steps, envs).

    `ends` marks steps that ended an episode, and `end_values` is the value of what they led to: zero at a termination, the
    critic's word on the final observation at a truncation. `last_values` belongs to the observation after the last step.
    """
    following = np.concatenate([values[1:], last_values[None]])
    deltas = rewards + gamma * np.where(ends, end_values, following) - values
    carry = (gamma * gae_lambda) * (1.0 - ends)
    result = np.empty_like(values)
    for env in range(values.shape[1]):  # plain numbers: a NumPy operation per step would cost ten times as much
        running = 0.0
        backwards = []
        for delta, weight in zip(deltas[::-1, env].tolist(), carry[::-1, env].tolist(), strict=True):
            running = delta + weight * running
            backwards.append(running)
        result[:, env] = backwards[::-1]
    return result


def explained_variance(predicted: npt.NDArray[np.float32], actual: npt.NDArray[np.float32]) -> float:
    """1 when the values predict the returns perfectly, 0 when no better than their mean; NaN when returns are constant."""
    spread = float(actual.var())
    return float("nan") if spread == 0 else 1.0 - float((actual - predicted).var()) / spread

"""What an on-policy algorithm collects between two updates, and the advantages computed from it."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training.errors import BadConfig

if TYPE_CHECKING:
    from cleanrl_worker.training.envs import Step
    from cleanrl_worker.training.run import Run


def check_rollouts(args: Any, *, whole_sequences: bool = False, batches: int = 1, unit: str = "rollout") -> None:
    """Fill in the flags that follow from others (batch, minibatch, iterations), and refuse what can't work.

    With `whole_sequences` a minibatch is made of all the steps of some environments, for networks with a memory. `batches`
    is the number of rollouts that one `unit` of learning takes.
    """
    for name in ("num_envs", "num_steps", "num_minibatches", "update_epochs"):
        if getattr(args, name, 1) < 1:
            raise BadConfig(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}.")
    args.batch_size = args.num_envs * args.num_steps
    if whole_sequences and args.num_envs % args.num_minibatches:
        raise BadConfig(
            f"--num-minibatches {args.num_minibatches} does not divide --num-envs {args.num_envs}: a minibatch is made of the "
            "whole sequences of some environments. Choose a divisor."
        )
    if args.batch_size % args.num_minibatches:
        raise BadConfig(
            f"--num-minibatches {args.num_minibatches} does not divide the rollout of {args.batch_size} steps "
            f"({args.num_envs} environments times {args.num_steps} steps): choose a divisor of {args.batch_size}."
        )
    args.minibatch_size = args.batch_size // args.num_minibatches
    if getattr(args, "norm_adv", False) and args.minibatch_size < 2:
        raise BadConfig("A minibatch of one step can't be normalised: use fewer --num-minibatches, or --no-norm-adv.")
    args.num_iterations = args.total_timesteps // args.batch_size
    least = args.batch_size * batches
    if args.total_timesteps < least:
        made_of = f"{args.num_envs} environments times {args.num_steps} steps"
        if batches > 1:
            made_of += f" times {batches} rollouts"
        raise BadConfig(
            f"--total-timesteps {args.total_timesteps} is less than one {unit} of {least} steps ({made_of}): nothing would "
            f"be learned. Use at least {least}."
        )


class Passes:
    """How far an update has come in its passes over a rollout.

    On a CPU an update of a large network takes minutes, so a run must be able to checkpoint and stop in the middle of it. All
    that an update needs besides rollout, networks and optimizer is here, and kept in checkpoints.
    """

    def __init__(self, rows: int, **given: npt.NDArray[Any]) -> None:
        self.order = np.zeros(rows, np.int64)
        self.given = given
        """Arrays that were computed before the first minibatch, with networks that have moved on since."""
        self.epoch = self.minibatch = 0
        self.figures: dict[str, float] = {}
        """What is logged about the newest minibatch."""
        self.clipfracs: list[float] = []

    @property
    def begun(self) -> bool:
        return self.epoch > 0 or self.minibatch > 0

    def rows(self, rng: np.random.Generator, epochs: int, minibatches: int) -> Iterator[npt.NDArray[np.int64]]:
        """The rows of each minibatch that is still to come. What is handed out counts as done when it is next looked at."""
        while self.epoch < epochs:
            if self.minibatch == 0:
                self.order[:] = rng.permutation(len(self.order))
            parts = np.split(self.order, minibatches)
            while self.minibatch < minibatches:
                self.minibatch += 1
                yield parts[self.minibatch - 1]
            self.epoch, self.minibatch = self.epoch + 1, 0

    def stop_if(self, too_far: bool, epochs: int, minibatches: int) -> None:
        """End the passes with this epoch."""
        if too_far and self.minibatch == minibatches:
            self.epoch = epochs

    def clear(self) -> None:
        self.epoch = self.minibatch = 0
        self.clipfracs = []

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        arrays = {"order": self.order, **self.given}
        for name, array in arrays.items():
            saved = state["order"] if name == "order" else state["given"][name]
            if saved.shape != array.shape:
                raise ValueError(f"the saved update's {name} has shape {saved.shape}, this run's {array.shape}")
            array[...] = saved
        self.epoch, self.minibatch = int(state["epoch"]), int(state["minibatch"])
        self.figures, self.clipfracs = dict(state["figures"]), list(state["clipfracs"])


class RecentReturns:
    """The mean return of the last 20 episodes, with `lengths` their mean length too; kept in checkpoints."""

    def __init__(self, length: int = 20, *, lengths: bool = False) -> None:
        self.returns: deque[float] = deque(maxlen=length)
        self.lengths: deque[int] | None = deque(maxlen=length) if lengths else None

    def log(self, run: Run, step: Step) -> None:
        """Take in the episodes that ended in this step and log the means. Call it before the step is counted."""
        if step.episodes:
            self.returns.extend(episode.ret for episode in step.episodes)
            means = {"charts/avg_episodic_return": statistics.fmean(self.returns)}
            if self.lengths is not None:
                self.lengths.extend(episode.length for episode in step.episodes)
                means["charts/avg_episodic_length"] = statistics.fmean(self.lengths)
            run.scalars(means, step=run.step + len(step.rewards))

    def state_dict(self) -> dict[str, Any]:
        return {"returns": list(self.returns), "lengths": list(self.lengths or ())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.returns.clear()
        self.returns.extend(state["returns"])
        if self.lengths is not None:
            self.lengths.clear()
            self.lengths.extend(state.get("lengths", ()))


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

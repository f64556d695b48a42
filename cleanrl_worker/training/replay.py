"""Experience replay: a ring of transitions, sampled uniformly.

A transition is (obs, action, reward, next_obs, terminated): `next_obs` is what the environment really showed after the
action, also at the end of an episode, and only a *termination* stops the bootstrap. A truncated episode is simply a
transition that does not terminate, so no special case is left for the algorithms.

Stacks of images are kept by `replay_frames.py`, each image once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.replay_ring import Fields, Ring, Shape, ring_bytes

if TYPE_CHECKING:
    from cleanrl_worker.training.envs import Envs
    from cleanrl_worker.training.run import Run


def transition_fields(obs: Shape, action: Shape, obs_dtype: npt.DTypeLike = np.float32) -> Fields:
    """The fields of a transition. An action of shape () is discrete, any other continuous."""
    return {
        "obs": (obs, obs_dtype),
        "action": (action, np.float32 if action else np.int64),
        "reward": ((), np.float32),
        "next_obs": (obs, obs_dtype),
        "terminated": ((), np.float32),
    }


@dataclass
class Batch:
    """A sample. The arrays are buffers that the next sample of the same size overwrites."""

    obs: npt.NDArray[Any]
    action: npt.NDArray[Any]
    reward: npt.NDArray[np.float32]
    next_obs: npt.NDArray[Any]
    terminated: npt.NDArray[np.float32]


class Replay(Ring):
    """The last `capacity` transitions. Draws from its own generator, whose stream is saved and restored with it."""

    def __init__(self, capacity: int, fields: Fields, rng: np.random.Generator) -> None:
        super().__init__(capacity, fields)
        self.rng = rng
        self._obs, self._action = self._arrays["obs"], self._arrays["action"]
        self._reward, self._terminated = self._arrays["reward"], self._arrays["terminated"]
        self._next_obs = self._arrays["next_obs"]
        self._batches: dict[int, Batch] = {}

    def add(self, obs: Any, action: Any, reward: float, next_obs: Any, terminated: bool) -> None:
        """Keep one transition, in place of the oldest when the ring is full."""
        i = self.added % self.capacity
        self._obs[i] = obs
        self._action[i] = action
        self._reward[i] = reward
        self._next_obs[i] = next_obs
        self._terminated[i] = terminated
        self.added += 1

    def sample(self, size: int) -> Batch:
        """`size` transitions drawn uniformly, with replacement."""
        batch = self._batches.get(size)
        if batch is None:
            batch = Batch(**{n: np.empty((size, *a.shape[1:]), a.dtype) for n, a in self._arrays.items()})
            self._batches[size] = batch
        rows = self.rng.integers(0, len(self), size)
        # indices are in range, and with mode="raise" NumPy would fill a second buffer first
        self._obs.take(rows, 0, batch.obs, "clip")
        self._action.take(rows, 0, batch.action, "clip")
        self._reward.take(rows, 0, batch.reward, "clip")
        self._next_obs.take(rows, 0, batch.next_obs, "clip")
        self._terminated.take(rows, 0, batch.terminated, "clip")
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.rng.bit_generator.state = state["rng"]


# ---------------------------------------------------------------- for an algorithm's run


def make_replay(run: Run, envs: Envs) -> Replay:
    """The run's replay buffer, kept in its checkpoints. Flags that can't be are refused here.

    Reads `buffer_size`, `batch_size`, `learning_starts`, `total_timesteps` and the frequencies among the run's flags.
    """
    check_flags(run)
    fields = transition_fields(envs.obs_shape, () if envs.discrete else envs.single_action_space.shape, envs.obs_dtype)
    capacity = max(run.args.buffer_size // envs.num_envs, 1) * envs.num_envs
    reserve(run, ring_bytes(capacity, fields), capacity)
    replay = Replay(capacity, fields, run.rng.spawn(1)[0])
    run.keep(replay=replay)
    return replay


def check_flags(run: Run) -> None:
    """Refuse flags that can't be, and warn of a run too short to learn in: it makes its steps, as upstream's does."""
    args = run.args
    counts = ("buffer_size", "batch_size", "n_step")
    periods = ("train_frequency", "update_frequency", "policy_frequency", "target_network_frequency")
    for name in (*counts, *periods):
        if getattr(args, name, 1) < 1:
            raise BadConfig(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}.")
    if args.learning_starts >= args.total_timesteps:
        run.caveat = (
            f"--learning-starts {args.learning_starts} leaves nothing of --total-timesteps {args.total_timesteps} to learn "
            "in: these steps teach the policy nothing. Lower the first or raise the second."
        )
        run.note(run.caveat, level="warning")


def reserve(run: Run, needed: int, capacity: int) -> None:
    """Refuse a buffer of `needed` bytes that can't fit, and warn of one that fits barely."""
    verdict, sentence = memory_verdict(needed, memory_limit(), capacity=capacity)
    if verdict == "too much":
        raise BadConfig(sentence)
    if verdict == "tight":
        run.note(sentence, level="warning")


def memory_limit(root: Path = Path("/")) -> int | None:
    """The bytes this process may use: its cgroup's limit, else the machine's memory; None when neither can be read."""
    found = []
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    meminfo = root / "proc/meminfo"
    if meminfo.is_file():
        total = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:"))
        found.append(int(total.split()[1]) * 1024)
    return min(found, default=None)


def memory_verdict(needed: int, limit: int | None, *, capacity: int) -> tuple[str, str]:
    """("ok" | "tight" | "too much", sentence) for a replay buffer of `needed` bytes when full.

    A checkpoint copies at most 64 MB or one block beside it; a quarter of the limit is left to the rest of the program.
    """
    if limit is None or needed <= 0.75 * limit:
        return "ok", ""
    fits = int(capacity * 0.75 * limit / needed)
    sentence = (
        f"A full replay buffer of {capacity:,} transitions needs {needed / 2**30:.2f} GiB, and this process may use "
        f"{limit / 2**30:.2f} GiB. Set --buffer-size to {fits:,} or less, or give the run more memory."
    )
    return ("too much" if needed > limit else "tight"), sentence

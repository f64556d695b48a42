"""Experience replay: a ring of transitions, sampled uniformly, saved without copying what has not changed.

A transition is (obs, action, reward, next_obs, terminated): `next_obs` is what the environment really showed after the
action, also at the end of an episode, and only a *termination* stops the bootstrap. A truncated episode is simply a
transition that does not terminate, so no special case is left for the algorithms.

Saving: a ring below 64 MB is copied whole into the checkpoint. A larger one is cut into blocks. A full block does not
change until the ring comes round again, so it is written once, as a `Chunk`, and later checkpoints only name it. The
block being filled is copied.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.tree import Chunk

if TYPE_CHECKING:
    from cleanrl_worker.training.envs import Envs
    from cleanrl_worker.training.run import Run

COPY_WHOLE_BELOW = 64 * 2**20
BLOCK_BYTES = 16 * 2**20
"""What one chunk file holds at most of one field."""

Shape = tuple[int, ...]
Fields = Mapping[str, tuple[Shape, npt.DTypeLike]]


def transition_fields(obs: Shape, action: Shape, obs_dtype: npt.DTypeLike = np.float32) -> Fields:
    """The fields of a transition. An action of shape () is discrete, any other continuous."""
    return {
        "obs": (obs, obs_dtype),
        "action": (action, np.float32 if action else np.int64),
        "reward": ((), np.float32),
        "next_obs": (obs, obs_dtype),
        "terminated": ((), np.float32),
    }


def replay_bytes(capacity: int, fields: Fields) -> int:
    """The memory a full ring takes."""
    return capacity * sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in fields.values())


@dataclass
class Batch:
    """A sample. The arrays are buffers that the next sample of the same size overwrites."""

    obs: npt.NDArray[Any]
    action: npt.NDArray[Any]
    reward: npt.NDArray[np.float32]
    next_obs: npt.NDArray[Any]
    terminated: npt.NDArray[np.float32]


class Replay:
    """The last `capacity` transitions. Draws from its own generator, whose stream is saved and restored with it."""

    def __init__(self, capacity: int, fields: Fields, rng: np.random.Generator) -> None:
        if capacity < 1:
            raise ValueError("a replay buffer needs room for at least one transition")
        self.capacity, self.rng = capacity, rng
        self.added = 0
        """Transitions ever added: the next one goes to `added % capacity`."""
        # zeros are mapped lazily: memory is taken as the ring fills
        self._arrays = {name: np.zeros((capacity, *shape), dtype) for name, (shape, dtype) in fields.items()}
        self._obs, self._action = self._arrays["obs"], self._arrays["action"]
        self._reward, self._terminated = self._arrays["reward"], self._arrays["terminated"]
        self._next_obs = self._arrays["next_obs"]
        self._batches: dict[int, Batch] = {}
        self._lineage = secrets.token_hex(6)
        widest = max(array[:1].nbytes for array in self._arrays.values())
        self._block = capacity if self.nbytes < COPY_WHOLE_BELOW else max(1, BLOCK_BYTES // widest)
        self._keys: dict[int, tuple[int, str]] = {}
        """For each block that was saved as a chunk: how often it had been filled then, and the name it got."""

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values())

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

    # ---------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """Everything, as a tree with `Chunk`s for the blocks that can't change any more before they are overwritten."""
        return {
            "capacity": self.capacity,
            "added": self.added,
            "block": self._block,
            "rng": self.rng.bit_generator.state,
            "blocks": [self._save_block(start) for start in range(0, len(self), self._block)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved ring. One with another capacity gives its newest transitions, in their order."""
        size = min(int(state["added"]), int(state["capacity"]))
        same = state["capacity"] == self.capacity
        rows = np.arange(size)
        if not same:
            oldest = int(state["added"]) % int(state["capacity"]) if size == state["capacity"] else 0
            rows = np.roll(rows, -oldest)[-self.capacity :]
        for name, array in self._arrays.items():
            parts = [block["arrays"][name] for block in state["blocks"]]
            if any(part.shape[1:] != array.shape[1:] or part.dtype != array.dtype for part in parts):
                raise ValueError(f"the saved replay has another kind of {name!r} than this environment gives")
            start = 0
            if same:
                for part in parts:
                    array[start : start + len(part)] = part
                    start += len(part)
            elif parts:
                array[: len(rows)] = np.concatenate(parts)[rows]
        self.added = int(state["added"]) if same else len(rows)
        self.rng.bit_generator.state = state["rng"]
        self._keys = {}
        if same and int(state["block"]) == self._block:
            for index, block in enumerate(state["blocks"]):
                if block["key"]:
                    self._keys[index] = (self._fills(index), block["key"])

    def _fills(self, block: int) -> int:
        """How often the ring's writer has left this block behind: it is unchanged as long as this number is."""
        last = min((block + 1) * self._block, self.capacity)
        return (self.added - last) // self.capacity + 1 if self.added >= last else 0

    def _save_block(self, start: int) -> dict[str, Any]:
        stop = min(start + self._block, len(self))
        parts = {name: array[start:stop] for name, array in self._arrays.items()}
        index, position = start // self._block, self.added % self.capacity
        being_filled = start < position < stop or stop < min(start + self._block, self.capacity)
        if self._block == self.capacity or being_filled:
            return {"key": "", "arrays": parts}
        fills, key = self._keys.get(index, (-1, ""))
        if fills != self._fills(index):
            fills = self._fills(index)
            key = f"replay-{self._lineage}-{index}-{fills}"
            self._keys[index] = (fills, key)
        return {"key": key, "arrays": {name: Chunk(f"{key}-{name}", part.copy) for name, part in parts.items()}}


# ---------------------------------------------------------------- for an algorithm's run


def make_replay(run: Run, envs: Envs) -> Replay:
    """The run's replay buffer, kept in its checkpoints. Flags that leave nothing to learn from are refused here.

    Reads `buffer_size`, `batch_size`, `learning_starts`, `total_timesteps` and the frequencies among the run's flags.
    """
    args = run.args
    for name in ("buffer_size", "batch_size", "train_frequency", "policy_frequency", "target_network_frequency"):
        if getattr(args, name, 1) < 1:
            raise BadConfig(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}.")
    if args.learning_starts >= args.total_timesteps:
        raise BadConfig(
            f"--learning-starts {args.learning_starts} leaves nothing of --total-timesteps {args.total_timesteps} to learn "
            "in: lower the first or raise the second."
        )
    fields = transition_fields(envs.obs_shape, () if envs.discrete else envs.single_action_space.shape, envs.obs_dtype)
    capacity = max(args.buffer_size // envs.num_envs, 1) * envs.num_envs
    verdict, sentence = memory_verdict(replay_bytes(capacity, fields), memory_limit(), capacity=capacity)
    if verdict == "too much":
        raise BadConfig(sentence)
    if verdict == "tight":
        run.note(sentence, level="warning")
    replay = Replay(capacity, fields, run.rng.spawn(1)[0])
    run.keep(replay=replay)
    return replay


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

"""Replay for stacks of images: each image is stored once, as bytes, and stacks are put together when they are sampled.

Consecutive observations share all but one image, and `next_obs` is the next observation, so a transition costs one image and
not eight. An episode adds its first image once (a stack begins with copies of it) and its last one, so no stack ever mixes
two episodes and the observation at an episode's end is the one that was really shown.

Transitions may span several steps (`n_step`): the reward is then r1 + gamma r2 + ... and `next_obs` the observation after
the last of them. At the end of an episode they are as much shorter as they have to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training.replay import Batch, check_flags, reserve
from cleanrl_worker.training.replay_priority import Priorities
from cleanrl_worker.training.replay_ring import Fields, Ring, Shape, ring_bytes

if TYPE_CHECKING:
    from cleanrl_worker.training.envs import Envs
    from cleanrl_worker.training.run import Run

STEPS_PER_EPISODE = 20
"""Each episode needs one more image than it has steps: room is made for one in so many transitions. If episodes are shorter
still, the oldest transitions go a little earlier."""

ROW: Fields = {
    "frame": ((), np.int64),
    "depth": ((), np.uint8),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "next_frame": ((), np.int64),
    "next_depth": ((), np.uint8),
    "terminated": ((), np.float32),
    "discount": ((), np.float32),
}
"""A transition: the number of the newest image of `obs`, how many of its episode's images lie before it (no more than the
stack reaches), the same for `next_obs`, and gamma to the power of its steps, 0 if it terminates."""


def frame_replay_bytes(capacity: int, obs_shape: Shape) -> int:
    """The memory that a full buffer takes."""
    return ring_bytes(capacity, ROW) + ring_bytes(_images(capacity, obs_shape), _image_field(obs_shape))


def _images(capacity: int, obs_shape: Shape) -> int:
    return capacity + capacity // STEPS_PER_EPISODE + 2 * obs_shape[0]


def _image_field(obs_shape: Shape) -> Fields:
    return {"image": (obs_shape[1:], np.uint8)}


@dataclass
class _Pending:
    """A transition whose steps are not all taken yet."""

    frame: int
    depth: int
    action: int
    reward: float
    discount: float


@dataclass
class PrioritisedBatch(Batch):
    """A sample that was drawn by priority."""

    discount: npt.NDArray[np.float32]
    """What the value of `next_obs` is multiplied with: 0 where the transition terminates."""
    weight: npt.NDArray[np.float32]
    """By how much each one counts, to make up for how often it is drawn; the largest is 1."""
    place: npt.NDArray[np.int64]
    """Where they are, for `update_priorities`."""


class FrameReplay:
    """The last `capacity` transitions of one environment whose observations are (stack, height, width), sampled uniformly."""

    def __init__(
        self, capacity: int, obs_shape: Shape, rng: np.random.Generator, *, n_step: int = 1, gamma: float = 1.0
    ) -> None:
        self.capacity, self.rng, self.n_step, self.gamma = capacity, rng, n_step, gamma
        self._obs_shape = obs_shape
        self._back = np.arange(obs_shape[0])[::-1].copy()
        """How far each image of a stack lies behind the newest."""
        self._images = Ring(_images(capacity, obs_shape) + n_step, _image_field(obs_shape))
        self._rows = Ring(capacity, ROW)
        self._oldest = 0
        """The number of the oldest transition whose images are all still there."""
        self._tail: tuple[int, int] | None = None
        """Newest image and depth of the latest `next_obs`, None when its episode is over."""
        self._pending: list[_Pending] = []
        self._new = 1 if n_step == 1 else obs_shape[0]
        """How many images of `next_obs` are fetched; the others are `obs`'s, which a step later are still there."""
        self._batches: dict[int, Batch] = {}
        self._fetched: dict[int, npt.NDArray[np.uint8]] = {}
        """By a batch's size: the images that its `obs` and `next_obs` are views of."""

    def __len__(self) -> int:
        return self._rows.added - self._oldest

    @property
    def added(self) -> int:
        """Transitions ever added."""
        return self._rows.added

    @property
    def nbytes(self) -> int:
        return self._images.nbytes + self._rows.nbytes

    def add(
        self,
        obs: npt.NDArray[np.uint8],
        action: int,
        reward: float,
        next_obs: npt.NDArray[np.uint8],
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Keep one step. `obs` must be the `next_obs` before it, unless an episode begins with it."""
        if self._tail is not None and not np.array_equal(
            self._images["image"][self._tail[0] % self._images.capacity], obs[-1]
        ):
            self._end(*self._tail, terminated=False)  # the environment was started again, without a word
        frame, depth = self._tail or self._begin(obs)
        next_frame = self._store(next_obs[-1])
        next_depth = min(depth + 1, len(obs) - 1)
        self._pending.append(_Pending(frame, depth, int(action), 0.0, 1.0))
        for pending in self._pending:
            pending.reward += pending.discount * float(reward)
            pending.discount *= self.gamma
        self._tail = next_frame, next_depth
        if terminated or truncated:
            self._end(next_frame, next_depth, terminated=bool(terminated))
        elif len(self._pending) == self.n_step:
            self._emit(self._pending.pop(0), next_frame, next_depth, terminated=False)

    def sample(self, size: int) -> Batch:
        """`size` transitions drawn uniformly, with replacement."""
        batch = self._batches.get(size)
        if batch is None:
            batch = self._batches[size] = Batch(**self._buffers(size))
        self._fill(batch, self.rng.integers(self._oldest, self._rows.added, size) % self.capacity)
        return batch

    def observations(self, size: int) -> npt.NDArray[np.uint8]:
        """`size` observations drawn uniformly, in a new array."""
        place = self.rng.integers(self._oldest, self._rows.added, size) % self.capacity
        images = np.empty((size, *self._obs_shape), np.uint8)
        return self._fetch(self._stacks(self._rows["frame"][place], self._rows["depth"][place]), images)

    # ---------------------------------------------------------------- writing

    def _begin(self, obs: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Store the images of an episode's first observation; one is enough when they are all the same."""
        if (obs[:-1] == obs[-1]).all():
            return self._store(obs[-1]), 0
        return [self._store(image) for image in obs][-1], len(obs) - 1

    def _store(self, image: npt.NDArray[np.uint8]) -> int:
        number = self._images.added
        self._images["image"][number % self._images.capacity] = image
        self._images.added += 1
        rows, first_kept = self._rows, self._images.added - self._images.capacity
        while self._oldest < rows.added:
            place = self._oldest % self.capacity
            if int(rows["frame"][place]) - int(rows["depth"][place]) >= first_kept:
                break
            self._oldest += 1
            self._dropped(place)
        return number

    def _end(self, frame: int, depth: int, *, terminated: bool) -> None:
        for pending in self._pending:
            self._emit(pending, frame, depth, terminated=terminated)
        self._pending.clear()
        self._tail = None

    def _emit(self, done: _Pending, next_frame: int, next_depth: int, *, terminated: bool) -> None:
        rows = self._rows
        place = rows.added % self.capacity
        rows["frame"][place], rows["depth"][place] = done.frame, done.depth
        rows["action"][place], rows["reward"][place] = done.action, done.reward
        rows["next_frame"][place], rows["next_depth"][place] = next_frame, next_depth
        rows["terminated"][place] = terminated
        rows["discount"][place] = 0.0 if terminated else done.discount
        rows.added += 1
        self._oldest = max(self._oldest, rows.added - self.capacity)
        self._kept(place)

    def _kept(self, place: int) -> None:
        """A new transition is at this place."""

    def _dropped(self, place: int) -> None:
        """The transition at this place is no longer whole."""

    # ---------------------------------------------------------------- reading

    def _buffers(self, size: int) -> dict[str, npt.NDArray[Any]]:
        stack, *shape = self._obs_shape
        images = self._fetched[size] = np.empty((size, stack + self._new, *shape), np.uint8)
        plain = {name: np.empty(size, self._rows[name].dtype) for name in ("action", "reward", "terminated")}
        return {"obs": images[:, :stack], "next_obs": images[:, -stack:], **plain}

    def _fill(self, batch: Batch, place: npt.NDArray[np.int64]) -> None:
        rows = self._rows
        stacks = self._stacks(rows["frame"][place], rows["depth"][place])
        next_stacks = self._stacks(rows["next_frame"][place], rows["next_depth"][place])
        self._fetch(np.concatenate((stacks, next_stacks[:, -self._new :]), axis=1), self._fetched[len(place)])
        rows["action"].take(place, 0, batch.action, "clip")
        rows["reward"].take(place, 0, batch.reward, "clip")
        rows["terminated"].take(place, 0, batch.terminated, "clip")

    def _stacks(self, frame: npt.NDArray[np.int64], depth: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """The numbers of the images of the stacks that end with these; before an episode's first one comes itself again."""
        return frame[:, None] - np.minimum(depth[:, None], self._back)

    def _fetch(self, numbers: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        place = numbers.ravel() % self._images.capacity
        self._images["image"].take(place, 0, out.reshape(-1, *self._obs_shape[1:]), "clip")
        return out

    # ---------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        return {
            "images": self._images.state_dict(),
            "rows": self._rows.state_dict(),
            "rng": self.rng.bit_generator.state,
            "oldest": self._oldest,
            "tail": None if self._tail is None else list(self._tail),
            "pending": [vars(pending) for pending in self._pending],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved buffer. One with another capacity gives its newest transitions."""
        self._images.load_state_dict(state["images"])
        self._rows.load_state_dict(state["rows"])
        # with another capacity, images and rows are counted anew
        images = int(state["images"]["added"]) - self._images.added
        rows = int(state["rows"]["added"]) - self._rows.added
        for name in ("frame", "next_frame"):
            self._rows[name][: len(self._rows)] -= images
        self._oldest = max(int(state["oldest"]) - rows, 0)
        self._tail = None if state["tail"] is None else (int(state["tail"][0]) - images, int(state["tail"][1]))
        self._pending = [_Pending(**{**pending, "frame": pending["frame"] - images}) for pending in state["pending"]]
        self.rng.bit_generator.state = state["rng"]
        for number in range(self._oldest, self._rows.added):  # the newest images may not reach back to the oldest row
            place = number % self.capacity
            if int(self._rows["frame"][place]) - int(self._rows["depth"][place]) >= max(
                0, self._images.added - self._images.capacity
            ):
                break
            self._oldest += 1


class PrioritisedFrameReplay(FrameReplay):
    """Transitions are drawn in proportion to (|error| + eps) ** alpha (Schaul et al. 2016); new ones to the largest so far."""

    def __init__(
        self,
        capacity: int,
        obs_shape: Shape,
        rng: np.random.Generator,
        *,
        n_step: int,
        gamma: float,
        alpha: float,
        eps: float,
    ) -> None:
        super().__init__(capacity, obs_shape, rng, n_step=n_step, gamma=gamma)
        self.priorities = Priorities(capacity)
        self.alpha, self.eps = alpha, eps
        self._largest = 1.0

    def draw(self, size: int, beta: float) -> PrioritisedBatch:
        """`size` transitions, each in proportion to its priority; `beta` is how much of that the weights make up for."""
        batch = self._batches.get(size)
        if batch is None:
            floats = {name: np.empty(size, np.float32) for name in ("discount", "weight")}
            batch = PrioritisedBatch(**self._buffers(size), **floats, place=np.empty(size, np.int64))
            self._batches[size] = batch
        assert isinstance(batch, PrioritisedBatch)
        place = self.priorities.draw(size, len(self._rows), self.rng)
        self._fill(batch, place)
        self._rows["discount"].take(place, 0, batch.discount, "clip")
        priority = self.priorities.values.take(place)
        batch.weight[:] = (
            priority / priority.min()
        ) ** -beta  # (1 / (N * P)) ** beta over the largest: N and the sum cancel
        batch.place[:] = place
        return batch

    def update_priorities(self, place: npt.NDArray[np.int64], errors: npt.NDArray[np.floating[Any]]) -> None:
        """What was learned about the transitions at these places."""
        priorities = (np.abs(errors.astype(np.float64)) + self.eps) ** self.alpha
        self._largest = max(self._largest, float(priorities.max()))
        self.priorities.set(place, priorities)

    def _kept(self, place: int) -> None:
        self.priorities.put(place, self._largest)

    def _dropped(self, place: int) -> None:
        self.priorities.put(place, 0.0)

    def state_dict(self) -> dict[str, Any]:
        priorities = {"values": self.priorities.values[: len(self._rows)], **self.priorities.state_dict()}
        return {**super().state_dict(), "priorities": priorities, "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._largest = float(state["largest"])
        if int(state["rows"]["capacity"]) == self.capacity:
            self.priorities.load(state["priorities"]["values"], state["priorities"])
            return
        values = np.full(len(self._rows), self._largest)  # their places have changed: all are worth a look
        values[: self._oldest] = 0.0
        self.priorities.load(values)


def make_frame_replay(run: Run, envs: Envs) -> FrameReplay:
    """The run's replay buffer for stacked images, kept in its checkpoints: see `replay.make_replay`."""
    replay = FrameReplay(_checked_capacity(run, envs), envs.obs_shape, run.rng.spawn(1)[0])
    run.keep(replay=replay)
    return replay


def make_prioritised_replay(run: Run, envs: Envs) -> PrioritisedFrameReplay:
    """The same for a buffer that is drawn from by priority. Reads `n_step`, `gamma` and the `prioritized_replay` flags."""
    args = run.args
    replay = PrioritisedFrameReplay(
        _checked_capacity(run, envs),
        envs.obs_shape,
        run.rng.spawn(1)[0],
        n_step=args.n_step,
        gamma=args.gamma,
        alpha=args.prioritized_replay_alpha,
        eps=args.prioritized_replay_eps,
    )
    run.keep(replay=replay)
    return replay


def _checked_capacity(run: Run, envs: Envs) -> int:
    check_flags(run)
    capacity: int = run.args.buffer_size
    reserve(run, frame_replay_bytes(capacity, envs.obs_shape), capacity)
    return capacity

"""FastLane for scripts that know nothing of it: a gymnasium wrapper put around every environment they make.

All wrapped environments of a process share one publisher. Each gets the next slot number as it is made; the settings
say which slots are shown. In single mode that slot's frames go out; in grid mode a picture goes out when every shown
slot has given its frame.

The steps of the run are the script's own: those of its first vector environment, where it has one. The environments
inside are stepped more often than that (frame skipping, no-ops at the start of an episode).
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from cleanrl_worker.fastlane.frames import Image, as_image, render_small
from cleanrl_worker.fastlane.publisher import Publisher

log = logging.getLogger(__name__)


class FastLaneTelemetryWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Counts steps, rewards and episodes of one environment, and renders it when it is its turn to be seen."""

    made_by_worker = True

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lane = _shared_lane()
        self.slot = self._lane.join()
        self._shown = self.slot in self._lane.publisher.shown_slots and env.render_mode in (
            "rgb_array",
            "rgb_array_list",
        )
        if self._shown:
            self._lane.waiting_for.add(self.slot)
        self._return = 0.0
        self._length = 0

    @property
    def spec(self) -> Any:  # type: ignore[override] # as in gymnasium's own Wrapper
        """Without this wrapper: what is made again from it gets one of its own."""
        return self.env.spec

    def reset(self, **kwargs: Any) -> Any:
        self._return, self._length = 0.0, 0
        if self.slot == 0:
            self._lane.pictures.clear()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        reward, *ended = result[1:-1]  # two words for the end, one in gym's days
        lane = self._lane
        self._return += _number(reward)
        self._length += 1
        lane.publisher.step(1 if lane.vector() is None else 0, reward)
        if any(map(_is_true, ended)):
            lane.publisher.episode(self._return, self._length)
        if self._shown and lane.publisher.frame_due():
            self._show()
        return result

    def close(self) -> None:
        self._lane.waiting_for.discard(self.slot)
        super().close()

    def _show(self) -> None:
        lane = self._lane
        if self.slot in lane.pictures:
            return
        picture = self._rendered()
        if picture is None:  # this environment cannot be shown; do not wait for it
            self._shown = False
            lane.waiting_for.discard(self.slot)
        else:
            lane.pictures[self.slot] = picture
        if lane.pictures and lane.waiting_for <= lane.pictures.keys():
            lane.publisher.frame([lane.pictures[slot] for slot in sorted(lane.pictures)])
            lane.pictures.clear()

    def _rendered(self) -> Image | None:
        try:
            return as_image(render_small(self.env.render, self._lane.publisher.settings.max_dim))
        except Exception as error:  # noqa: BLE001 - foreign code (no display, no OpenGL), and no picture is worth a run
            log.warning("FastLane cannot show environment %d: %s: %s", self.slot, type(error).__name__, error)
            return None


def _number(reward: Any) -> float:
    """NaN for what is none: several rewards at once, say. Whether that is right is the script's business."""
    try:
        return float(reward.item() if hasattr(reward, "item") else reward)
    except (TypeError, ValueError, RuntimeError):
        return float("nan")


def _is_true(ended: Any) -> bool:
    return ended is True or (ended is not False and _number(ended) == 1.0)  # a word for nearly every step


class _Lane:
    """What the wrapped environments of one process share."""

    def __init__(self) -> None:
        self.publisher = Publisher.from_env()
        self.pictures: dict[int, Image] = {}
        self.waiting_for: set[int] = set()
        self._vectors: list[weakref.ref[object]] = []
        self._next_slot = 0

    def vector(self) -> object | None:
        """Who counts the steps instead of the environments: the oldest vector environment that lives."""
        while self._vectors:
            vector = self._vectors[0]()
            if vector is not None:
                return vector
            del self._vectors[0]
        return None

    def add_vector(self, vector: object) -> None:
        self._vectors.append(weakref.ref(vector))

    def join(self) -> int:
        slot = self._next_slot
        self._next_slot += 1
        return slot

    def reset_slots(self) -> None:
        self._next_slot = 0
        self.pictures.clear()
        self.waiting_for.clear()


_lane: _Lane | None = None
_lane_lock = threading.Lock()


def _shared_lane() -> _Lane:
    global _lane
    with _lane_lock:
        if _lane is None:
            _lane = _Lane()
            atexit.register(_lane.publisher.close)
        return _lane


def announce_vector(vector: object) -> None:
    """This vector environment will call `count_vector_step`. The first one counts: a later one is an evaluation's.

    Where the first is gone, as in a script that trains in two phases, the next one counts.
    """
    _shared_lane().add_vector(vector)


def count_vector_step(vector: object, rewards: Any) -> None:
    """One step of all environments of a vector, with their rewards."""
    lane = _shared_lane()
    if lane.vector() is vector:
        lane.publisher.step(len(rewards), rewards)


def count_vector_episode(vector: object, episode_return: float, length: int) -> None:
    """An episode ended in one of the environments of a vector that no wrapper of ours is around."""
    lane = _shared_lane()
    if lane.vector() is vector:
        lane.publisher.episode(episode_return, length)


def show_vector(vector: object, pictures: Callable[[tuple[int, ...]], list[Any]]) -> None:
    """Show some of a vector's environments when it is time for a frame; `pictures` gives those with these indices."""
    lane = _shared_lane()
    if lane.vector() is vector and lane.publisher.frame_due():
        lane.publisher.frame(lambda: pictures(lane.publisher.shown_slots))


def reload_fastlane_config() -> None:
    """Read the environment variables again; environments made from now on use them, from slot 0."""
    global _lane
    with _lane_lock:
        if _lane is not None:
            _lane.publisher.close()
            _lane = None


def reset_slot_counter() -> None:
    """The next environment made is slot 0 again."""
    if _lane is not None:
        _lane.reset_slots()

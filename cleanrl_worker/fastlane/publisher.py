"""What a training loop calls to be watched. It must cost next to nothing, so it mostly counts.

    publisher = Publisher.from_env()
    ...
    publisher.step(num_envs, rewards)          # every step of the loop
    publisher.episode(episode_return, length)  # every finished episode
    publisher.scalars({"losses/value_loss": v})
    if publisher.frame_due():
        publisher.frame(lambda: render_slots(envs, publisher.shown_slots))
    ...
    publisher.close()

`step` adds two numbers and looks at the clock once in a while; four times a second the figures go into the metrics
segment, and at most once per frame interval `frame_due` becomes true. Trouble with shared memory (full, missing, taken)
never reaches the training loop: it is logged once and publishing stops there; metrics survive the loss of frames.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from cleanrl_worker.fastlane.metrics import MetricsWriter, Snapshot
from cleanrl_worker.fastlane.ring import Geometry, Metrics, RingWriter
from cleanrl_worker.fastlane.segment import SegmentBusy
from cleanrl_worker.fastlane.settings import FastLaneSettings

log = logging.getLogger(__name__)

METRICS_INTERVAL = 0.25
ROLLING_WEIGHT = 0.05
"""Share of the newest episode in the rolling return: it remembers about the last twenty."""
_LOOK_EVERY = 0.005
_MOST_CALLS_BETWEEN_LOOKS = 64


class Publisher:
    """One run's figures and frames. An instance without a run id does nothing and costs as little."""

    def __init__(self, settings: FastLaneSettings) -> None:
        self.settings = settings
        self.shown_slots = settings.shown_slots
        """The environment indices whose frames `frame` wants, in order; empty when frames are off."""
        self._pid = os.getpid()
        self._ring: RingWriter | None = None
        self._metrics: MetricsWriter | None = None
        self._frames_wanted = settings.frames and bool(settings.run_id)
        if settings.run_id:
            try:
                self._metrics = MetricsWriter(settings.run_id)
            except OSError as error:
                self._frames_wanted = False
                # Busy is what every other process of a script finds, and no news.
                level = logging.DEBUG if isinstance(error, SegmentBusy) else logging.WARNING
                log.log(level, "FastLane publishes nothing: %s", error)

        self._steps = 0
        self._last_reward: Any = None
        self._episodes = 0
        self._episode_return: float | None = None
        self._episode_length: float | None = None
        self._rolling_return: float | None = None
        self._scalars: dict[str, Any] = {}
        self._frames = 0

        now = time.monotonic()
        self._calls_until_look = self._calls_between_looks = 1
        self._looked_at = now
        self._next_flush = now + METRICS_INTERVAL
        self._next_frame = now
        self._frame_due = False
        self._step_rate = _Rate(now)
        self._frame_rate = _Rate(now)

    @classmethod
    def from_env(cls) -> Publisher:
        """The publisher of the run that this process belongs to, as its environment variables describe it."""
        return cls(FastLaneSettings.from_env())

    def step(self, env_steps: int, last_reward: Any = None) -> None:
        """Count steps over all environments. The reward is kept as it is: a number, or an array over environments."""
        self._steps += env_steps
        self._last_reward = last_reward
        self._calls_until_look -= 1
        if self._calls_until_look <= 0:
            self._look()

    def episode(self, episode_return: float, length: float) -> None:
        """Count one finished episode with its undiscounted return."""
        self._episodes += 1
        self._episode_return = episode_return = float(episode_return)
        self._episode_length = float(length)
        previous = self._rolling_return
        if math.isfinite(episode_return):  # one that is not would be remembered for good
            self._rolling_return = (
                episode_return if previous is None else previous + ROLLING_WEIGHT * (episode_return - previous)
            )

    def scalars(self, values: Mapping[str, Any]) -> None:
        """Keep the newest values by tag; numbers, or anything that `float` takes."""
        self._scalars.update(values)

    def frame_due(self) -> bool:
        """True when it is time for a frame, until one is given."""
        return self._frame_due

    def frame(self, rendered: Any) -> None:
        """Show a picture, or a list of pictures as a grid, or what a function returns of these.

        Better give the function that renders: then rendering is cheaper (see `render_small`), and where it raises (no
        display, no OpenGL) only the showing of frames ends. Nothing to show (None, []) skips this turn.
        """
        now = time.monotonic()
        self._frame_due = False
        self._next_frame = now + self.settings.interval
        if not self._frames_wanted or self._pid != os.getpid():
            return
        try:
            self._publish_frame(rendered, now)
        except Exception as error:  # noqa: BLE001 - rendering runs foreign code, and no picture is worth a run
            self._frames_wanted = False
            log.warning("FastLane stops showing frames, metrics go on: %s: %s", type(error).__name__, error)

    def close(self) -> None:
        """Write the last figures. The segments stay readable; the supervisor removes them."""
        self._flush(time.monotonic())
        self._frames_wanted = self._frame_due = False
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def _look(self) -> None:
        """Look at the clock, do what is due, and decide after how many calls to look again (about every 5 ms)."""
        now = time.monotonic()
        elapsed = now - self._looked_at
        calls = self._calls_between_looks
        wanted = int(calls * _LOOK_EVERY / elapsed) if elapsed > 0 else _MOST_CALLS_BETWEEN_LOOKS
        self._calls_until_look = self._calls_between_looks = min(max(1, wanted), _MOST_CALLS_BETWEEN_LOOKS)
        self._looked_at = now
        if now >= self._next_flush:
            self._flush(now)
        if now >= self._next_frame:
            self._frame_due = self._frames_wanted

    def _flush(self, now: float) -> None:
        self._next_flush = now + METRICS_INTERVAL
        self._step_rate.update(self._steps, now)
        self._frame_rate.update(self._frames, now)
        if self._metrics is None or self._pid != os.getpid():
            return
        try:
            self._metrics.write(
                Snapshot(
                    env_steps=self._steps,
                    episodes=self._episodes,
                    frames=self._frames,
                    step_rate_hz=_number(self._step_rate.value),
                    frame_rate_hz=_number(self._frame_rate.value),
                    last_reward=_number(self._reward()),
                    rolling_return=_number(self._rolling_return),
                    episode_return=_number(self._episode_return),
                    episode_length=_number(self._episode_length),
                    updated_at=time.time(),
                    scalars={
                        tag: number for tag, value in self._scalars.items() if (number := _number(value)) is not None
                    },
                )
            )
        except OSError as error:
            self._metrics.close()
            self._metrics = None
            log.warning("FastLane stops publishing metrics: %s", error)

    def _publish_frame(self, rendered: Any, now: float) -> None:
        from cleanrl_worker.fastlane import frames  # numpy; only those who show frames pay for it

        if callable(rendered):
            rendered = frames.render_small(rendered, self.settings.max_dim)
        is_grid = isinstance(rendered, list) or getattr(rendered, "ndim", 0) == 4
        images = [frames.as_image(item) for item in (rendered if is_grid else [rendered])]
        shown = [image for image in images if image is not None]
        if not shown:
            return
        picture = shown[0] if len(shown) == 1 else frames.tile(shown)
        picture = frames.shrink(picture, self.settings.max_dim)
        height, width, channels = picture.shape
        geometry = Geometry(width, height, channels)
        if self._ring is None or not self._ring.is_linked():
            if self._ring is not None:
                self._ring.close()
            self._ring = RingWriter(self.settings.run_id, geometry)
        elif self._ring.geometry != geometry:
            self._ring = self._ring.replace(self.settings.run_id, geometry)
        self._step_rate.update(self._steps, now)
        self._ring.publish(
            picture.data,
            Metrics(
                _number(self._reward()) or 0.0,
                _number(self._rolling_return) or 0.0,
                _number(self._step_rate.value) or 0.0,
            ),
        )
        self._frames += 1

    def _reward(self) -> Any:
        """The newest reward of the shown environment."""
        reward = self._last_reward
        if getattr(reward, "ndim", 0) or isinstance(reward, list | tuple):
            return reward[min(self.settings.slot, len(reward) - 1)] if len(reward) else None
        return reward


class _Rate:
    """Events per second over the last second or so."""

    WINDOW = 1.0

    def __init__(self, now: float) -> None:
        self.value: float | None = None
        self._count = 0
        self._since = now

    def update(self, count: int, now: float) -> None:
        elapsed = now - self._since
        if elapsed >= self.WINDOW or (self.value is None and elapsed >= METRICS_INTERVAL):
            self.value = (count - self._count) / elapsed
            self._count = count
            self._since = now


def _number(value: Any) -> float | None:
    """A finite float, or None: NaN has no place in JSON, and a tensor's own error none in a training loop."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if abs(number) < float("inf") else None

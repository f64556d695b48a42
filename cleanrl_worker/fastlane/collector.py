"""A run's state as Prometheus metrics. Pure: two values in, metric families out.

What the supervisor knows (`RunState`) wins; what it does not know comes from the metrics segment, which is all there
is for foreign scripts. A figure that nobody knows is left out, so that a dashboard shows a gap and not a zero. Label
values come from a bounded set: at most `MAX_SCALARS` well-formed tags.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from cleanrl_worker.fastlane.metrics import Snapshot, bounded_scalars

PREFIX = "cleanrl_worker"
LOSS_PREFIX = "losses/"


@dataclass(frozen=True)
class RunState:
    """What the supervisor knows at the moment of asking. None means unknown."""

    healthy: bool = True
    """False when the run makes no steps for longer than it may: `/healthz` then answers 503."""
    health_message: str = "ok"
    info: Mapping[str, str] = field(default_factory=dict)
    """Constant labels of the run: run_id, algo, env_id, ..."""
    step: int | None = None
    total_steps: int | None = None
    steps_per_second: float | None = None
    episodes: int | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Newest value by tag: charts/episodic_return, losses/value_loss, ..."""
    rolling_return: float | None = None
    """Smoothed return, where the metrics segment knows none."""
    checkpoint_at: float | None = None
    """Unix time of the newest checkpoint."""


class RunCollector(Collector):
    """Asks for state and snapshot at every scrape."""

    def __init__(self, state: Callable[[], RunState], snapshot: Callable[[], Snapshot | None]) -> None:
        self._state = state
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        return run_metrics(self._state(), self._snapshot() or Snapshot(), now=time.time())

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask for a state that may not exist yet."""
        return []


def run_metrics(state: RunState, snapshot: Snapshot, now: float) -> Iterator[Metric]:
    scalars = bounded_scalars({**snapshot.scalars, **state.scalars})
    step = _first(state.step, snapshot.env_steps or None)

    if state.info:
        yield InfoMetricFamily(f"{PREFIX}_run", "The run that this worker executes.", dict(state.info))
    yield from _counter("env_steps", "Environment steps made, over all environments.", step)
    yield from _counter("episodes", "Episodes finished.", _first(state.episodes, snapshot.episodes or None))
    yield from _counter("frames", "Frames shown.", snapshot.frames)
    if step is not None and state.total_steps:
        done = min(1.0, step / state.total_steps)  # a script's evaluations count too: they may make it more than all
        yield from _gauge("progress_ratio", "Part of the run's steps that is done, 0 to 1.", done)
    yield from _gauge(
        "steps_per_second",
        "Environment steps per second, over all environments.",
        _first(snapshot.step_rate_hz, state.steps_per_second),
    )
    yield from _gauge("frame_rate_hertz", "Frames shown per second.", snapshot.frame_rate_hz)
    yield from _gauge(
        "episode_return",
        "Undiscounted return of the newest finished episode.",
        _first(scalars.get("charts/episodic_return"), snapshot.episode_return),
    )
    yield from _gauge(
        "episode_length_steps",
        "Length of the newest finished episode.",
        _first(scalars.get("charts/episodic_length"), snapshot.episode_length),
    )
    yield from _gauge(
        "rolling_return",
        "Exponentially smoothed return of finished episodes.",
        _first(snapshot.rolling_return, state.rolling_return),
    )
    yield from _gauge("last_reward", "Reward of the newest step.", snapshot.last_reward)
    yield from _gauge("learning_rate", "Current learning rate.", scalars.get("charts/learning_rate"))
    if state.checkpoint_at is not None:
        yield from _gauge(
            "checkpoint_age_seconds", "Age of the newest checkpoint.", max(0.0, now - state.checkpoint_at)
        )
    losses = GaugeMetricFamily(f"{PREFIX}_loss", "Newest value of each loss or training figure.", labels=["name"])
    for tag, value in sorted(scalars.items()):
        if tag.startswith(LOSS_PREFIX):
            losses.add_metric([tag.removeprefix(LOSS_PREFIX)], value)
    yield losses
    yield from _gauge("healthy", "1 while the run makes progress, 0 when /healthz would fail.", float(state.healthy))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value)


def _counter(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield CounterMetricFamily(f"{PREFIX}_{name}", text, value)

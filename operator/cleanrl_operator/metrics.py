"""The operator's figures for Prometheus: counted where things happen, collected when they are asked for.

Labels are bounded: states, outcomes and codes by their nature; the headline of live runs by a cap, and each of them vanishes
five minutes after its run has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

HEADLINE_SECONDS = 300.0
MOST_HEADLINES = 2000
HEADLINE = {
    "charts/episodic_return": ("cleanrl_run_episodic_return", "Return of finished episodes, as the worker last said."),
    "sps": ("cleanrl_run_steps_per_second", "Environment steps per second."),
    "step": ("cleanrl_run_step", "Environment steps done."),
}
HEADLINE_LABELS = ("namespace", "run", "algo", "env")

Labels = tuple[str, str, str, str]


class Headlines:
    """The newest figures of each live run, and for a while of those that have ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: dict[Labels, tuple[float, Mapping[str, float]]] = {}

    def update(self, live: Mapping[Labels, Mapping[str, float]]) -> Mapping[Labels, Mapping[str, float]]:
        """What to show, given what live runs say now."""
        now = self._clock()
        for labels, figures in live.items():
            if figures and (labels in self._shown or len(self._shown) < MOST_HEADLINES):
                self._shown[labels] = (now, figures)
        self._shown = {
            labels: (seen, figures) for labels, (seen, figures) in self._shown.items() if now - seen < HEADLINE_SECONDS
        }
        return {labels: figures for labels, (_, figures) in self._shown.items()}


@dataclass
class Source:
    """Where the figures are: functions, so that nothing is counted twice and nobody has to push."""

    leading: Callable[[], bool]
    loop_lag: Callable[[], float]
    totals: Callable[[], Mapping[str, float]]
    """Counters by name, without the prefix and the suffix."""
    gauges: Callable[[], Mapping[str, float]]
    states: Callable[[], Mapping[tuple[str, str], int]]
    refusals: Callable[[], Mapping[str, int]]
    arrivals: Callable[[], Mapping[str, int]]
    headlines: Callable[[], Mapping[Labels, Mapping[str, float]]]


TOTALS = {
    "reconciles": "Reconciles done.",
    "reconcile_failures": "Reconciles that failed and were put back.",
    "writes": "Requests that change runs or their children.",
    "status_writes": "Status writes.",
    "progress_writes": "Status writes that held nothing but progress.",
    "events_posted": "Kubernetes Events posted.",
    "events_dropped": "Kubernetes Events that could not be posted.",
}
GAUGES = {
    "queue_depth": "Runs that wait for a reconcile or are in one.",
    "sessions": "Workers that have registered.",
    "streams": "Workers that are connected now.",
    "last_watch_check_age_seconds": "Since the watches were last compared with the API server.",
}


class OperatorCollector(Collector):
    """All figures of one operator."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """What Prometheus asks for."""
        source = self._source
        yield _gauge("leader", "1 when this process leads.", float(source.leading()))
        yield _gauge(
            "loop_lag_seconds", "How late the event loop was at worst since the last scrape.", source.loop_lag()
        )
        totals, gauges = source.totals(), source.gauges()
        for name, text in TOTALS.items():
            yield CounterMetricFamily(f"cleanrl_operator_{name}", text, value=totals.get(name, 0))
        for name, text in GAUGES.items():
            yield _gauge(name, text, gauges.get(name, 0))
        runs = GaugeMetricFamily("cleanrl_operator_runs", "Runs by state and outcome.", labels=["state", "outcome"])
        for (state, outcome), count in source.states().items():
            runs.add_metric([state or "none", outcome or "none"], count)
        yield runs
        yield _counter("cleanrl_gateway_refusals", "Calls that the gateway refused.", "code", source.refusals())
        yield _counter(
            "cleanrl_gateway_events", "Events of workers by what became of them.", "result", source.arrivals()
        )
        shown = source.headlines()
        for key, (name, text) in HEADLINE.items():
            family = GaugeMetricFamily(name, text, labels=HEADLINE_LABELS)
            for labels, figures in shown.items():
                if key in figures:
                    family.add_metric(labels, figures[key])
            yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"cleanrl_operator_{name}", text, value=value)


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family: Any = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family  # type: ignore[no-any-return]  # the library's families have no types of their own

"""The operator's figures for Prometheus: counted where things happen, collected when they are asked for.

Labels are bounded: states, outcomes, reasons and codes by their nature; the headlines of runs by a cap, and each of them
vanishes five minutes after its run has ended. What is counted over the operator's whole life never carries a run's name.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from cleanrl_operator.api.status import Outcome, State, Status
from cleanrl_operator.facts import EndReason

HEADLINE_SECONDS = 300.0
MOST_HEADLINES = 2000
HEADLINE_LABELS = ("namespace", "run", "algo", "env")
RETURN_TAG = "charts/episodic_return"
HEADLINE = {
    "executing": ("cleanrl_run_executing", "1 while the run trains, 0 otherwise."),
    "faulted": ("cleanrl_run_faulted", "1 while the run is in FAULT, and when it has ended as failed."),
    "return": ("cleanrl_run_episodic_return", "Return of finished episodes, as the worker last said."),
    "sps": ("cleanrl_run_steps_per_second", "Environment steps per second."),
    "step": ("cleanrl_run_step", "Environment steps done."),
    "progress": ("cleanrl_run_progress_ratio", "Part of the run's steps that is done, 0 to 1."),
    "retries": ("cleanrl_run_retries", "Failures since the last progress."),
    "silence": ("cleanrl_run_heartbeat_age_seconds", "Since the worker was last heard, while it has a session."),
    "checkpoint": ("cleanrl_run_last_checkpoint_timestamp_seconds", "When the newest checkpoint was taken."),
    "interval": ("cleanrl_run_checkpoint_interval_seconds", "How often the run is to take a checkpoint, by its spec."),
    "gpus": ("cleanrl_run_gpus", "GPUs that the run's pod holds."),
}

Labels = tuple[str, str, str, str]
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Spoken:
    """What a connected worker says of its run."""

    figures: Mapping[str, float]
    """Scalars by tag, with `step` and `sps`."""
    silent_seconds: float


class Headlines:
    """The newest figures of each live run, and for a while of those that have ended.

    Everything but the figures of a worker that has left is read from the run's own status, so a restart of the operator makes
    no gap and a finished run does not come back.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._last: dict[str, Mapping[str, float]] = {}
        self.left_out = 0
        """How many runs the cap has left out of the last answer."""

    def collect(self, runs: Iterable[Body], spoken: Mapping[str, Spoken]) -> dict[Labels, Mapping[str, float]]:
        """What to show of these runs; `spoken` is keyed by the run's UID."""
        cutoff = _iso(self._clock() - HEADLINE_SECONDS)
        live, ended = [], []
        for body in runs:
            status = body.get("status") or {}
            if status.get("fsmState") != State.TERM:
                if status.get("fsmState"):
                    live.append(body)
            elif str(status.get("finishedAt") or "")[: len(cutoff)] > cutoff:
                ended.append(body)
        chosen = [*live, *ended][:MOST_HEADLINES]
        self.left_out = len(live) + len(ended) - len(chosen)
        found: dict[Labels, Mapping[str, float]] = {}
        remembered: dict[str, Mapping[str, float]] = {}
        for body in chosen:
            metadata, spec = body["metadata"], body.get("spec") or {}
            uid = metadata["uid"]
            said = spoken.get(uid)
            figures = said.figures if said is not None and said.figures else self._last.get(uid, {})
            if figures:
                remembered[uid] = figures
            labels = (metadata["namespace"], metadata["name"], str(spec.get("algo", "")), str(spec.get("envId", "")))
            found[labels] = headline(body, figures, said.silent_seconds if said is not None else None)
        self._last = remembered
        return found


def headline(body: Body, figures: Mapping[str, float], silent_seconds: float | None) -> dict[str, float]:
    """One run's figures by the keys of HEADLINE; what nobody knows is left out."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    state, progress = status.get("fsmState"), status.get("progress") or {}
    over = state == State.TERM
    executing = state == State.EXEC
    step = _number(figures.get("step", progress.get("step")))
    total = _number(figures.get("total", spec.get("totalTimesteps")))
    found: dict[str, Any] = {
        "executing": executing,
        "faulted": state == State.FAULT or (over and status.get("outcome") == Outcome.FAILED),
        "return": figures.get(RETURN_TAG, progress.get("episodicReturn")),
        "sps": None if over else figures.get("sps", progress.get("stepsPerSecond")) if executing else 0,
        "step": step,
        "progress": min(1.0, step / total) if step is not None and total else None,
        "retries": status.get("retries", 0),
        "silence": None if over else silent_seconds,
        "gpus": _gpus(spec, status),
    }
    if executing:  # a run that rests takes no checkpoints, and none is missing
        found["checkpoint"] = _seconds((status.get("checkpoint") or {}).get("time") or status.get("execStartedAt"))
        found["interval"] = (spec.get("checkpoint") or {}).get("everySeconds") or None
    return {name: number for name, value in found.items() if (number := _number(value)) is not None}


class Tally:
    """What runs came to since this process started, without their names."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter({str(outcome): 0 for outcome in Outcome})
        self.faults: Counter[str] = Counter({str(reason): 0 for reason in EndReason})

    def moved(self, before: Status, after: Status) -> None:
        """A run's status with a new state was written. A failure for good counts as a fault too, but once."""
        if after.fsm_state == State.TERM and after.outcome is not None:
            self.finished[str(after.outcome)] += 1
        failed = after.fsm_state == State.TERM and after.outcome == Outcome.FAILED
        if after.fsm_state == State.FAULT or (failed and before.fsm_state != State.FAULT):
            known = after.reason is not None and after.reason in self.faults
            self.faults[str(after.reason) if known else "Other"] += 1


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
    tally: Tally


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
    "headlines_left_out": "Live runs without figures of their own here, because there are too many.",
}


class OperatorPage:
    """The text that Prometheus gets, with all figures of one operator.

    The library writes what there is a handful of. The headlines, thousands of lines, are written here: the library would take
    ten times as long, on the event loop that everything else waits for.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_OperatorCollector(source))

    def __call__(self) -> bytes:
        """The page as it is now."""
        headlines = headline_text(self._source.headlines())  # first: it counts what the gauges then say
        return generate_latest(self._registry) + headlines


def headline_text(shown: Mapping[Labels, Mapping[str, float]]) -> bytes:
    """The headlines of all runs in Prometheus' text format."""
    named = [(_labels(labels), figures) for labels, figures in shown.items()]
    lines: list[str] = []
    for key, (name, text) in HEADLINE.items():
        lines += (f"# HELP {name} {text}", f"# TYPE {name} gauge")
        lines += [f"{name}{labels} {figures[key]!r}" for labels, figures in named if key in figures]
    return ("\n".join(lines) + "\n").encode()


def _labels(labels: Labels) -> str:
    pairs = sorted(zip(HEADLINE_LABELS, labels, strict=True))
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs) + "}"


_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class _OperatorCollector(Collector):
    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
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
        yield _counter("cleanrl_operator_runs_finished", "Runs that ended.", "outcome", source.tally.finished)
        yield _counter("cleanrl_operator_run_faults", "Faults of runs, retried or not.", "reason", source.tally.faults)
        yield _counter("cleanrl_gateway_refusals", "Calls that the gateway refused.", "code", source.refusals())
        yield _counter(
            "cleanrl_gateway_events", "Events of workers by what became of them.", "result", source.arrivals()
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"cleanrl_operator_{name}", text, value=value)


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family: Any = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family  # type: ignore[no-any-return]  # the library's families have no types of their own


def _gpus(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Any:
    """Held only while there is a pod; none after a fall-back to the CPU."""
    if status.get("fsmState") == State.TERM or not status.get("podUID") or status.get("gpuFallback"):
        return 0
    return ((spec.get("resources") or {}).get("gpus") or {}).get("requested", 0)


def _number(value: Any) -> float | None:
    if not isinstance(value, bool | int | float):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _seconds(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None


def _iso(seconds: float) -> str:
    """As a status writes its times, up to the second: texts of that form are ordered as the times are."""
    return datetime.fromtimestamp(max(0.0, seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S")

"""How old a figure is where people read it: in Prometheus and in the status of 300 live runs.

    python tests/benchmarks/freshness.py [prometheus status] [--count 300] [--seconds 60]

`prometheus`: a real worker trains, a real Prometheus scrapes it at the chart's own interval. Each loss has the time of its
computation in the TensorBoard file; the figure is how long after that a query answered with it or a newer one. `status`: live
sessions on pretended nodes that report as workers do, every 5 s at moments that the gateway proposes, and a watch on the runs;
the figure is how long after a report the status had it or a newer one. Beside it stands how old what a status shows became
before it was replaced, as if a worker had computed something new the moment after it reported: with a write every count / 20 s
for each run that can't be less than count / 20 s. Results go to docs/benchmarks/shows.md.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import importlib.util
import itertools
import math
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from jobs import saying_when_stopped
from operator_fleet import Fleet, _talk
from operator_lab import (
    Audit,
    Client,
    Figure,
    OperatorProcess,
    Watch,
    cluster,
    make_namespace,
    nodes_for,
    note,
    percentile,
    publish,
    runs_path,
    surroundings,
    to_children,
)

PROJECT = Path(__file__).parents[2]
CHART = PROJECT / "helm" / "cleanrl-operator" / "values.yaml"
PARTS = ("prometheus", "status")
TARGET = 15.0
STORE = "shows"
LOSS = "value_loss"


def observatory() -> ModuleType:
    """The module that runs a worker before a Prometheus."""
    spec = importlib.util.spec_from_file_location("observatory", PROJECT / "dev" / "observatory.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["observatory"] = module
    spec.loader.exec_module(module)
    return module


def worst(seen: list[tuple[float, float]], made: list[float]) -> list[float]:
    """The age of each update: `seen` has (when it was read, when its content was made), `made` all times of making."""
    ages = []
    for (_, before), (read, _) in itertools.pairwise(seen):
        following = bisect.bisect_right(made, before)
        if following < len(made) and made[following] <= read:
            ages.append(read - made[following])
    return ages


def prometheus(args: argparse.Namespace) -> list[Figure]:
    """A real worker before a real Prometheus."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watching = observatory()
    interval = str(yaml.safe_load(CHART.read_text())["monitoring"]["podMonitor"]["interval"])
    readings: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with watching.watched_run(folder, interval) as asked:
            question = f'cleanrl_worker_loss{{name="{LOSS}"}}'
            watching.until(lambda: asked.query(question), "nothing was scraped", (folder / "worker.log").read_text)
            note(f"a worker trains, scraped every {interval}; {args.seconds:.0f} s are measured")
            end = time.monotonic() + args.seconds
            while time.monotonic() < end:
                value = float(asked.query(question)[0]["value"][1])
                if not readings or readings[-1][1] != value:
                    readings.append((time.time(), value))
                time.sleep(0.1)
        (run,) = list((folder / "run" / "tensorboard").rglob("events.out.tfevents.*"))
        accumulator = EventAccumulator(str(run.parent), size_guidance={"scalars": 0}).Reload()
        events = accumulator.Scalars(f"losses/{LOSS}")
    made = [event.wall_time for event in events]
    seen = []
    for read, value in readings[1:]:  # the first one may have been there for a while
        at = bisect.bisect_right(made, read)
        found = next((e for e in reversed(events[:at]) if math.isclose(e.value, value, rel_tol=1e-5)), None)
        if found is None:
            raise SystemExit(f"Prometheus has a {LOSS} of {value} that the worker never computed")
        seen.append((read, found.wall_time))
    ages = worst(seen, made)
    reached = max(ages) <= TARGET
    return [
        Figure(
            f"a loss in Prometheus (scraped every {interval}), at worst", f"{max(ages):.1f} s", "at most 15 s", reached
        ),
        Figure(
            "the newest one that a query answers with, median age", f"{percentile((r - m for r, m in seen), 0.5):.1f} s"
        ),
        Figure("updates seen, losses computed", f"{len(seen)}, {len(made):,}"),
    ]


async def status(args: argparse.Namespace) -> list[Figure]:
    """Live sessions, and a watch on their runs."""
    count = args.count
    with (
        cluster(nodes_for(count)) as made,
        tempfile.TemporaryDirectory() as folder,
        OperatorProcess(made, Path(folder)) as operator,
    ):
        operator.start()
        async with Client(made) as client:
            fleet = Fleet(made, client, operator, make_namespace(made, "fresh"))
            await fleet.create(count)
            talking = []
            while len(fleet.players) < count:
                for run in await fleet.runs():
                    name = run["metadata"]["name"]
                    if (run.get("status") or {}).get("fsmState") == "HSHK" and name not in fleet.players:
                        player = await fleet.player(run)
                        player.emit("run_started", attempt=1)
                        talking.append(asyncio.create_task(_talk(player)))
                await asyncio.sleep(1)
            note(f"{count} sessions are live; a pause, then {args.seconds:.0f} s are measured")
            await asyncio.sleep(30)
            audit, began, before = Audit(made), time.time(), operator.usage()[0]
            with Watch(made, runs_path(fleet.namespace), metadata_only=False) as watch:
                await asyncio.sleep(args.seconds)
                share = (operator.usage()[0] - before) / (time.time() - began)
                written = to_children(audit.writes(fleet.namespace)) / (time.time() - began)
                updates = list(watch.events())
            for task in talking:
                task.cancel()
            await asyncio.gather(*talking, return_exceptions=True)
            spoken = {name: list(player.events) for name, player in fleet.players.items()}
            await fleet.close()
    ages, shown, gaps = list[float](), list[float](), list[float]()
    for name, events in spoken.items():
        sent = [event["timestamp"] for event in events if event["event"] == "scalars"]
        gaps += [later - earlier for earlier, later in itertools.pairwise(sent)]
        seen = _seen(events, updates, name)
        ages += worst(seen, sent)
        shown += [read - before for (_, before), (read, _) in itertools.pairwise(seen)]
    if not ages:
        raise SystemExit("no status was updated")
    late = max(ages)
    return [
        Figure(
            f"a reported figure in status.progress, {count} live runs, at worst",
            f"{late:.1f} s",
            "at most 15 s",
            late <= TARGET,
        ),
        Figure("median, 99th percentile", f"{percentile(ages, 0.5):.1f} s, {percentile(ages, 0.99):.1f} s"),
        Figure("status writes per second", f"{written:.1f}", "at most 20", written <= 20.0),
        Figure("updates seen; the operator's share of a core", f"{len(ages):,}; {100 * share:.1f} %"),
        Figure(
            "what a status shows, at its oldest: median, at worst",
            f"{percentile(shown, 0.5):.1f} s, {max(shown):.1f} s",
        ),
        Figure("a worker reports every: median, at most", f"{percentile(gaps, 0.5):.1f} s, {max(gaps):.1f} s"),
    ]


def _seen(
    spoken: list[dict[str, Any]], updates: list[tuple[float, str, dict[str, Any]]], name: str
) -> list[tuple[float, float]]:
    """One run's updates: when each was read, and when what it holds was reported."""
    said = {event["payload"]["step"]: event["timestamp"] for event in spoken if event["event"] == "scalars"}
    read: dict[int, float] = {}
    since_boot = time.time() - time.monotonic()  # a watch tells the one, an event the other
    for moment, _, body in updates:
        step = ((body.get("status") or {}).get("progress") or {}).get("step", -1)
        if body["metadata"]["name"] == name and step in said:
            read.setdefault(step, moment + since_boot)
    return [(read[step], said[step]) for step in sorted(read)]


TITLES = {"prometheus": "A figure on its way to Prometheus", "status": "A figure on its way to the status"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; both by default")
    parser.add_argument("--count", type=int, default=300, help="live runs; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure; default: %(default)s")
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    args = parser.parse_args()
    for part in args.parts or PARTS:
        facts = surroundings()
        figures = prometheus(args) if part == "prometheus" else asyncio.run(status(args))
        publish(part, TITLES[part], figures, facts, folder=args.out, store=STORE)
    return 0


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

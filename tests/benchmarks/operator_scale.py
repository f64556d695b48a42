"""The operator beside the built-in Job controller, on one API server with pretended nodes, in the same run.

    python tests/benchmarks/operator_scale.py [burst backlog single events] [--count 1000] [--rounds 2]

The Job controller's client limits and workers are raised to 1,000. Bursts take turns, so that what else the machine does meets
both. A Job is measured twice: with a pod of one bare container, and with the very pod that a run gets. `burst`: all at once,
from the moment before the object is posted to the pod as a watch shows it. `backlog`: runs that an operator finds when it
starts, beside the same pods created by a bare client. `single`: one at a time. `events`: a pod's end to the run's status as a
watch shows it. Writes are counted in the API server's audit log. Nothing here fails for being slow.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jobs import saying_when_stopped
from operator_lab import (
    Audit,
    Client,
    Cluster,
    Figure,
    OperatorProcess,
    Watch,
    at_once,
    cluster,
    completed,
    make_namespace,
    ms,
    nodes_for,
    note,
    percentile,
    pods_path,
    publish,
    run_body,
    runs_path,
    settled,
    surroundings,
    to_children,
    until_async,
)
from reporting import cpu_seconds

Object = dict[str, Any]
PARTS = ("burst", "backlog", "single", "events")


def jobs_path(namespace: str, name: str = "") -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")


BARE_POD: Object = {
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {"name": "worker", "image": "worker", "resources": {"requests": {"cpu": "1", "memory": "64Mi"}}}
        ],
    }
}


def job_body(name: str, pod: Object = BARE_POD) -> Object:
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": pod}}


@dataclass(frozen=True)
class Kind:
    """What is posted, and where. The name begins the names of its objects, and has no dash in it."""

    name: str
    path: Callable[[str], str]
    body: Callable[[str], Object]


RUN = Kind("run", runs_path, run_body)
JOB = Kind("job", jobs_path, job_body)


async def job_of_a_runs_pod(made: Cluster, client: Client) -> Kind:
    """The Job whose pod is the one that a run gets: what is left of the difference is not the pod's size."""
    namespace = make_namespace(made, "model")
    with Watch(made, pods_path(namespace)) as watch:
        await post(client, 1, RUN, namespace)
        await until_async(partial(watch.has, 1), "the run's pod")
    (pod,) = await client.items(pods_path(namespace))
    await clean(client, namespace)
    return Kind("alike", jobs_path, partial(job_body, pod=template_of(pod)))


async def clean(client: Client, namespace: str) -> None:
    """Delete everything of a part, so that the next one finds the machine quiet."""
    for path in (runs_path(namespace), jobs_path(namespace), pods_path(namespace)):
        await client.empty(path)
    deadline = time.monotonic() + 600
    while (await client("GET", pods_path(namespace) + "?limit=1"))["items"]:
        if time.monotonic() > deadline:
            raise SystemExit(f"the pods of {namespace} do not go away")
        await asyncio.sleep(0.5)
    await asyncio.sleep(2)


async def post(client: Client, count: int, kind: Kind, namespace: str) -> dict[str, float]:
    """Post so many at once: when each was sent."""
    sent: dict[str, float] = {}

    async def one(number: int) -> None:
        name = f"{kind.name}-{number:05}"
        sent[name] = time.monotonic()
        await client("POST", kind.path(namespace), kind.body(name))

    await at_once(count, one)
    return sent


def pod_times(watch: Watch) -> dict[str, float]:
    """When the first pod of each run or job was seen."""
    seen: dict[str, float] = {}
    for moment, what, pod in watch.events():
        labels = pod["metadata"].get("labels") or {}
        owner = labels.get("mosaic.dev/run") or labels.get("batch.kubernetes.io/job-name")
        if what == "ADDED" and owner:
            seen.setdefault(owner, moment)
    return seen


async def one_burst(made: Cluster, client: Client, count: int, kind: Kind, namespace: str) -> tuple[list[float], float]:
    """Latencies from apply to pod, and pods per second from the first post to the last pod."""
    with Watch(made, pods_path(namespace)) as watch:
        sent = await post(client, count, kind, namespace)
        patience = 120 + count / 10
        await until_async(partial(watch.has, count), f"{count} pods", patience, every=max(0.2, count / 5000))
        seen = pod_times(watch)
    return [seen[name] - sent[name] for name in sent], count / (max(seen.values()) - min(sent.values()))


def control_plane_cpu(made: Cluster) -> float:
    """CPU seconds of everything that the cluster consists of, so far."""
    return sum(cpu_seconds(component.pid) for component in made.status() if component.pid)


async def running(client: Client, namespace: str, count: int) -> None:
    """Wait until so many pods run."""
    deadline = time.monotonic() + 120 + count / 10
    while sum(pod["status"].get("phase") == "Running" for pod in await client.items(pods_path(namespace))) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"not all pods of {namespace} run")
        await asyncio.sleep(1)


async def burst(made: Cluster, client: Client, operator: OperatorProcess, count: int, rounds: int) -> list[Figure]:
    kinds = [JOB, await job_of_a_runs_pod(made, client), RUN]
    latencies: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    rates: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    control = {kind.name: 0.0 for kind in kinds}
    writes, events, cpu = 0, 0, 0.0
    order = [kind for number in range(rounds) for kind in (kinds if number % 2 == 0 else reversed(kinds))]
    for number, kind in enumerate(order):
        namespace = make_namespace(made, f"burst-{number}")
        audit, before, control_before = Audit(made), operator.usage()[0], control_plane_cpu(made)
        found, rate = await one_burst(made, client, count, kind, namespace)
        await running(client, namespace, count)
        await settled(operator)
        control[kind.name] += control_plane_cpu(made) - control_before
        latencies[kind.name] += found
        rates[kind.name].append(rate)
        note(f"{count} times {kind.name}: p50 {ms(found, 0.5)}, p99 {ms(found, 0.99)}, {rate:,.0f} pods/s")
        if kind is RUN:
            counted = audit.writes(namespace)
            writes += to_children(counted)
            events += counted["create events"]
            cpu += operator.usage()[0] - before
            note(f"writes {dict(counted)}")
        await clean(client, namespace)
    total = count * rounds
    figures = []
    for each in (0.5, 0.99):
        job, alike, run = (percentile(latencies[kind.name], each) for kind in kinds)
        what = f"p{each * 100:.0f}"
        figures += [
            Figure(f"burst of {count:,}, apply to pod {what}: runs", ms(latencies["run"], each)),
            Figure(f"burst of {count:,}, apply to pod {what}: Jobs", ms(latencies["job"], each)),
            Figure(f"burst of {count:,}, apply to pod {what}: Jobs with a run's pod", ms(latencies["alike"], each)),
            Figure(f"{what}, runs as a share of Jobs", f"{run / job:.2f}", "at most 0.50", run <= 0.5 * job),
            Figure(f"{what}, runs as a share of Jobs with a run's pod", f"{run / alike:.2f}"),
        ]
    return [
        *figures,
        Figure("pods per second, first post to last pod: runs", f"{statistics.mean(rates['run']):,.0f}"),
        Figure("pods per second, first post to last pod: Jobs", f"{statistics.mean(rates['job']):,.0f}"),
        Figure(
            "pods per second, first post to last pod: Jobs with a run's pod", f"{statistics.mean(rates['alike']):,.0f}"
        ),
        *(
            Figure(f"control plane's CPU until its pod runs: a {what}", f"{1000 * control[name] / total:.1f} ms")
            for name, what in (("run", "run"), ("job", "Job"), ("alike", "Job with a run's pod"))
        ),
        Figure("writes per run until its pod runs", f"{writes / total:.2f}", "at most 4", writes / total <= 4),
        Figure("Events per run until its pod runs", f"{events / total:.2f}"),
        Figure("operator's CPU per run until its pod runs", f"{1000 * cpu / total:.1f} ms"),
    ]


async def backlog(made: Cluster, client: Client, operator: OperatorProcess, count: int, rounds: int) -> list[Figure]:
    drained, bare, first = [], [], []
    for number in range(rounds):
        namespace = make_namespace(made, f"backlog-{number}")
        operator.stop()
        await post(client, count, RUN, namespace)
        await asyncio.sleep(3)
        with Watch(made, pods_path(namespace)) as watch:
            began = time.monotonic()
            operator.start()
            await until_async(partial(watch.has, count), f"{count} pods")
            seen = sorted(pod_times(watch).values())
        drained.append((count - 1) / (seen[-1] - seen[0]))
        first.append(seen[0] - began)
        note(f"backlog of {count}: {drained[-1]:,.0f} pods/s, the first after {first[-1]:.1f} s")
        await settled(operator)
        pods = [bare_pod(pod, number) for number, pod in enumerate(await client.items(pods_path(namespace)))]
        await clean(client, namespace)
        namespace = make_namespace(made, f"bare-{number}")
        with Watch(made, pods_path(namespace)) as watch:

            async def one(index: int, pods: list[Object] = pods, namespace: str = namespace) -> None:
                await client("POST", pods_path(namespace), pods[index])

            await at_once(count, one)
            await until_async(partial(watch.has, count), f"{count} pods")
            moments = sorted(moment for moment, what, _ in watch.events() if what == "ADDED")
        bare.append((count - 1) / (moments[-1] - moments[0]))
        note(f"bare creation: {bare[-1]:,.0f} pods/s")
        await clean(client, namespace)
    share = statistics.mean(drained) / statistics.mean(bare)
    return [
        Figure(f"backlog of {count:,} found at start, pods per second", f"{statistics.mean(drained):,.0f}"),
        Figure("the same pods by a bare client, pods per second", f"{statistics.mean(bare):,.0f}"),
        Figure("backlog as a share of bare creation", f"{share:.2f}", "at least 0.50", share >= 0.5),
        Figure("operator's start to the first pod", f"{statistics.mean(first):.1f} s"),
    ]


def bare_pod(pod: Object, number: int) -> Object:
    """A pod like the operator's, as a bare client would post it."""
    template = template_of(pod)
    return {**template, "metadata": {"name": f"bare-{number:05}", **template["metadata"]}}


def template_of(pod: Object) -> Object:
    """What another makes pods like this one of: its spec without its node, and no labels, which say whose it is."""
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return {"metadata": {"annotations": pod["metadata"].get("annotations") or {}}, "spec": spec}


async def single(made: Cluster, client: Client, operator: OperatorProcess, count: int, rounds: int) -> list[Figure]:
    kinds = [JOB, await job_of_a_runs_pod(made, client), RUN]
    times: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    namespace = make_namespace(made, "single")
    with Watch(made, pods_path(namespace)) as watch:
        sent: dict[str, float] = {}
        for number in range(20):
            for kind in kinds if number % 2 else reversed(kinds):
                name = f"{kind.name}-{number:02}"
                before = watch.count()
                sent[name] = time.monotonic()
                await client("POST", kind.path(namespace), kind.body(name))
                await until_async(partial(watch.has, before + 1), name, every=0.02)
                await asyncio.sleep(0.3)
        for name, moment in pod_times(watch).items():
            times[name.partition("-")[0]].append(moment - sent[name])
    await clean(client, namespace)
    job, alike, run = (statistics.median(times[kind.name]) for kind in kinds)
    return [
        Figure("one run alone, apply to pod, median of 20", f"{1000 * run:.1f} ms", "at most a Job's", run <= job),
        Figure("one Job alone, apply to pod, median of 20", f"{1000 * job:.1f} ms"),
        Figure("one Job with a run's pod alone, apply to pod, median of 20", f"{1000 * alike:.1f} ms"),
    ]


async def ended(made: Cluster, client: Client, operator: OperatorProcess, count: int, rounds: int) -> list[Figure]:
    count = min(count, 500)
    namespace = make_namespace(made, "ended")
    audit = Audit(made)
    await post(client, count, RUN, namespace)

    async def all_run() -> bool:
        runs = await client.items(runs_path(namespace))
        return all((run.get("status") or {}).get("fsmState") == "HSHK" for run in runs)

    deadline = time.monotonic() + 300
    while not await all_run():
        if time.monotonic() > deadline:
            raise SystemExit("not all pods run")
        await asyncio.sleep(1)
    await settled(operator)
    runs = await client.items(runs_path(namespace))
    note(f"{count} run; now they end, 20 a second")
    sent: dict[str, float] = {}
    with Watch(made, runs_path(namespace), metadata_only=False) as watch:
        for number, run in enumerate(runs):
            status, name = run["status"], run["metadata"]["name"]
            body = {"status": completed(status["runId"], status["attempt"])}
            sent[name] = time.monotonic()
            await client("PATCH", pods_path(namespace, status["podName"], "status"), body)
            await asyncio.sleep(0.05)
            if (number + 1) % 100 == 0:
                note(f"{number + 1} of {count} ended")
        await until_async(lambda: watch.count(b'"fsmState":"TERM"') >= count, "all TERM")
        seen: dict[str, float] = {}
        for moment, _, run in watch.events():
            if (run.get("status") or {}).get("fsmState") == "TERM":
                seen.setdefault(run["metadata"]["name"], moment)
    times = [seen[name] - sent[name] for name in sent]
    await settled(operator)
    counted = audit.writes(namespace)
    ends = await client.items(runs_path(namespace))
    transitions = sum(len(run["status"]["transitions"]) for run in ends)
    wrong = [run for run in ends if run["status"].get("outcome") != "completed"]
    per_transition = to_children(counted) / transitions
    await clean(client, namespace)
    return [
        Figure(f"pod's end to status visible, {count} running, p50", ms(times, 0.5)),
        Figure(
            f"pod's end to status visible, {count} running, p99",
            ms(times, 0.99), "under 1,000 ms", percentile(times, 0.99) < 1,
        ),
        Figure("runs that did not end as they should", str(len(wrong)), "0", not wrong),
        Figure("writes per transition, whole lives", f"{per_transition:.2f}", "at most 2", per_transition <= 2),
        Figure("writes per run, whole lives", f"{to_children(counted) / count:.2f}"),
        Figure("Events per run, whole lives", f"{counted['create events'] / count:.2f}"),
    ]  # fmt: skip


MEASURES = {"burst": burst, "backlog": backlog, "single": single, "events": ended}
TITLES = {
    "burst": "A burst of runs beside a burst of Jobs",
    "backlog": "A backlog found at start",
    "single": "One at a time",
    "events": "From a pod's end to the run's status",
}


async def measure(args: argparse.Namespace) -> None:
    nodes = nodes_for(args.count)
    note(f"starting a cluster with {nodes} pretended nodes; load {surroundings()['load']}")
    with cluster(nodes) as made, tempfile.TemporaryDirectory() as folder:
        prefix = args.prefix.split() if args.prefix else []
        with OperatorProcess(made, Path(folder), prefix=prefix) as operator:
            operator.start()
            async with Client(made) as client:
                # What is done for the first time is slow on both sides, and nobody's fault.
                warm = make_namespace(made, "warm")
                for kind in (RUN, JOB):
                    await one_burst(made, client, min(50, args.count), kind, warm)
                await clean(client, warm)
                for part in args.parts or PARTS:
                    facts = surroundings()
                    figures = await MEASURES[part](made, client, operator, args.count, args.rounds)
                    _, now, most = operator.usage()
                    figures.append(Figure("operator's memory, now and at most", f"{now:.0f} and {most:.0f} MiB"))
                    publish(part, TITLES[part], figures, facts, folder=args.out)
            operator.stop()
            if args.keep_log:
                args.keep_log.write_text(operator.log.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all by default")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    parser.add_argument("--prefix", default="", help="a command to start the operator under, for example a profiler")
    parser.add_argument("--keep-log", type=Path, default=None, help="where the operator's log goes")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main, "the parts that had ended are kept"))

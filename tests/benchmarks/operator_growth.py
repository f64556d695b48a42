"""How the operator's work grows with the number of runs, with the built-in Job controller beside it.

    python tests/benchmarks/operator_growth.py [--sizes 100 300 1000 5000 10000] [--beside 300 1000 5000]

For each size that many runs are posted at once on one API server with pretended nodes, and for the sizes of `--beside` as many
Jobs right before them (the controller's client limits and workers are raised to 1,000). What was made is deleted before the
next size. The exponent is the slope of a line through the logarithms: 1 means that twice the runs take twice the time, 2 that
they take four times as long. Nothing here fails for being slow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jobs import saying_when_stopped
from operator_lab import (
    PICTURES,
    Audit,
    Client,
    Cluster,
    Figure,
    OperatorProcess,
    cluster,
    make_namespace,
    nodes_for,
    note,
    percentile,
    publish,
    settled,
    surroundings,
    to_children,
)
from operator_scale import JOB, RUN, clean, one_burst

SIZES, BESIDE = (100, 300, 1000, 5000, 10_000), (300, 1000, 5000)


@dataclass(frozen=True)
class Burst:
    """So many at once: what came of it. CPU and writes are the operator's own, and None for Jobs."""

    size: int
    pods_per_second: float
    p50: float
    p99: float
    cpu: float | None = None
    memory: float | None = None
    writes: float | None = None

    @property
    def seconds(self) -> float:
        return self.size / self.pods_per_second


async def jobs(made: Cluster, client: Client, size: int) -> Burst:
    namespace = make_namespace(made, f"jobs-{size}")
    found, rate = await one_burst(made, client, size, JOB, namespace)
    await clean(client, namespace)
    return Burst(size, rate, percentile(found, 0.5), percentile(found, 0.99))


async def runs(made: Cluster, client: Client, operator: OperatorProcess, size: int, *, keep: bool) -> Burst:
    namespace = make_namespace(made, f"runs-{size}")
    audit, before = Audit(made), operator.usage()[0]
    found, rate = await one_burst(made, client, size, RUN, namespace)
    await settled(operator)
    cpu, memory, _ = operator.usage()
    writes = to_children(audit.writes(namespace)) / size
    if not keep:
        await clean(client, namespace)
        await settled(operator)
    return Burst(size, rate, percentile(found, 0.5), percentile(found, 0.99), cpu - before, memory, writes)


def exponent(sizes: list[int], amounts: list[float]) -> float:
    """The slope of a line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(amounts), 1)[0])


def figures(ours: list[Burst], theirs: list[Burst]) -> list[Figure]:
    beside = {burst.size: burst for burst in theirs}
    found = []
    for burst in ours:
        job = beside.get(burst.size)
        assert burst.cpu is not None
        their_rate = f"; Jobs {job.pods_per_second:,.0f}" if job else ""
        their_times = f"; Jobs {job.p50:.2f} and {job.p99:.2f} s" if job else ""
        found += [
            Figure(f"{burst.size:,} at once: pods per second", f"{burst.pods_per_second:,.0f}{their_rate}"),
            Figure(
                f"{burst.size:,} at once: apply to pod, p50 and p99",
                f"{burst.p50:.2f} and {burst.p99:.2f} s{their_times}",
            ),
            Figure(
                f"{burst.size:,} at once: operator's CPU a run, writes a run, memory",
                f"{1000 * burst.cpu / burst.size:.1f} ms, {burst.writes:.2f}, {burst.memory:.0f} MiB",
            ),
        ]
    sizes = [burst.size for burst in ours]
    work = exponent(sizes, [burst.cpu for burst in ours if burst.cpu is not None])
    found.append(Figure("exponent of the operator's CPU time", f"{work:.2f}", "about 1", work <= 1.15))
    found.append(Figure("exponent of the time until the last pod", f"{exponent(sizes, [b.seconds for b in ours]):.2f}"))
    if len(theirs) > 1:
        peer = exponent([b.size for b in theirs], [b.seconds for b in theirs])
        found.append(Figure("exponent of the time until the last pod, Jobs", f"{peer:.2f}"))
    return found


def draw(ours: list[Burst], theirs: list[Burst], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), dpi=120)
    left.plot([b.size for b in ours], [b.pods_per_second for b in ours], "o-", label="runs")
    left.plot([b.size for b in theirs], [b.pods_per_second for b in theirs], "s--", label="Jobs")
    left.set(xscale="log", xlabel="at once", ylabel="pods per second", title="First post to last pod", ylim=(0, None))
    left.legend()
    right.plot([b.size for b in ours], [1000 * (b.cpu or 0) / b.size for b in ours], "o-", label="CPU, ms a run")
    right.set(
        xscale="log", xlabel="runs at once", ylabel="ms of CPU a run", title="The operator's own work", ylim=(0, None)
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


async def measure(args: argparse.Namespace) -> None:
    sizes = sorted(args.sizes)
    facts = surroundings()
    note(f"starting a cluster with {nodes_for(sizes[-1])} pretended nodes; load {facts['load']}")
    ours, theirs = [], []
    with (
        cluster(nodes_for(sizes[-1])) as made,
        tempfile.TemporaryDirectory() as folder,
        OperatorProcess(made, Path(folder)) as operator,
    ):
        operator.start()
        async with Client(made) as client:
            await runs(made, client, operator, 50, keep=False)  # what is done for the first time is slow
            await jobs(made, client, 50)
            for size in sizes:
                if size in args.beside:
                    theirs.append(await jobs(made, client, size))
                    note(json.dumps(theirs[-1].__dict__))
                ours.append(await runs(made, client, operator, size, keep=size == sizes[-1]))
                note(json.dumps(ours[-1].__dict__))
        operator.stop()
    publish("growth", "How the work grows", figures(ours, theirs), facts, folder=args.out)
    draw(ours, theirs, (args.out or Path("docs/benchmarks")) / PICTURES["growth"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument(
        "--beside", type=int, nargs="*", default=list(BESIDE), help="sizes at which Jobs are measured too"
    )
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

"""What a scrape of the operator costs: time, size and series while runs live, and what is left after they end.

    python tests/benchmarks/metrics_scale.py [--runs 500] [--scrapes 10]

The operator's own server, collectors and cache answer over HTTP; only the runs are made up, each with a connected worker that
has said all it can. The target: 500 live runs in less than 250 ms and 2 MB, and no series of them five minutes after the end.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from datetime import UTC, datetime

import aiohttp
from cleanrl_operator.cache import Cache
from cleanrl_operator.health import HealthServer
from cleanrl_operator.metrics import HEADLINE_SECONDS, Headlines, OperatorPage, Source, Spoken, Tally
from jobs import saying_when_stopped

SECONDS_TARGET, BYTES_TARGET = 0.250, 2_000_000
LOSSES = [
    f"losses/{name}" for name in ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac")
]


def body(number: int, version: int, **status: object) -> dict[str, object]:
    """A run with long names, as they come."""
    name = f"halfcheetah-ppo-continuous-action-learning-rate-{number:05}"
    now = datetime.now(UTC).isoformat()
    return {
        "metadata": {
            "namespace": f"research-team-{number % 20}",
            "name": name,
            "uid": f"uid-{number}",
            "resourceVersion": str(version),
        },
        "spec": {
            "algo": "ppo_continuous_action",
            "envId": "HalfCheetah-v4",
            "totalTimesteps": 1_000_000,
            "checkpoint": {"everySeconds": 300},
            "resources": {"gpus": {"requested": 1}},
        },
        "status": {
            "fsmState": "EXEC",
            "podUID": "p",
            "execStartedAt": now,
            "checkpoint": {"time": now},
            "progress": {"step": 1, "stepsPerSecond": 2.0, "episodicReturn": 3.0},
            **status,
        },
    }


class Bench:
    """A cache of runs behind the operator's own page."""

    def __init__(self, runs: int) -> None:
        self.now = time.time()
        self.cache = Cache()
        self.headlines = Headlines(lambda: self.now)
        self.spoken: dict[str, Spoken] = {}
        self.runs = runs
        for number in range(runs):
            self.cache.put_run(body(number, 1))
            figures = {"step": 123_456.0, "sps": 987.6, "charts/episodic_return": 1234.5 + number, "charts/SPS": 987.0}
            self.spoken[f"uid-{number}"] = Spoken(figures | dict.fromkeys(LOSSES, 0.12345), 12.3)
        page = OperatorPage(
            Source(
                leading=lambda: True,
                loop_lag=float,
                totals=dict,
                gauges=dict,
                states=lambda: self.cache.states,
                refusals=dict,
                arrivals=dict,
                headlines=lambda: self.headlines.collect((body for _, body in self.cache.runs()), self.spoken),
                tally=Tally(),
            )
        )
        self.server = HealthServer(0, str, str, page)

    def end_all(self) -> None:
        """Every run has completed, now."""
        finished = datetime.fromtimestamp(self.now, UTC).isoformat().replace("+00:00", "Z")
        for number in range(self.runs):
            self.cache.put_run(body(number, 2, fsmState="TERM", outcome="completed", finishedAt=finished))
        self.spoken.clear()


async def scrape(bench: Bench, times: int) -> tuple[list[float], list[float], int, int]:
    """Seconds of each scrape on the wall and of CPU (the client's too), bytes of the page, and series that name a run."""
    seconds, cpu, page = [], [], b""
    assert bench.server._runner is not None
    url = next(f"http://127.0.0.1:{a[1]}/metrics" for a in bench.server._runner.addresses if ":" not in a[0])
    async with aiohttp.ClientSession() as client:
        for _ in range(times):
            before, worked = time.perf_counter(), time.process_time()
            async with client.get(url) as answer:
                page = await answer.read()
            seconds.append(time.perf_counter() - before)
            cpu.append(time.process_time() - worked)
    return seconds, cpu, len(page), sum(line.startswith(b"cleanrl_run_") for line in page.splitlines())


async def measure(runs: int, scrapes: int) -> bool:
    """Print the table; whether the targets were met."""
    bench = Bench(runs)
    await bench.server.start()
    rows = []
    try:
        rows.append(("live", *await scrape(bench, scrapes)))
        bench.end_all()
        rows.append(("just ended", *await scrape(bench, scrapes)))
        bench.now += HEADLINE_SECONDS + 2
        rows.append(("five minutes later", *await scrape(bench, scrapes)))
    finally:
        await bench.server.stop()
    print(f"{runs} runs, {scrapes} scrapes each")
    print(f"{'':20} {'median ms':>10} {'worst ms':>10} {'CPU ms':>10} {'bytes':>10} {'series of runs':>15}")
    for name, seconds, cpu, size, series in rows:
        middle, worst, worked = (
            1e3 * value for value in (statistics.median(seconds), max(seconds), statistics.median(cpu))
        )
        print(f"{name:20} {middle:10.1f} {worst:10.1f} {worked:10.1f} {size:10} {series:15}")
    met = statistics.median(rows[0][1]) < SECONDS_TARGET and rows[0][3] < BYTES_TARGET and rows[2][4] == 0
    if runs == 500:
        print(
            f"less than {SECONDS_TARGET * 1e3:.0f} ms and {BYTES_TARGET} bytes, and none left: {'met' if met else 'MISSED'}"
        )
    return met or runs != 500


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--scrapes", type=int, default=10)
    arguments = parser.parse_args()
    return 0 if asyncio.run(measure(arguments.runs, arguments.scrapes)) else 1


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

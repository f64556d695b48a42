"""Whether callers of a worker's exporter can slow its training: undisturbed and under attack, in turns, side by side.

    python tests/benchmarks/exporter_under_attack.py [--rounds 4] [--seconds 6]

A real worker trains on one core, supervisor and training together, as in a pod of one CPU; the callers have the other core,
and come from four addresses of the loopback net, as four hostile pods would. `slow`: 2,000 connections that dribble a byte of
their request now and then, and come again when they are cut off. `storm`: connections as fast as they can be opened, each hung
up at once. `huge`: headers without end. `greedy`: /metrics as fast as it is answered. Training's speed is read from shared
memory, beside the CPU time of the training process, that of the supervisor, and how a well-behaved scrape from another address
fares. Results go to docs/benchmarks/shows.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import environment
from operator_lab import Figure, free_port, publish, surroundings

from cleanrl_worker.fastlane import metrics

RUN_ID = "attacked"
TICKS = os.sysconf("SC_CLK_TCK")
LEAST = 0.98
"""Part of the undisturbed speed that counts as unchanged: two undisturbed turns differ by about as much."""


# -- the callers


def stranger() -> tuple[str, int]:
    """One of the hostile addresses."""
    return f"127.1.1.{random.randint(1, 4)}", 0


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=stranger())


async def slow(port: int) -> None:
    reader, writer = await connect(port)
    writer.write(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    with contextlib.suppress(TimeoutError):
        while not reader.at_eof():
            writer.write(b"x")
            await asyncio.wait_for(reader.read(1), 2.0 + random.random())
    writer.transport.abort()


async def storm(port: int) -> None:
    _, writer = await connect(port)
    writer.transport.abort()


async def huge(port: int) -> None:
    reader, writer = await connect(port)
    writer.write(b"GET /metrics HTTP/1.1\r\n")
    while not reader.at_eof():
        writer.write(b"X-Huge: " + b"x" * 65_000 + b"\r\n")
        await writer.drain()
    writer.transport.abort()


async def greedy(port: int) -> None:
    reader, writer = await connect(port)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await reader.read(-1)
    writer.transport.abort()


ATTACKS: dict[str, tuple[Callable[[int], Coroutine[Any, Any, None]], int]] = {
    "slow": (slow, 2000),
    "storm": (storm, 64),
    "huge": (huge, 64),
    "greedy": (greedy, 64),
}


async def attack(port: int, name: str) -> None:
    """Until it is killed."""
    call, callers = ATTACKS[name]

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError):
                await call(port)
            await asyncio.sleep(0)

    await asyncio.gather(*(again() for _ in range(callers)))


# -- the worker


@dataclass
class Turns:
    """What was measured in one condition, turn by turn."""

    wall: list[float] = field(default_factory=list)
    """Steps per second."""
    cpu: list[float] = field(default_factory=list)
    """Steps per CPU second of the training process."""
    supervisor: list[float] = field(default_factory=list)
    """Share of a core that the supervisor takes."""
    others: list[float] = field(default_factory=list)
    """Share of training's core that neither it nor the supervisor had, and that was not idle: other programs, the kernel."""
    scrapes: list[float] = field(default_factory=list)
    """Seconds of a well-behaved scrape; infinity when it was not answered."""


def cpu_seconds(pid: int) -> float:
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / TICKS


def core_seconds() -> float:
    """CPU seconds that the worker's core has worked, for whomever."""
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu0 "))
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def steps() -> int:
    snapshot = metrics.read(RUN_ID)
    if snapshot is None:
        raise SystemExit("the worker has no figures")
    return int(snapshot.env_steps)


def scrape(port: int) -> float:
    began = time.monotonic()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            answer.read()
    except OSError:
        return float("inf")
    return time.monotonic() - began


def turn(into: Turns, port: int, supervisor: int, child: int, seconds: float) -> None:
    began, at, trained, looked = time.monotonic(), steps(), cpu_seconds(child), cpu_seconds(supervisor)
    worked, end = core_seconds(), began + seconds
    while time.monotonic() < end:
        into.scrapes.append(scrape(port))
        time.sleep(max(0.0, min(1.0, end - time.monotonic())))
    elapsed, made = time.monotonic() - began, steps() - at
    into.wall.append(made / elapsed)
    into.cpu.append(made / (cpu_seconds(child) - trained))
    into.supervisor.append((cpu_seconds(supervisor) - looked) / elapsed)
    ours = cpu_seconds(supervisor) - looked + cpu_seconds(child) - trained
    into.others.append((core_seconds() - worked - ours) / elapsed)


def measure(args: argparse.Namespace) -> dict[str, Turns]:
    port = free_port()
    found = {name: Turns() for name in ("undisturbed", *ATTACKS)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "ppo", "--env-id", "CartPole-v1"]
        command += ["--total-timesteps", "100000000", "--metrics-port", str(port), "--run-id", RUN_ID]
        variables = environment(Path(folder), CLEANRL_RUN_ID=RUN_ID, GYM_GUI_FASTLANE_ONLY="1")
        with (Path(folder) / "log").open("wb") as log:
            worker = subprocess.Popen(
                ["taskset", "-c", "0", *command, "--run-dir", f"{folder}/run"],
                env=variables, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + 120
            while metrics.read(RUN_ID) is None or steps() < 5000:
                if worker.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit((Path(folder) / "log").read_text()[-2000:])
                time.sleep(0.5)
            (child,) = (int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split())
            for number in range(args.rounds):
                names = list(found)
                random.Random(number).shuffle(names)
                for name in names:
                    sys.stderr.write(f"round {number + 1} of {args.rounds}: {name}\n")
                    with disturbed(port, name):
                        time.sleep(1.0)
                        turn(found[name], port, worker.pid, child, args.seconds)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
    return found


@contextlib.contextmanager
def disturbed(port: int, name: str) -> Any:
    if name == "undisturbed":
        yield
        return
    caller = subprocess.Popen(["taskset", "-c", "1", sys.executable, __file__, "--attack", name, "--port", str(port)])
    try:
        yield
    finally:
        caller.kill()
        caller.wait()


def table(found: dict[str, Turns]) -> list[Figure]:
    base = found["undisturbed"]
    rows = []
    for name, turns in found.items():
        answered = [each for each in turns.scrapes if each != float("inf")]
        of_base = statistics.median(theirs / ours for theirs, ours in zip(turns.wall, base.wall, strict=True))
        share = statistics.median(turns.supervisor)
        told = [
            f"{statistics.median(turns.wall):,.0f} steps/s",
            f"{statistics.median(turns.cpu):,.0f} per CPU s",
            f"supervisor {100 * share:.1f} % of the core, others {100 * statistics.median(turns.others):.0f} %",
            f"{len(answered)} of {len(turns.scrapes)} scrapes answered",
            f"median {1000 * statistics.median(answered or [float('nan')]):.0f} ms",
        ]
        if name == "undisturbed":
            rows.append(Figure(name, ", ".join(told)))
        else:
            rows.append(
                Figure(f"{name}: {100 * of_base:.1f} % of undisturbed", ", ".join(told), "98 %", of_base >= LEAST)
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each turn")
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        asyncio.run(attack(args.port, args.attack))
        return 0
    facts = surroundings()
    publish("attack", "An exporter under attack", table(measure(args)), facts, folder=args.out, store="shows")
    return 0


if __name__ == "__main__":
    sys.exit(main())

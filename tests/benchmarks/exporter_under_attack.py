"""Whether callers of a worker's exporter can slow its training: undisturbed, under attack, and with the same attack elsewhere.

    python tests/benchmarks/exporter_under_attack.py [--rounds 4] [--seconds 6]

A real worker trains on one core, supervisor and training together, as in a pod of one CPU; the callers have the other core,
and come from four addresses of the loopback net, as four hostile pods would. `slow`: 2,000 connections that dribble a byte of
their request now and then, and come again when they are cut off. `storm`: connections as fast as they can be opened, each hung
up at once. `huge`: headers without end. `greedy`: /metrics as fast as it is answered. Training's speed is read from shared
memory, beside the CPU time of the training process, that of the supervisor, and how a well-behaved scrape from another address
fares.

Callers that keep a core busy slow whatever shares a chip, its caches and its memory with them, whomever they call. So each turn
has a peer right before or after it: the same callers at a listener that has nothing to do with the worker and answers from
their own core. Other programs that the callers drive from their core to training's are kept out of it too: what is judged is
how fast training would be with what its core has left after the supervisor and the interrupts took their parts, which is steps
per CPU second of training times that rest, against the same with the attack elsewhere. That is the exporter's own part. Results
go to docs/benchmarks/shows.md.
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
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import environment, saying_when_stopped
from operator_lab import Figure, free_port, publish, surroundings
from reporting import cpu_seconds

from cleanrl_worker.fastlane import metrics

RUN_ID = "attacked"
TICKS = os.sysconf("SC_CLK_TCK")
LEAST = 0.98
"""Part of the peer's speed that counts as unchanged: two undisturbed turns differ by about as much."""
ELSEWHERE = " elsewhere"
"""Ends the name of a peer."""


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


# -- the listener elsewhere


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A page's worth of nothing to whoever asks, and the door to whoever asks too much."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\nConnection: close\r\n\r\n" + b"x" * 4000)
        await writer.drain()
    writer.close()


async def attack_elsewhere(port: int, name: str) -> None:
    """Until it is killed."""
    async with await asyncio.start_server(answer, "127.0.0.1", port, limit=8192):
        await attack(port, name)


# -- the worker


@dataclass
class Turns:
    """What was measured in one condition, turn by turn."""

    wall: list[float] = field(default_factory=list)
    """Steps per second."""
    cpu: list[float] = field(default_factory=list)
    """Steps per CPU second of the training process."""
    alone: list[float] = field(default_factory=list)
    """Steps per second on a core that nobody else used: those per CPU second, times what supervisor and interrupts leave."""
    supervisor: list[float] = field(default_factory=list)
    """Share of a core that the supervisor takes."""
    others: list[float] = field(default_factory=list)
    """Share of training's core that neither it nor the supervisor had, and that was not idle: other programs, the kernel."""
    scrapes: list[float] = field(default_factory=list)
    """Seconds of a well-behaved scrape; infinity when it was not answered."""


def core_seconds() -> tuple[float, float]:
    """CPU seconds that the worker's core has worked, for whomever, and those of them that were interrupts."""
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu0 "))
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS, (irq + softirq) / TICKS


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
    (worked, interrupted), end = core_seconds(), began + seconds
    while time.monotonic() < end:
        into.scrapes.append(scrape(port))
        time.sleep(max(0.0, min(1.0, end - time.monotonic())))
    elapsed, made = time.monotonic() - began, steps() - at
    into.wall.append(made / elapsed)
    into.cpu.append(made / (cpu_seconds(child) - trained))
    into.supervisor.append((cpu_seconds(supervisor) - looked) / elapsed)
    ours = cpu_seconds(supervisor) - looked + cpu_seconds(child) - trained
    now_worked, now_interrupted = core_seconds()
    taken = (cpu_seconds(supervisor) - looked + now_interrupted - interrupted) / elapsed
    into.alone.append(into.cpu[-1] * (1 - taken))
    into.others.append((now_worked - worked - ours) / elapsed)


def measure(args: argparse.Namespace) -> dict[str, Turns]:
    port = free_port()
    found = {"undisturbed": Turns()}
    for name in ATTACKS:
        found |= {name: Turns(), name + ELSEWHERE: Turns()}
    elsewhere = free_port()
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
                for name in order(random.Random(number)):
                    sys.stderr.write(f"round {number + 1} of {args.rounds}: {name}\n")
                    with disturbed(elsewhere if name.endswith(ELSEWHERE) else port, name):
                        time.sleep(1.0)
                        turn(found[name], port, worker.pid, child, args.seconds)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
    return found


def order(rng: random.Random) -> list[str]:
    """The turns of one round: in any order, but each beside its peer."""
    pairs = [[name, name + ELSEWHERE] for name in ATTACKS]
    for pair in pairs:
        rng.shuffle(pair)
    turns = [["undisturbed"], *pairs]
    rng.shuffle(turns)
    return [name for group in turns for name in group]


@contextlib.contextmanager
def disturbed(port: int, name: str) -> Iterator[None]:
    """Callers on the other core, and whom they call if that is not the worker."""
    if name == "undisturbed":
        yield
        return
    command = ["taskset", "-c", "1", sys.executable, __file__, "--port", str(port)]
    command += ["--attack", name.removesuffix(ELSEWHERE), *(["--listen"] if name.endswith(ELSEWHERE) else [])]
    caller = subprocess.Popen(command)
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
        told = [
            f"{statistics.median(turns.wall):,.0f} steps/s",
            f"{statistics.median(turns.alone):,.0f} on a core of its own, {statistics.median(turns.cpu):,.0f} per CPU s",
            f"supervisor {100 * statistics.median(turns.supervisor):.1f} % of the core",
            f"others {100 * statistics.median(turns.others):.0f} %",
            f"{len(answered)} of {len(turns.scrapes)} scrapes answered",
            f"median {1000 * statistics.median(answered or [float('nan')]):.0f} ms",
        ]
        if name not in ATTACKS:
            of_base = "" if turns is base else f": {100 * part(turns.alone, base.alone):.1f} % of undisturbed"
            rows.append(Figure(f"{name}{of_base}", ", ".join(told)))
        else:
            of_peer, of_base = (
                part(turns.alone, found[name + ELSEWHERE].alone),
                f"{100 * part(turns.alone, base.alone):.1f} %",
            )
            shares = f"{name}: {100 * of_peer:.1f} % of the same elsewhere, {of_base} of undisturbed"
            rows.append(Figure(shares, ", ".join(told), "98 % of elsewhere", of_peer >= LEAST))
    return rows


def part(these: list[float], those: list[float]) -> float:
    """How fast training was, as a part of another condition's speed in the same round: the median of all rounds."""
    return statistics.median(one / other for one, other in zip(these, those, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each turn")
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--listen", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        asyncio.run((attack_elsewhere if args.listen else attack)(args.port, args.attack))
        return 0
    facts = surroundings()
    publish("attack", "An exporter under attack", table(measure(args)), facts, folder=args.out, store="shows")
    return 0


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

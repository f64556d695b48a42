"""Where the operator's time goes: a burst of runs and their ends under Python's own profiler, by module.

    python tests/benchmarks/operator_profile.py [--count 300]

What a function of the interpreter's own (a lock, a socket, a parser in C) takes is its caller's. Waiting for the network is not
counted. The profiler makes everything slower, small functions most: read the shares, not the milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import pstats
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jobs import saying_when_stopped
from operator_lab import (
    Client,
    Cluster,
    Figure,
    NotReached,
    OperatorProcess,
    cluster,
    completed,
    make_namespace,
    nodes_for,
    note,
    pods_path,
    publish,
    runs_path,
    settled,
    surroundings,
    until_async,
)
from operator_scale import RUN, one_burst

Function = tuple[str, int, str]
LEAST = 0.01
"""Modules below this share are left out."""
IDLE = ("poll", "select.epoll", "sleep")


async def lives(made: Cluster, client: Client, operator: OperatorProcess, count: int, namespace: str) -> None:
    """So many runs at once, until their pods run, and then their ends."""
    make_namespace(made, namespace)
    await one_burst(made, client, count, RUN, namespace)
    await settled(operator)

    async def all_in(state: str) -> None:
        deadline = time.monotonic() + 300
        while any(
            (run.get("status") or {}).get("fsmState") != state for run in await client.items(runs_path(namespace))
        ):
            if time.monotonic() > deadline:
                raise NotReached(f"not all runs are in {state}")
            await asyncio.sleep(1)

    await all_in("HSHK")
    for run in await client.items(runs_path(namespace)):
        status = run["status"]
        body = {"status": completed(status["runId"], status["attempt"])}
        await client("PATCH", pods_path(namespace, status["podName"], "status"), body)
    await all_in("TERM")
    await settled(operator)


def shares(profile: Path) -> Counter[str]:
    """Seconds by module."""
    stats: dict[Function, Any] = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    spent: Counter[str] = Counter()
    for function, (_, _, own, _, callers) in stats.items():
        if any(word in function[2] for word in IDLE):
            continue
        if function[0] != "~":
            spent[module_of(function[0])] += own
        for caller, (_, _, share, _) in callers.items() if function[0] == "~" else ():
            spent[module_of(caller[0])] += share
    return spent


def module_of(file: str) -> str:
    """Our modules one by one, others by their package."""
    if file.startswith("<frozen importlib"):
        return "Python's imports, at the start"
    parts = Path(file).parts
    for root in ("cleanrl_operator", "cleanrl_protocol"):
        if root in parts:
            return "/".join(parts[parts.index(root) :])
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1].removesuffix(".py")
    return f"Python's {Path(file).stem if Path(file).parent.name.startswith('python') else Path(file).parent.name}"


async def measure(args: argparse.Namespace) -> None:
    facts = surroundings()
    with cluster(nodes_for(2 * args.count)) as made, tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile"
        with OperatorProcess(made, Path(folder), python=["-m", "cProfile", "-o", str(profile)]) as operator:
            operator.start()
            async with Client(made) as client:
                await lives(made, client, operator, args.count, "lives")
            operator.stop()
        await until_async(profile.exists, "the profile is written")
        spent = shares(profile)
    total = sum(spent.values())
    note(f"{total:.1f} s under the profiler")
    figures = [
        Figure(module, f"{seconds / total:.1%}") for module, seconds in spent.most_common() if seconds > LEAST * total
    ]
    ours = sum(seconds for module, seconds in spent.items() if module.startswith("cleanrl_"))
    figures.insert(0, Figure("our own modules, all of them", f"{ours / total:.1%}"))
    publish("profile", f"Where the time of {args.count} whole lives goes", figures, facts, folder=args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

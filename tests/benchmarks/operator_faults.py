"""Faults on purpose, in numbers: every run has to end in the state it should, with one pod for each attempt.

    python tests/benchmarks/operator_faults.py [kills outage storm nodes clocks] [--count 200] [--seed N]

`kills`: the operator is killed (-9) again and again while the runs live. `outage`: the API server does not answer the operator
for a minute. `storm`: 429, 500, 409, lost answers and cut watches on any call. `nodes`: pretended nodes are lost while their
pods run. In these a third of the runs fails at the first attempt and one in ten has its pod deleted by hand, so that there is
something to get wrong. `clocks`: the operator's wall clock is set an hour or two forth and back by libfaketime (which
`make setup` installs) while workers talk to it, and each run may train for 30 minutes.

The seed is printed and chooses the same moments again. Exits with 1 when a run ended wrongly; the faults that are tried one by
one are listed in tests/integration/operator_faults/conftest.py.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jobs import saying_when_stopped
from operator_fleet import Fleet
from operator_lab import (
    Client,
    Cluster,
    Figure,
    NotReached,
    OperatorProcess,
    at_once,
    cluster,
    completed,
    container,
    make_namespace,
    nodes_for,
    note,
    own_clock,
    pods_path,
    publish,
    run_body,
    runs_backwards,
    runs_path,
    stamp,
    surroundings,
    until_async,
)

Object = dict[str, Any]
PARTS = ("kills", "outage", "storm", "nodes", "clocks")
PATIENCE = 1800.0
TOLERATIONS = [
    {"key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
    for trouble in ("unreachable", "not-ready")
]


def kind_of(number: int) -> str:
    """What happens to a run: most complete, some fail once, some lose their pod once."""
    return "loses" if number % 10 == 7 else "fails" if number % 3 == 0 else "completes"


class Cast:
    """The runs of one part, and a kubelet that ends their pods a while after kwok has started them."""

    def __init__(self, client: Client, namespace: str, count: int, chance: random.Random) -> None:
        self.client, self.namespace, self.count = client, namespace, count
        self._lives = {f"run-{number:05}": chance.uniform(0, 8) for number in range(count)}
        self._since: dict[str, float] = {}
        self._done: set[str] = set()
        self.pods_seen: dict[str, set[str]] = {}
        self.deleted: set[str] = set()

    async def create(self, **spec: Any) -> None:
        async def one(number: int) -> None:
            body = run_body(f"run-{number:05}", retry={"limit": 3, "backoffSeconds": 1}, **spec)
            await self.client("POST", runs_path(self.namespace), body)

        await at_once(self.count, one, say="runs created")

    async def play(self) -> list[Object]:
        """Until all runs are over: them."""
        deadline, said = time.monotonic() + PATIENCE, 0
        while True:
            runs = await self.client.items(runs_path(self.namespace))
            over = sum((run.get("status") or {}).get("fsmState") == "TERM" for run in runs)
            if over >= said + self.count // 5 or over == self.count:
                said = over
                note(f"{over} of {self.count} are over")
            if over == self.count:
                return runs
            if time.monotonic() > deadline:
                states = Counter((run.get("status") or {}).get("fsmState") for run in runs)
                raise SystemExit(f"not all runs came to an end: {dict(states)}")
            await self._look_after_pods({run["metadata"]["name"]: run for run in runs})
            await asyncio.sleep(1)

    async def _look_after_pods(self, runs: dict[str, Object]) -> None:
        for pod in await self.client.items(pods_path(self.namespace)):
            metadata = pod["metadata"]
            name, attempt = metadata["labels"]["mosaic.dev/run"], metadata["labels"]["mosaic.dev/attempt"]
            self.pods_seen.setdefault(f"{name}/{attempt}", set()).add(metadata["uid"])
            status = runs.get(name, {}).get("status") or {}
            running = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in metadata
            if not running or metadata["uid"] in self._done or "runId" not in status:
                continue
            since = self._since.setdefault(metadata["uid"], time.monotonic())
            if time.monotonic() - since >= self._lives[name]:
                self._done.add(metadata["uid"])
                await self._end(name, int(attempt), metadata["name"], status["runId"])

    async def _end(self, name: str, attempt: int, pod: str, run_id: str) -> None:
        kind = kind_of(int(name[-5:]))
        path = pods_path(self.namespace, pod)
        try:
            if attempt == 1 and kind == "loses":
                self.deleted.add(name)
                await self.client("DELETE", path, {"gracePeriodSeconds": 0})
            elif attempt == 1 and kind == "fails":
                ended = {"exitCode": 1, "reason": "Error", "startedAt": stamp(), "finishedAt": stamp()}
                body = {"status": {"phase": "Failed", "containerStatuses": [container(terminated=ended)]}}
                await self.client("PATCH", f"{path}/status", body)
            else:
                await self.client("PATCH", f"{path}/status", {"status": completed(run_id, attempt)})
        except NotReached as error:  # the pod was evicted meanwhile
            note(str(error)[:120])

    def wrong(self, runs: list[Object], *, disrupted: bool = False) -> list[str]:
        """What is not as it should be, a sentence each. A disrupted run may have had more attempts than it was asked for."""
        found = []
        for run in runs:
            name, status = run["metadata"]["name"], run["status"]
            attempts = 1 if kind_of(int(name[-5:])) == "completes" else 2
            right = status["attempt"] >= attempts if disrupted else status["attempt"] == attempts
            if status.get("outcome") != "completed" or not right:
                found.append(f"{name}: {status.get('outcome')} {status.get('reason')}, attempt {status['attempt']}")
            if runs_backwards(status):
                found.append(f"{name}: time runs backwards in {[step['at'] for step in status['transitions']]}")
        found += [f"{attempt} had {len(uids)} pods" for attempt, uids in self.pods_seen.items() if len(uids) > 1]
        return found

    async def stuck(self) -> list[str]:
        """Pods that are going and do not go."""
        await asyncio.sleep(5)
        pods = await self.client.items(pods_path(self.namespace))
        return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]]


async def kills(made: Cluster, cast: Cast, operator: OperatorProcess, chance: random.Random) -> str:
    """Kill the operator at random moments until it has died ten times."""
    for number in range(10):
        await asyncio.sleep(chance.uniform(0, 4))
        operator.kill()
        await asyncio.sleep(chance.uniform(0, 1))
        operator.start(wait=False)
        note(f"killed {number + 1} times")
        if chance.random() < 0.8:  # the others die while they start
            await until_async(operator.leads, "the operator leads again")
    return "10 kills"


async def outage(made: Cluster, cast: Cast, operator: OperatorProcess, chance: random.Random) -> str:
    """No API server for a minute; the kubelet starts the operator again when it gives up."""
    await asyncio.sleep(chance.uniform(1, 5))
    starts = 0
    with made.faults.outage():
        until = time.monotonic() + 60
        while time.monotonic() < until:
            starts += operator.keep_alive()
            await asyncio.sleep(1)
    note(f"the API server is back; the operator was started {starts} times meanwhile")
    return f"60 s without an API server, {starts} restarts"


async def storm(made: Cluster, cast: Cast, operator: OperatorProcess, chance: random.Random) -> str:
    """Errors on any call for a while."""
    rules: list[tuple[str, Object]] = [
        ("status", {"status": 500, "probability": 0.1}),
        ("status", {"status": 429, "retry_after": 1, "probability": 0.1}),
        ("status", {"status": 409, "method": "PATCH", "path": "/cleanrlruns/", "probability": 0.1}),
        ("lose-answer", {"method": "POST", "probability": 0.1}),
        ("lose-answer", {"method": "PATCH", "probability": 0.1}),
        ("cut-stream", {"verb": "watch", "times": 10}),
    ]
    faults = [made.faults.add(action, path=rule.pop("path", cast.namespace if "verb" not in rule else ""), **rule)
              for action, rule in rules]  # fmt: skip
    until = time.monotonic() + 45
    while time.monotonic() < until:
        operator.keep_alive()
        await asyncio.sleep(1)
    struck = sum(fault.struck for fault in faults)
    for fault in faults:
        fault.remove()
    return f"{struck} calls struck"


async def nodes(made: Cluster, cast: Cast, operator: OperatorProcess, chance: random.Random) -> str:
    """Two nodes are lost: the taint that the node controller would put, then the node itself goes."""
    names = [node["metadata"]["name"] for node in await cast.client.items("/api/v1/nodes")]
    lost = chance.sample(sorted(names), 2)
    await asyncio.sleep(chance.uniform(3, 8))
    for name in lost:
        taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
        await cast.client("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": [taint]}})
        note(f"node {name} is lost")
    await asyncio.sleep(5)
    for name in lost:
        await cast.client("DELETE", f"/api/v1/nodes/{name}")
    return f"{len(lost)} of {len(names)} nodes lost"


async def clocks(made: Cluster, client: Client, folder: Path, args: argparse.Namespace) -> list[Figure]:
    """Whole lives with sessions while the operator's wall clock jumps."""
    namespace, count = make_namespace(made, "faults-clocks"), args.count
    dial = folder / "offset"
    dial.write_text("+0\n")
    clock = {**own_clock(), "FAKETIME_TIMESTAMP_FILE": str(dial), "FAKETIME_CACHE_DURATION": "1"}
    prefix = ["env", *(f"{name}={value}" for name, value in clock.items())]
    with OperatorProcess(made, folder, prefix=prefix, lease_seconds=60) as operator:
        operator.start()
        began = time.monotonic()
        fleet = Fleet(made, client, operator, namespace)
        await fleet.create(count, maxWallclockMinutes=30, pendingDeadlineSeconds=1800)
        runs = await until_all(fleet, "HSHK")
        players = [await fleet.player(run) for run in runs]
        for run, player in zip(runs, players, strict=True):
            player.emit("run_started", attempt=run["status"]["attempt"])
        await until_all(fleet, "EXEC")
        for number, offset in enumerate(("+3600", "+0", "+7200", "+3600")):
            beside = dial.with_suffix(".new")
            beside.write_text(f"{offset}\n")
            beside.replace(dial)
            note(f"the operator's clock is {offset} s off now")
            await asyncio.sleep(3)
            for player in players:
                sha = "a" * 64
                player.emit(
                    "checkpoint_saved", path="c", step=100 * (number + 1), sha256=sha, bytes=1, seconds=0.1, reason="x"
                )
            for player in players:
                await player.until_acknowledged(number + 2)
        for player in players:
            await player.until_acknowledged(player.emit("run_completed"))
            player.close()
        for run in runs:
            status = run["status"]
            body = {"status": completed(status["runId"], status["attempt"])}
            await client("PATCH", pods_path(namespace, status["podName"], "status"), body)
        ends = await until_all(fleet, "TERM")
        await fleet.close()
        operator.stop()
        if args.keep_log:
            args.keep_log.write_text(operator.log.read_text())
    wrong = [run for run in ends if (run["status"]["outcome"], run["status"]["attempt"]) != ("completed", 1)]
    for run in wrong[:5]:
        note(f"wrong: {run['status']}")
    backwards = [run for run in ends if runs_backwards(run["status"])]
    used = [run["status"].get("wallclockSeconds", 0.0) for run in ends]
    return [
        Figure(f"{count} runs, 4 jumps of an hour or two: wrong at the end", f"{len(wrong)}", "0", not wrong),
        Figure("runs whose times run backwards", f"{len(backwards)}", "0", not backwards),
        Figure("most time that was counted against a limit", f"{max(used):.0f} s"),
        Figure("until all were over", f"{time.monotonic() - began:.0f} s"),
    ]


async def until_all(fleet: Fleet, state: str) -> list[Object]:
    """All runs, once they are in this state."""
    deadline = time.monotonic() + PATIENCE
    while True:
        runs = await fleet.runs()
        if all((run.get("status") or {}).get("fsmState") == state for run in runs):
            return runs
        if time.monotonic() > deadline:
            states = Counter((run.get("status") or {}).get("fsmState") for run in runs)
            raise SystemExit(f"not all runs came to {state}: {dict(states)}")
        await asyncio.sleep(1)


Fault = Callable[[Cluster, Cast, OperatorProcess, random.Random], Awaitable[str]]
FAULTS: dict[str, Fault] = {"kills": kills, "outage": outage, "storm": storm, "nodes": nodes}
TITLES = {
    "kills": "Kill -9 through many lives",
    "outage": "A minute without an API server",
    "storm": "Errors on any call",
    "nodes": "Lost nodes",
    "clocks": "A wall clock that jumps",
}


async def strike(part: str, made: Cluster, client: Client, folder: Path, args: argparse.Namespace) -> list[Figure]:
    chance = random.Random(f"{args.seed}-{part}")
    cast = Cast(client, make_namespace(made, f"faults-{part}"), args.count, chance)
    with OperatorProcess(made, folder, faulty=True, lease_seconds=15) as operator:
        operator.start()
        began = time.monotonic()
        creating = asyncio.create_task(cast.create(podTemplate={"tolerations": TOLERATIONS}))
        playing = asyncio.create_task(cast.play())
        said = await FAULTS[part](made, cast, operator, chance)
        await creating
        while not playing.done():
            operator.keep_alive()
            await asyncio.sleep(1)
        runs = await playing
        wrong = cast.wrong(runs, disrupted=part == "nodes")
        stuck = await cast.stuck()
        for sentence in wrong[:10]:
            note(f"wrong: {sentence}")
        operator.stop()
        if args.keep_log:
            args.keep_log.write_text(operator.log.read_text())
    doubles = sum(len(uids) > 1 for uids in cast.pods_seen.values())
    return [
        Figure(f"{args.count} runs, {said}: wrong at the end", f"{len(wrong)}", "0", not wrong),
        Figure("attempts with more than one pod", f"{doubles}", "0", not doubles),
        Figure("pods stuck in Terminating", f"{len(stuck)}", "0", not stuck),
        Figure("until all were over", f"{time.monotonic() - began:.0f} s"),
        Figure("seed", f"{args.seed}"),
    ]


async def main_async(args: argparse.Namespace) -> bool:
    good = True
    print(f"seed {args.seed}", flush=True)
    if "clocks" in (args.parts or PARTS):
        own_clock()  # says at once if it can't be had
    for part in args.parts or PARTS:
        count = nodes_for(args.count)
        note(f"{part}: a cluster with {count} pretended nodes; load {surroundings()['load']}")
        with cluster(count, fault_proxy=True) as made, tempfile.TemporaryDirectory() as folder:
            async with Client(made) as client:
                facts = surroundings()
                act = clocks(made, client, Path(folder), args) if part == "clocks" else None
                figures = await (act or strike(part, made, client, Path(folder), args))
            publish(f"fault {part}", TITLES[part], figures, facts, folder=args.out)
            good = good and all(figure.good is not False for figure in figures)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which faults; all by default")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    parser.add_argument("--keep-log", type=Path, default=None, help="where the operator's log goes")
    return 0 if asyncio.run(main_async(parser.parse_args())) else 1


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main, "the seed above chooses the same moments again"))

"""The operator with many runs: whole lives with real sessions, a restart over ten thousand, and a fleet that only talks.

    python tests/benchmarks/operator_fleet.py [lives restart idle] [--count 1000] [--restart-count 10000]

`lives`: runs whose pods start on pretended nodes; for each a player registers at the gateway over TLS with a token that is
bound to the pod, tells the run's story, waits until it is acknowledged, and lets the pod end with its record. `restart`:
finished and running runs that an operator finds when it starts. `idle`: live sessions that report figures every 5 s, or as
seldom as the gateway asks for, and a heartbeat every 30 s, as workers do. Nothing here fails for being
slow; a run that ends wrongly does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from jobs import saying_when_stopped
from operator_lab import (
    Audit,
    Client,
    Cluster,
    Figure,
    NotReached,
    OperatorProcess,
    at_once,
    authority,
    cluster,
    completed,
    make_namespace,
    nodes_for,
    note,
    pods_path,
    publish,
    run_body,
    runs_path,
    settled,
    surroundings,
    to_children,
)

from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol import session_pb2_grpc as rpc
from cleanrl_protocol.events import encode

Object = dict[str, Any]
PARTS = ("lives", "restart", "idle")
WALK = ["INIT", "HSHK", "RDY", "EXEC", "TERM"]
SCALARS_SECONDS, HEARTBEAT_SECONDS, TICK_SECONDS = 5.0, 30.0, 0.5
"""How often a worker reports, says that it lives, and looks at the clock."""


class Player:
    """A worker's side of one session, in the load generator's event loop: the protocol is real, the training is not."""

    def __init__(
        self, target: str, ca: bytes, token: str, run_id: str, attempt: int, events: list[Object] | None = None
    ) -> None:
        """`events` is the log of the run's earlier attempts, to be gone on with."""
        self._target, self._ca, self._token = target, ca, token
        self._run_id, self._attempt = run_id, attempt
        self.events: list[Object] = [] if events is None else events
        self._sent = 0
        self._news = asyncio.Event()
        self._over = False
        self.acknowledged = 0
        self.attending = asyncio.Event()
        self.cuts = 0
        self.pace: tuple[float, float] | None = None
        """When the gateway wants figures, and every how many seconds after that."""

    def emit(self, event: str, **payload: Any) -> int:
        number = len(self.events) + 1
        line = {"event": event, "payload": payload, "run_id": self._run_id, "seq": number, "timestamp": time.time()}
        self.events.append(line)
        self._news.set()
        return number

    def close(self) -> None:
        self._over = True
        self._news.set()

    async def until_acknowledged(self, number: int, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while self.acknowledged < number:
            if time.monotonic() > deadline:
                raise NotReached(f"event {number} of {self._run_id} is not acknowledged; {self.acknowledged} is")
            await asyncio.sleep(0.05)

    async def run(self) -> None:
        """Connect, register, attend; on any cut begin again, as workers do."""
        failures = 0
        while not self._over:
            try:
                await self._connect()
                failures = 0
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    return  # the run is done with this pod
                failures += 1
            self.attending.clear()
            if not self._over:
                self.cuts += 1
                await asyncio.sleep(min(30.0, 0.5 * 2**failures) * random.uniform(0.5, 1))

    async def _connect(self) -> None:
        credentials = grpc.ssl_channel_credentials(root_certificates=self._ca)
        async with grpc.aio.secure_channel(self._target, credentials, options=limits.CLIENT_OPTIONS) as channel:
            stub = rpc.SessionServiceStub(channel)  # type: ignore[no-untyped-call]
            first = round(self.events[0]["timestamp"] * 1e6) if self.events else 0
            request = pb.RegisterWorkerRequest(
                run_id=self._run_id, worker_id="player", worker_kind="cleanrl", proto_version=limits.PROTO_VERSION,
                schema_id="cleanrl.ppo", schema_version=1, supports_pause=True, supports_checkpoint=True,
                algo="ppo", env_id="CartPole-v1", attempt=self._attempt, last_number=len(self.events), log_epoch=first,
            )  # fmt: skip
            bearer = (("authorization", f"Bearer {self._token}"),)
            reply = await stub.RegisterWorker(request, metadata=bearer, timeout=30)
            self._sent = self.acknowledged = reply.acknowledged
            call = stub.Attend(self._outgoing(), metadata=((limits.SESSION_METADATA_KEY, reply.session_token),))
            self.attending.set()
            async for down in call:
                if down.WhichOneof("body") == "pace":
                    self.pace = (time.monotonic() + down.pace.next_seconds, down.pace.every_seconds)
                if down.WhichOneof("body") == "acknowledgement":
                    self.acknowledged = max(self.acknowledged, down.acknowledgement.number)

    async def _outgoing(self) -> AsyncIterator[pb.Up]:
        while not self._over:
            while self._sent < len(self.events):
                yield pb.Up(event=encode(self.events[self._sent], self._sent))
                self._sent += 1
            self._news.clear()
            await self._news.wait()


async def bound_token(client: Client, namespace: str, pod: str, uid: str) -> str:
    """A token like the pod's own: for the gateway's audience, bound to this pod."""
    spec = {
        "audiences": ["cleanrl-gateway"],
        "expirationSeconds": 3600,
        "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid},
    }
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await client("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token", body)
    return str(answer["status"]["token"])


class Fleet:
    """Runs of a namespace, each with its player as soon as its pod runs."""

    def __init__(self, made: Cluster, client: Client, operator: OperatorProcess, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self._target, self._ca = f"localhost:{operator.gateway_port}", authority(made)
        self.players: dict[str, Player] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.faults: list[str] = []

    async def create(self, count: int, **spec: Any) -> None:
        async def one(number: int) -> None:
            await self.client("POST", runs_path(self.namespace), run_body(f"run-{number:05}", **spec))

        await at_once(count, one, say="runs created")

    async def runs(self) -> list[Object]:
        return await self.client.items(runs_path(self.namespace))

    async def player(self, run: Object) -> Player:
        """The worker of the run's pod, connecting."""
        status, name = run["status"], run["metadata"]["name"]
        token = await bound_token(self.client, self.namespace, status["podName"], status["podUID"])
        player = self.players[name] = Player(self._target, self._ca, token, status["runId"], status["attempt"])
        self.tasks[name] = asyncio.create_task(player.run())
        return player

    async def close(self) -> None:
        for player in self.players.values():
            player.close()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    async def live(self, run: Object) -> None:
        """A whole life, told and acknowledged, and the pod's end after it."""
        status, name = run["status"], run["metadata"]["name"]
        try:
            player = await self.player(run)
            player.emit("run_started", attempt=status["attempt"])
            for step in (250, 500, 750):
                player.emit(
                    "scalars", step=step, total=1000, sps=10.0, episodes=1, values={"charts/episodic_return": 9.0}
                )
            sha = "a" * 64
            player.emit("checkpoint_saved", path="c/1", step=750, sha256=sha, bytes=1, seconds=0.1, reason="interval")
            await player.until_acknowledged(player.emit("run_completed"))
            player.close()
            body = {"status": completed(status["runId"], status["attempt"])}
            await self.client("PATCH", pods_path(self.namespace, status["podName"], "status"), body)
        except Exception as error:  # noqa: BLE001 - counted and shown at the end
            self.faults.append(f"{name}: {error}")


async def lives(made: Cluster, client: Client, operator: OperatorProcess, args: argparse.Namespace) -> list[Figure]:
    count = args.count
    fleet = Fleet(made, client, operator, make_namespace(made, "lives"))
    audit, cpu, began = Audit(made), operator.usage()[0], time.monotonic()
    await fleet.create(count)
    started: dict[str, asyncio.Task[None]] = {}
    abreast = asyncio.Semaphore(100)

    async def one(run: Object) -> None:
        async with abreast:
            await fleet.live(run)

    said = 0
    while True:
        runs = await fleet.runs()
        for run in runs:
            name = run["metadata"]["name"]
            if (run.get("status") or {}).get("fsmState") == "HSHK" and name not in started:
                started[name] = asyncio.create_task(one(run))
        over = [run for run in runs if (run.get("status") or {}).get("fsmState") == "TERM"]
        if len(over) >= said + count // 5:
            said = len(over)
            note(f"{said} of {count} are over")
        if len(over) == count or time.monotonic() - began > 1800:
            break
        await asyncio.sleep(2)
    seconds = time.monotonic() - began
    await asyncio.gather(*started.values())
    await fleet.close()
    await settled(operator)
    cpu = operator.usage()[0] - cpu
    ends = await fleet.runs()
    pods = Counter(
        pod["metadata"]["labels"]["mosaic.dev/run"] for pod in await client.items(pods_path(fleet.namespace))
    )
    wrong = [run for run in ends if not _right(run, pods)]
    for run in wrong[:5]:
        note(f"wrong: {run['metadata']['name']} {run.get('status')}")
    for fault in fleet.faults[:5]:
        note(f"fault: {fault}")
    counted = audit.writes(fleet.namespace)
    transitions = sum(len((run.get("status") or {}).get("transitions") or []) for run in ends)
    share = to_children(counted) / max(1, transitions)
    return [
        Figure(f"{count:,} whole lives with sessions, wrong at the end", f"{len(wrong)}", "0", not wrong),
        Figure("whole lives per second, sessions included", f"{count / seconds:.1f}"),
        Figure("writes per transition", f"{share:.2f}", "at most 2", share <= 2),
        Figure("writes per run", f"{to_children(counted) / count:.2f}"),
        Figure("Events per run, counted apart", f"{counted['create events'] / count:.2f}"),
        Figure("players' faults", f"{len(fleet.faults)}", "0", not fleet.faults),
        Figure("operator's CPU per whole life", f"{1000 * cpu / count:.1f} ms"),
        Figure("operator's memory, now and at most", "{1:.0f} and {2:.0f} MiB".format(*operator.usage())),
    ]


def _right(run: Object, pods: Counter[str]) -> bool:
    status = run.get("status") or {}
    walked = [step["to"] for step in status.get("transitions") or []]
    return (
        status.get("outcome") == "completed"
        and status.get("attempt") == 1
        and walked == WALK
        and pods[run["metadata"]["name"]] == 1
        and (status.get("checkpoint") or {}).get("step") == 750
    )


async def restart(made: Cluster, client: Client, operator: OperatorProcess, args: argparse.Namespace) -> list[Figure]:
    count = args.restart_count
    namespace = make_namespace(made, "restart")
    note("one real life as the pattern of the finished, one of the running")
    fleet = Fleet(made, client, operator, namespace)
    await fleet.create(2)
    patterns = await _patterns(fleet)
    operator.stop()
    await fleet.close()
    running = min(args.count, count // 10)
    await _fill(made, client, namespace, patterns, count, running)
    await asyncio.sleep(2)
    audit = Audit(made)
    began = time.monotonic()
    operator.start()
    ready = time.monotonic() - began
    while operator.metric("cleanrl_operator_reconciles_total") < count:
        if time.monotonic() - began > 600:
            raise SystemExit(f"only {operator.metric('cleanrl_operator_reconciles_total')} of {count} were looked at")
        await asyncio.sleep(0.5)
    caught_up = time.monotonic() - began
    await settled(operator)
    cpu, now, most = operator.usage()
    written = audit.writes()
    states = [line for line in operator.get("/metrics")[1].splitlines() if line.startswith("cleanrl_operator_runs{")]
    note(f"{written or 'no writes'}; {'; '.join(states)}")
    return [
        Figure(f"restart over {count:,} runs, {running:,} running", f"{caught_up:.1f} s", "within 60 s", caught_up <= 60),
        Figure("of which until it was ready", f"{ready:.1f} s"),
        Figure("writes by that", f"{sum(written.values())}", "0", not written),
        Figure("memory, now and at most", f"{now:.0f} and {most:.0f} MiB", "at most 300 MiB", most <= 300),
        Figure("CPU until it had caught up and was quiet", f"{cpu:.1f} s"),
    ]  # fmt: skip


async def _patterns(fleet: Fleet) -> tuple[Object, Object]:
    """Bodies of a run that has ended and of one that trains, both made by the operator itself."""
    deadline = time.monotonic() + 120
    while True:
        runs = await fleet.runs()
        if all((run.get("status") or {}).get("fsmState") == "HSHK" for run in runs):
            break
        if time.monotonic() > deadline:
            raise SystemExit("the first runs did not start")
        await asyncio.sleep(0.5)
    await fleet.live(runs[0])
    player = await fleet.player(runs[1])
    await player.until_acknowledged(player.emit("run_started", attempt=1))
    while True:
        ended, trains = await fleet.runs()
        if ended["status"]["fsmState"] == "TERM" and trains["status"]["fsmState"] == "EXEC":
            return ended, trains
        if time.monotonic() > deadline:
            raise SystemExit("the patterns did not come about")
        await asyncio.sleep(0.5)


async def _fill(
    made: Cluster, client: Client, namespace: str, patterns: tuple[Object, Object], count: int, running: int
) -> None:
    """Copies of the patterns: runs with their statuses, and for those that run their pods too."""
    from cleanrl_operator.desired import pod
    from cleanrl_operator.run import Run
    from cleanrl_operator.settings import Settings

    async def one(number: int) -> None:
        trains = number < running
        body = run_body(f"copy-{number:05}")
        body["metadata"]["namespace"] = namespace
        made_run = await client("POST", runs_path(namespace), body)
        run = Run.parse(made_run)
        pattern = patterns[1 if trains else 0]["status"]
        renamed = json.dumps(pattern).replace(pattern["podName"], run.pod_name(1)).replace(pattern["runId"], run.run_id)
        status = json.loads(renamed)
        if trains:
            created = await client("POST", pods_path(namespace), pod.build(run, Settings()))
            status["podUID"] = created["metadata"]["uid"]
            status["nodeName"] = None
        else:
            status["podUID"] = f"gone-{number}"
        await client("PATCH", runs_path(namespace, run.name, "status"), {"status": status})

    await at_once(count, one, say="runs with statuses")
    note("waiting until the pods of the running ones run")
    deadline = time.monotonic() + 300
    while True:
        pods = await client.items(pods_path(namespace))
        ready = [each for each in pods if each["status"].get("phase") == "Running"]
        if len(ready) >= running:
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"only {len(ready)} of {running} pods run")
        await asyncio.sleep(1)
    nodes = {pod["metadata"]["labels"]["mosaic.dev/run"]: pod["spec"]["nodeName"] for pod in ready}

    async def place(number: int) -> None:
        name = f"copy-{number:05}"
        await client("PATCH", runs_path(namespace, name, "status"), {"status": {"nodeName": nodes[name]}})

    await at_once(running, place)


async def idle(made: Cluster, client: Client, operator: OperatorProcess, args: argparse.Namespace) -> list[Figure]:
    count, seconds = args.count, args.idle_seconds
    fleet = Fleet(made, client, operator, make_namespace(made, "idle"))
    await fleet.create(count)
    talking: list[asyncio.Task[None]] = []
    while len(fleet.players) < count:
        for run in await fleet.runs():
            if (run.get("status") or {}).get("fsmState") == "HSHK" and run["metadata"]["name"] not in fleet.players:
                player = await fleet.player(run)
                player.emit("run_started", attempt=1)
                talking.append(asyncio.create_task(_talk(player)))
        await asyncio.sleep(1)
    for player in fleet.players.values():
        await player.attending.wait()
    note(f"{count} sessions are live; a pause, then {seconds:.0f} s are measured")
    await asyncio.sleep(70)
    audit, before, began = Audit(made), operator.usage()[0], time.monotonic()
    cuts = sum(player.cuts for player in fleet.players.values())
    await asyncio.sleep(seconds)
    cpu, now, most = operator.usage()
    elapsed = time.monotonic() - began
    share = (cpu - before) / elapsed
    written = to_children(audit.writes(fleet.namespace)) / elapsed
    lost = sum(player.cuts for player in fleet.players.values()) - cuts
    for task in talking:
        task.cancel()
    await asyncio.gather(*talking, return_exceptions=True)
    await fleet.close()
    return [
        Figure(f"{count:,} live sessions: share of a core", f"{100 * share:.1f} %", "under 10 %", share < 0.1),
        Figure("progress writes per second", f"{written:.1f}", "at most 20", written <= 20),
        Figure("sessions cut meanwhile", f"{lost}", "0", lost == 0),
        Figure("memory, now and at most", f"{now:.0f} and {most:.0f} MiB"),
    ]


async def _talk(player: Player) -> None:
    """What a worker says while it trains."""
    step, spoke = 0, time.monotonic() - random.uniform(0, HEARTBEAT_SECONDS)
    await asyncio.sleep(random.uniform(0, SCALARS_SECONDS))
    while True:
        step += 100
        figures = {"charts/episodic_return": float(step % 500)}
        reported = time.monotonic()
        player.emit("scalars", step=step, total=10**9, sps=10.0, episodes=step // 10, values=figures)
        if reported - spoke >= HEARTBEAT_SECONDS:
            spoke = reported
            player.emit("heartbeat", state="EXEC")
        await asyncio.sleep(TICK_SECONDS * random.random())
        first, every = player.pace or (reported + SCALARS_SECONDS, SCALARS_SECONDS)
        due = first + every * max(0, math.floor((reported - first) / every) + 1)
        await asyncio.sleep(TICK_SECONDS * math.ceil((due - time.monotonic()) / TICK_SECONDS))


MEASURES = {"lives": lives, "restart": restart, "idle": idle}
TITLES = {
    "lives": "Whole lives with sessions",
    "restart": "A restart over many runs",
    "idle": "A fleet that only talks",
}


async def measure(args: argparse.Namespace) -> bool:
    nodes = nodes_for(args.count)
    good = True
    for part in args.parts or PARTS:  # each on a cluster of its own: what one leaves behind is not the next one's load
        note(f"{part}: a cluster with {nodes} pretended nodes; load {surroundings()['load']}")
        with cluster(nodes) as made, tempfile.TemporaryDirectory() as folder:
            prefix = args.prefix.split() if args.prefix else []
            with OperatorProcess(made, Path(folder), prefix=prefix) as operator:
                operator.start()
                async with Client(made) as client:
                    facts = surroundings()
                    figures = await MEASURES[part](made, client, operator, args)
                publish(part, TITLES[part], figures, facts, folder=args.out)
                good = good and all(figure.good is not False for figure in figures if figure.target == "0")
                with contextlib.suppress(OSError):
                    operator.stop()
                if args.keep_log:
                    args.keep_log.write_text(operator.log.read_text())
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all by default")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--restart-count", type=int, default=10_000)
    parser.add_argument("--idle-seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    parser.add_argument("--prefix", default="", help="a command to start the operator under, for example a profiler")
    parser.add_argument("--keep-log", type=Path, default=None, help="where the operator's log goes")
    return 0 if asyncio.run(measure(parser.parse_args())) else 1


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

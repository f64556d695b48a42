"""Faults at random while runs live; then everything is counted that may have been lost. `make chaos`.

    python tests/benchmarks/chaos.py [--runs 500] [--real 30] [--minutes 10] [--seed N]

First runs on pretended nodes, whose workers are players that speak the real protocol (operator_fleet.py): each has a fate
drawn from the seed, so what it has to end as is known before. Then runs on real pods that really train (chaos_real.py). While
they live, faults strike one after the other until all runs are over; new runs arrive for half of `--minutes`.

At the end: every run in TERM with the outcome of its fate; event logs without a gap and taken over to the last number; no
checkpoint lost beyond one interval; no attempt that nobody caused; no object without an owner; for each attempt one pod, by the
API server's audit log. The seed is printed and draws the same fates and the same faults in the same order again; what is struck
in the middle of what is up to the machine. Writes docs/benchmarks/chaos.{json,md}; exits with 1 when something was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import chaos_real
from jobs import saying_when_stopped
from operator_fleet import Player, bound_token
from operator_lab import (
    FAKETIME,
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
    container,
    make_namespace,
    nodes_for,
    note,
    own_clock,
    pods_path,
    run_body,
    runs_backwards,
    runs_path,
    stamp,
    surroundings,
    until_async,
)
from reporting import publish_figures

from cleanrl_protocol.record import CheckpointRef, TerminationRecord, dump
from devcluster import surroundings as machine
from devcluster.runner import Runner

Object = dict[str, Any]
NAMESPACES = 4
PATIENCE = 900.0
"""Seconds without any progress of any run after which the rest is given up."""
STEPS, INTERVAL = 1000, 250
FATES = {
    "completes": 10,
    "fails once": 3,
    "is hopeless": 1,
    "is misconfigured": 1,
    "is canceled": 2,
    "loses its pod": 2,
    "is suspended": 2,
}
"""What happens to a run besides the faults, and how often."""
OF_RUNS = "/chaos-"
STORM: list[Object] = [
    {"action": "status", "status": 500, "path": OF_RUNS, "probability": 0.15},
    {"action": "status", "status": 429, "path": OF_RUNS, "probability": 0.15, "retry_after": 1},
    {"action": "status", "status": 409, "path": "/cleanrlruns/", "probability": 0.15, "method": "PATCH"},
    {"action": "lose-answer", "path": OF_RUNS, "probability": 0.15, "method": "POST"},
    {"action": "lose-answer", "path": OF_RUNS, "probability": 0.15, "method": "PATCH"},
    {"action": "cut-stream", "times": 5},  # of any path: the operator watches all namespaces at once
]
"""What befalls the operator's calls in a storm."""
OUTCOMES = {"is hopeless": "failed", "is misconfigured": "failed", "is canceled": "canceled"}
ATTEMPTS = {"fails once": 2, "is hopeless": 2, "loses its pod": 2, "is suspended": 2}


class Wire:
    """What lies between workers and gateway: a forwarder of bytes that can be cut."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open: set[asyncio.StreamWriter] = set()
        self._cut = False
        self.port = 0
        self.cuts = 0
        """Connections that were cut, or let in and hung up on meanwhile."""

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[Wire]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
            self._cut = True
            self._hang_up()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._cut:
                self.cuts += 1
                return
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._open.add(far_writer)
            try:
                await asyncio.gather(_pour(reader, far_writer), _pour(far_reader, writer))
            finally:
                self._open.discard(far_writer)
                far_writer.close()
        except OSError:
            return  # nobody listens there now
        finally:
            self._open.discard(writer)
            writer.close()

    def _hang_up(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def cut(self, seconds: float) -> None:
        self.cuts += len(self._open) // 2  # each has a near end and a far one
        self._cut = True
        self._hang_up()
        await asyncio.sleep(seconds)
        self._cut = False


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()


class Patient:
    """The load generator's client, which asks again while the API server is away: only the operator is on trial."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, method: str, path: str, body: Object | None = None) -> Object:
        return dict(await self._again(lambda: self._client(method, path, body), method))

    async def items(self, path: str) -> list[Object]:
        return list(await self._again(lambda: self._client.items(path), "LIST"))

    async def _again(self, ask: Callable[[], Awaitable[Any]], method: str) -> Any:
        deadline = time.monotonic() + 300
        while True:
            try:
                return await asyncio.wait_for(ask(), 60)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                trouble: Exception = error
            except NotReached as error:
                code = int(str(error).partition(": ")[2][:3])
                if (method, code) in (("POST", 409), ("DELETE", 404)):
                    return {}  # an answer was lost before: it is done
                if code not in (401, 403, 429) and code < 500:
                    raise
                trouble = error
            if time.monotonic() > deadline:
                raise NotReached(f"{method}: {trouble}")
            await asyncio.sleep(0.5)


def saved_at(step: int) -> CheckpointRef:
    """A checkpoint as an event and a record name it."""
    return CheckpointRef(path=f"checkpoints/step-{step:012d}", step=step, sha256="a" * 64)


class Story:
    """One run: its fate, and the log on its claim, which outlives its pods."""

    def __init__(self, namespace: str, name: str, chance: random.Random) -> None:
        self.namespace, self.name = namespace, name
        self.fate = chance.choices(list(FATES), list(FATES.values()))[0]
        self.pause = chance.uniform(0.2, 2.0)
        self.turn = chance.choice((250, 500, 750))
        """The step at which its fate comes over it."""
        self.log: list[Object] = []
        self.met: set[str] = set()
        """Pods that had a player."""
        self.unheard = 0
        self.expected = OUTCOMES.get(self.fate, "completed")

    @property
    def saved(self) -> int:
        """The step of the newest checkpoint."""
        return max((event["payload"]["step"] for event in self.log if event["event"] == "checkpoint_saved"), default=0)


class Stage:
    """All stories, and the players that act them out as soon as there are pods."""

    def __init__(self, made: Cluster, client: Patient, wire: Wire, stories: list[Story]) -> None:
        self.client, self.wire = client, wire
        self.stories = {(story.namespace, story.name): story for story in stories}
        self._ca = authority(made)
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.faults: list[str] = []
        self.pods_seen: dict[tuple[str, str, str], set[str]] = {}

    async def create(self, chance: random.Random, seconds: float) -> None:
        """All runs, spread over the first part of the time."""
        for story in self.stories.values():
            spec = {"retry": {"limit": 1 if story.fate == "is hopeless" else 3, "backoffSeconds": 1}}
            await self.client("POST", runs_path(story.namespace), run_body(story.name, **spec))
            await asyncio.sleep(chance.uniform(0, 2 * seconds / len(self.stories)))

    async def runs(self) -> list[Object]:
        found = []
        for namespace in sorted({story.namespace for story in self.stories.values()}):
            found += await self.client.items(runs_path(namespace))
        return found

    async def act(self) -> list[Object]:
        """Until all runs are over, or nothing happens any more: the runs."""
        before, moved = None, time.monotonic()
        while True:
            runs = await self.runs()
            for run in runs:
                self._attend(run)
            states = Counter((run.get("status") or {}).get("fsmState") or "new" for run in runs)
            picture = [(run["metadata"]["name"], run["metadata"]["resourceVersion"]) for run in runs]
            if picture != before:
                before, moved = picture, time.monotonic()
            if states["TERM"] == len(self.stories) or time.monotonic() - moved > PATIENCE:
                return runs
            note(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
            await asyncio.sleep(3)

    def _attend(self, run: Object) -> None:
        metadata, status = run["metadata"], run.get("status") or {}
        story = self.stories[metadata["namespace"], metadata["name"]]
        uid = status.get("podUID")
        if uid is None or uid in story.met or status.get("fsmState") not in ("HSHK", "RDY", "EXEC"):
            return
        story.met.add(uid)
        self.tasks[uid] = asyncio.create_task(self._life(story, status))

    async def _life(self, story: Story, status: Object) -> None:
        try:
            await self._attempt(story, status)
        except Exception as error:  # noqa: BLE001 - counted and shown at the end
            self.faults.append(f"{story.namespace}/{story.name}, attempt {status['attempt']}: {error!r}")

    async def _attempt(self, story: Story, status: Object) -> None:
        """What the worker of one pod does."""
        attempt, pod, first = status["attempt"], status["podName"], not story.log
        token = await bound_token(self.client, story.namespace, pod, status["podUID"])  # type: ignore[arg-type]
        player = Player(f"localhost:{self.wire.port}", self._ca, token, status["runId"], attempt, story.log)
        talking = asyncio.create_task(player.run())
        try:
            player.emit("run_started", attempt=attempt)
            if story.fate == "is hopeless":
                await self._end(story, pod, 1, None)
                return
            if story.fate == "is misconfigured":
                await self._end(story, pod, 2, self._record(status, "failed", "BadConfig"))
                return
            for step in range(story.saved + 50, STEPS + 1, 50):
                await asyncio.sleep(story.pause / 5)
                player.emit(
                    "scalars", step=step, total=STEPS, sps=10.0, episodes=1, values={"charts/episodic_return": 9.0}
                )
                if step % INTERVAL == 0 and step < STEPS:
                    self._checkpoint(player, step, "interval")
                if first and step == story.turn and await self._turn(story, status, player, step):
                    return
            last = player.emit("run_completed")
            try:
                await player.until_acknowledged(last, 120)
            except NotReached:
                story.unheard += 1  # the record says the same
            await self._end(story, pod, 0, completed(status["runId"], attempt, saved_at(story.saved)))
        finally:
            player.close()
            talking.cancel()

    def _checkpoint(self, player: Player, step: int, reason: str) -> None:
        player.emit("checkpoint_saved", **saved_at(step).model_dump(), bytes=1, seconds=0.1, reason=reason)

    async def _turn(self, story: Story, status: Object, player: Player, step: int) -> bool:
        """The story's fate comes over it: whether this pod is at its end."""
        run, pod = runs_path(story.namespace, story.name), status["podName"]
        if story.fate == "fails once":
            await self._end(story, pod, 1, None)
        elif story.fate == "loses its pod":
            await self.client("DELETE", pods_path(story.namespace, pod), {"gracePeriodSeconds": 0})
        elif story.fate == "is canceled":
            await self.client("PATCH", run, {"spec": {"cancel": True}})
            await self._until_asked_to_stop(run)
            await self._end(story, pod, 0, self._record(status, "canceled", "Canceled"))
        elif story.fate == "is suspended":
            await self.client("PATCH", run, {"spec": {"suspend": True}})
            await self._until_asked_to_stop(run)
            self._checkpoint(player, step, "stop")
            with suppress(NotReached):
                await player.until_acknowledged(len(story.log), 60)
            await self._end(story, pod, 0, self._record(status, "suspended", "Stopped"))
            await self._until(run, lambda now: now.get("fsmState") == "PAUSE", "it is suspended")
            await self.client("PATCH", run, {"spec": {"suspend": False}})
        else:
            return False
        return True

    async def _until_asked_to_stop(self, run: str) -> None:
        asked = ("stopRequestedAt", "finishedAt")
        await self._until(
            run, lambda now: any(name in now for name in asked) or now.get("fsmState") == "PAUSE", "a stop"
        )

    async def _until(self, run: str, holds: Callable[[Object], bool], what: str) -> None:
        deadline = time.monotonic() + 600
        while not holds((await self.client("GET", run)).get("status") or {}):
            if time.monotonic() > deadline:
                raise NotReached(f"{what}: did not happen in 600 s")
            await asyncio.sleep(1)

    def _record(self, status: Object, outcome: Any, reason: str) -> Object:
        record = TerminationRecord(
            run_id=status["runId"], attempt=status["attempt"], outcome=outcome, reason=reason, message=reason
        )
        return {"message": dump(record).decode()}

    async def _end(self, story: Story, pod: str, code: int, said: Object | None) -> None:
        """The pod's container ends. A whole status as it is, or an exit code with a record or without."""
        status = said if said is not None and "phase" in said else None
        if status is None:
            end = {
                "exitCode": code,
                "reason": "Error" if code else "Completed",
                "startedAt": stamp(),
                "finishedAt": stamp(),
            }
            phase = "Failed" if code else "Succeeded"
            status = {"phase": phase, "containerStatuses": [container(terminated={**end, **(said or {})})]}
        with suppress(NotReached):  # the operator has removed the pod before it ended
            await self.client("PATCH", pods_path(story.namespace, pod, "status"), {"status": status})

    async def look_at_pods(self) -> None:
        """Note which pods there are, now and then."""
        while True:
            for namespace in sorted({story.namespace for story in self.stories.values()}):
                for pod in await self.client.items(pods_path(namespace)):
                    labels = pod["metadata"]["labels"]
                    key = (namespace, labels["mosaic.dev/run"], labels["mosaic.dev/attempt"])
                    self.pods_seen.setdefault(key, set()).add(pod["metadata"]["uid"])
            await asyncio.sleep(5)


# -- faults


class Faults:
    """What strikes, one after the other, in an order that the seed gives."""

    def __init__(self, made: Cluster, operator: OperatorProcess, wire: Wire, chance: random.Random) -> None:
        self.made, self.operator, self.wire, self.chance = made, operator, wire, chance
        self.struck: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        """The operator's calls that storms struck, by what befell them."""
        self.trouble: list[str] = []

    async def strike(self, over: asyncio.Event) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.kill_operator, self.kill_operator, self.cut_gateway, self.kill_api_server, self.kill_etcd, self.kill_kwok,
            self.kill_controllers, self.storm, self.outage, self.clock,
        ]  # fmt: skip
        while not over.is_set():
            self.chance.shuffle(kinds)
            for kind in kinds:
                await asyncio.sleep(self.chance.uniform(2, 8))
                if over.is_set():
                    break
                name = kind.__name__.replace("_", " ")
                note(f"fault: {name}")
                try:
                    await kind()
                    self.struck[name] += 1
                except NotReached as error:
                    self.trouble.append(f"{name}: {error}")
                if self.chance.random() < 0.75:  # the others meet an operator that has not got up from the last one
                    await self._recovered()
        await asyncio.to_thread(self.made.up, reuse=True)

    async def _recovered(self) -> None:
        """Until the operator leads again: on a slow machine faults would else follow so closely that no run gets anywhere."""
        with suppress(NotReached):
            await until_async(self._leads, "the operator leads again", 90)

    def _leads(self) -> bool:
        with suppress(NotReached):  # it has just ended, and is started again
            return self.operator.leads()
        return False

    async def kill_operator(self) -> None:
        if self.operator.process is not None and self.operator.process.poll() is None:
            self.operator.kill()
        await asyncio.sleep(self.chance.uniform(0, 3))

    async def clock(self) -> None:
        """The operator's wall clock is off for a while, then right again: both are jumps."""
        jump = self.chance.choice(("-90", "+90", "+3600", "-600"))
        another, environment = own_clock(jump), self.operator.environment
        environment |= another  # before the kill: it is started again at once
        try:
            await self.kill_operator()
            await until_async(self._has_another_clock, f"the operator starts with its clock at {jump} s", 60)
            await asyncio.sleep(self.chance.uniform(5, 15))
        finally:
            for name in another:
                environment.pop(name)
            await self.kill_operator()

    def _has_another_clock(self) -> bool:
        process = self.operator.process
        with suppress(OSError):  # it has just ended
            return process is not None and FAKETIME.name in Path(f"/proc/{process.pid}/maps").read_text()
        return False

    async def cut_gateway(self) -> None:
        await self.wire.cut(self.chance.uniform(0.5, 12))

    async def kill_api_server(self) -> None:
        await self._kill("kube-apiserver")

    async def kill_etcd(self) -> None:
        await self._kill("etcd")

    async def kill_kwok(self) -> None:
        """The pretended kubelets."""
        await self._kill("kwok")

    async def kill_controllers(self) -> None:
        """Garbage collector, node lifecycle, scheduler."""
        await self._kill(self.chance.choice(("kube-controller-manager", "kube-scheduler")))

    async def _kill(self, part: str) -> None:
        identity = Runner(self.made.layout).process(part)
        if identity is None:
            raise NotReached(f"there is no {part} to kill")
        os.kill(identity.pid, signal.SIGKILL)
        await asyncio.sleep(self.chance.uniform(0, 4))
        await asyncio.to_thread(self.made.up, reuse=True)

    async def storm(self) -> None:
        """Errors on any call of the operator."""
        faults = [self.made.faults.add(**rule) for rule in STORM]
        await asyncio.sleep(self.chance.uniform(5, 15))
        for fault, rule in zip(faults, STORM, strict=True):
            self.calls[str(rule.get("status", rule["action"]))] += fault.struck
            fault.remove()

    async def outage(self) -> None:
        with self.made.faults.outage():
            await asyncio.sleep(self.chance.uniform(2, 20))


async def keep_alive(operator: OperatorProcess) -> None:
    """What the kubelet does with the operator's pod."""
    while True:
        operator.keep_alive()
        await asyncio.sleep(0.5)


# -- the count


def wrong_ends(stage: Stage, runs: list[Object]) -> dict[str, list[str]]:
    """Everything that was promised and is not so, by promise."""
    found: dict[str, list[str]] = {name: [] for name in ("outcome", "attempts", "events", "checkpoint", "time")}
    there = {(run["metadata"]["namespace"], run["metadata"]["name"]) for run in runs}
    found["outcome"] += [f"{'/'.join(key)}: is not there any more" for key in stage.stories if key not in there]
    for run in runs:
        status, metadata = run.get("status") or {}, run["metadata"]
        story = stage.stories[metadata["namespace"], metadata["name"]]
        who = f"{metadata['namespace']}/{metadata['name']} ({story.fate})"
        state = f"{status.get('fsmState')} {status.get('outcome')} {status.get('reason')}"
        if status.get("fsmState") != "TERM" or status.get("outcome") != story.expected:
            found["outcome"].append(f"{who}: {state}, not {story.expected}: {status.get('message')}")
            continue
        due = ATTEMPTS.get(story.fate, 1)
        if status.get("attempt") != due:
            reasons = [step["reason"] for step in status["transitions"] if step["to"] == "FAULT"]
            found["attempts"].append(f"{who}: {status.get('attempt')} attempts, {due} were caused; {reasons}")
        last = (status.get("session") or {}).get("lastEvent", 0)
        if story.expected == "completed" and not story.unheard and last < len(story.log):
            found["events"].append(f"{who}: {last} of {len(story.log)} events are in the status")
        kept = (status.get("checkpoint") or {}).get("step", 0)
        if story.expected == "completed" and kept < story.saved - INTERVAL:
            found["checkpoint"].append(f"{who}: the status knows step {kept}, {story.saved} was saved")
        if runs_backwards(status):
            found["time"].append(f"{who}: {[step['at'] for step in status['transitions']]}")
    return found


def seen_double(stage: Stage) -> list[str]:
    """Attempts of which more than one pod was seen."""
    return [f"{'/'.join(key)}: {len(uids)} pods seen" for key, uids in stage.pods_seen.items() if len(uids) > 1]


async def survivors(stage: Stage) -> list[str]:
    """Pods that still run, and hold what they asked for, a while after their runs' ends."""
    deadline = time.monotonic() + 90
    while True:
        over = {(run["metadata"]["namespace"], run["metadata"]["name"]) for run in await stage.runs()
                if (run.get("status") or {}).get("fsmState") == "TERM"}  # fmt: skip
        left = []
        for namespace in sorted({story.namespace for story in stage.stories.values()}):
            for pod in await stage.client.items(pods_path(namespace)):
                metadata, phase = pod["metadata"], pod["status"].get("phase")
                if (namespace, metadata["labels"]["mosaic.dev/run"]) in over and phase not in ("Succeeded", "Failed"):
                    left.append(f"{namespace}/{metadata['name']} is {phase}, and its run over")
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(5)


async def orphans(stage: Stage) -> list[str]:
    """What is left when all runs are deleted: everything of theirs has to go with them, but for claims that are kept."""
    paths = [runs_path(story.namespace, story.name) for story in stage.stories.values()]
    await at_once(len(paths), lambda number: stage.client("DELETE", paths[number]), abreast=16)
    deadline = time.monotonic() + 180
    while True:
        left = []
        for namespace in sorted({story.namespace for story in stage.stories.values()}):
            for kind in ("pods", "services"):
                items = await stage.client.items(f"/api/v1/namespaces/{namespace}/{kind}")
                left += [f"{kind} {namespace}/{item['metadata']['name']}" for item in items]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(2)


async def pretended(args: argparse.Namespace) -> list[Figure]:
    own_clock()  # says at once if it can't be had
    chance = random.Random(f"{args.seed}-pretended")
    nodes = nodes_for(args.runs)
    note(f"{args.runs} runs on {nodes} pretended nodes")
    began = time.monotonic()
    with cluster(nodes, fault_proxy=True) as made, tempfile.TemporaryDirectory() as folder:
        namespaces = [make_namespace(made, f"{OF_RUNS[1:]}{number}") for number in range(min(NAMESPACES, args.runs))]
        stories = [Story(chance.choice(namespaces), f"run-{number:05}", chance) for number in range(args.runs)]
        audit = Audit(made)
        with OperatorProcess(made, Path(folder), faulty=True) as operator:
            operator.start()
            wire = Wire(operator.gateway_port)
            async with Client(made) as client, wire.laid():
                stage = Stage(made, Patient(client), wire, stories)
                faults = Faults(made, operator, wire, chance)
                over = asyncio.Event()
                background = [asyncio.create_task(work) for work in (keep_alive(operator), stage.look_at_pods())]
                striking = asyncio.create_task(faults.strike(over))
                creating = asyncio.create_task(stage.create(random.Random(args.seed), 60 * args.minutes / 2))
                while not creating.done():  # players begin while others are still to be created
                    for run in await stage.runs():
                        stage._attend(run)
                    if striking.done():
                        await striking
                    await asyncio.sleep(3)
                await creating
                runs = await stage.act()
                over.set()
                await striking
                for work in background:
                    if work.done():  # it was to go on until the end: what it would have seen was not seen
                        await work
                for task in stage.tasks.values():
                    task.cancel()
                wrong = wrong_ends(stage, runs)
                double = chaos_real.doubled(audit, "chaos-") + seen_double(stage)
                await until_async(operator.leads, "the operator leads at the end", 300)
                alive = await survivors(stage)
                left = await orphans(stage)
                for task in background:
                    task.cancel()
            log = operator.log.read_text()
            if args.keep_log:
                args.keep_log.write_text(log)
            operator.stop()
    for sentences in (*wrong.values(), double, alive, left, stage.faults, faults.trouble):
        for sentence in sentences[:10]:
            note(f"wrong: {sentence}")
    fates = Counter(story.fate for story in stories)
    tracebacks = log.count("Traceback (most recent call last)")
    return [
        Figure("pretended: runs", f"{args.runs}", "at least 500", args.runs >= 500),
        Figure("pretended: fates", "; ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))),
        Figure("pretended: faults", "; ".join(f"{count} {kind}" for kind, count in sorted(faults.struck.items()))),
        Figure("pretended: faults that could not be made", f"{len(faults.trouble)}"),
        Figure(
            "pretended: the operator's calls that storms struck",
            "; ".join(f"{count} {what}" for what, count in sorted(faults.calls.items())),
        ),
        Figure("pretended: connections to the gateway that were cut", f"{wire.cuts}"),
        Figure(
            "pretended: runs not in TERM with the right outcome", f"{len(wrong['outcome'])}", "0", not wrong["outcome"]
        ),
        Figure(
            "pretended: runs with attempts that nobody caused", f"{len(wrong['attempts'])}", "0", not wrong["attempts"]
        ),
        Figure("pretended: event logs not taken over whole", f"{len(wrong['events'])}", "0", not wrong["events"]),
        Figure(
            "pretended: attempts that ended before all they said was acknowledged",
            f"{sum(story.unheard for story in stories)}",
        ),
        Figure(
            "pretended: checkpoints lost beyond an interval",
            f"{len(wrong['checkpoint'])}",
            "0",
            not wrong["checkpoint"],
        ),
        Figure("pretended: statuses in which time runs backwards", f"{len(wrong['time'])}", "0", not wrong["time"]),
        Figure("pretended: attempts with more than one pod", f"{len(double)}", "0", not double),
        Figure("pretended: pods that outlived their runs", f"{len(alive)}", "0", not alive),
        Figure("pretended: objects left without a run", f"{len(left)}", "0", not left),
        Figure("pretended: players that could not act their part", f"{len(stage.faults)}", "0", not stage.faults),
        Figure("pretended: tracebacks in the operator's log", f"{tracebacks}"),
        Figure("pretended: duration", f"{(time.monotonic() - began) / 60:.1f} min"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="runs on pretended nodes")
    parser.add_argument("--real", type=int, default=30, help="runs on real pods")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long pretended runs arrive: half of this")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep-log", type=Path, help="where the operator's log goes")
    parser.add_argument("--out", type=Path, default=None, help="where results go instead of docs/benchmarks")
    args = parser.parse_args()
    if min(args.runs, args.real) < 0 or not args.minutes > 0:
        parser.error("--runs and --real take 0 or more, --minutes more than 0")
    if args.real and (reason := machine.why_no_node()):
        parser.error(f"{reason.rpartition(': ')[0]}: run it where there is one, or leave the real pods out (--real 0)")
    print(f"seed {args.seed}: repeat with --seed {args.seed} --runs {args.runs} --real {args.real} --minutes {args.minutes:g}",
          flush=True)  # fmt: skip
    good = True
    work: dict[str, tuple[int, Callable[[], list[Figure]]]] = {
        "pretended": (args.runs, lambda: asyncio.run(pretended(args))),
        "real": (args.real, lambda: chaos_real.run(args)),
    }
    for name, (count, strike) in work.items():
        if count:
            facts = surroundings()
            figures = [*strike(), Figure(f"{name}: seed", f"{args.seed}")]
            part = {
                "title": f"{name} nodes".capitalize(),
                **facts,
                "figures": [dataclasses.asdict(each) for each in figures],
            }
            publish_figures(
                "chaos", "Chaos: faults at random, and what was lost", __doc__ or "", {name: part}, args.out
            )
            good = good and not any(figure.good is False and figure.target == "0" for figure in figures)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(saying_when_stopped(main, "the seed above draws the same faults again"))

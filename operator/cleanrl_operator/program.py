"""The operator from start to end: connect, wait for the lease, serve, stop.

Everything lives in one event loop. While the process waits for the lease it is warm: connected, healthy, ready. Once it leads
it fills the pods' half of the cache, opens the gateway and lets kopf watch the runs; when the lease is lost, or any part of it
ends that should not, the whole process does, because a half that goes on alone would be worse than none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from cleanrl_operator.announce import Announcer
from cleanrl_operator.api import GROUP, PLURAL, VERSION
from cleanrl_operator.api.status import State
from cleanrl_operator.boards import Boards
from cleanrl_operator.cache import Cache, Key
from cleanrl_operator.clock import WallClock
from cleanrl_operator.election import Election, LeaseLost
from cleanrl_operator.gateway.service import GatewayService
from cleanrl_operator.gateway.sessions import SessionBook
from cleanrl_operator.health import HealthServer, LoopLag
from cleanrl_operator.kube import Kube, KubeError
from cleanrl_operator.memory import give_back_free_pages
from cleanrl_operator.metrics import Headlines, OperatorPage, Source, Spoken, Tally
from cleanrl_operator.podwatch import PodWatch
from cleanrl_operator.progress import FleetBudget, Pace
from cleanrl_operator.queue import WorkQueue
from cleanrl_operator.readers import MetricsReaders
from cleanrl_operator.reconcile import Reconciler
from cleanrl_operator.run import RUN_UID_LABEL
from cleanrl_operator.secure import SecureMetrics
from cleanrl_operator.settings import Settings
from cleanrl_operator.watchdog import Watchdog, Watched, pods_of, runs_of

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
SWEEP_SECONDS = 60.0
"""How often every run that is not over and has no session is looked at, whatever the watches and the timers say."""
SWEPT_A_SECOND = 50
"""So many of them at the most: thousands that wait for a GPU would keep a process busy that has nothing to do."""
MEMORY_SECONDS = 60.0
"""How often memory that is free is given back."""
RUNS, PODS = (f"apis/{GROUP}/{VERSION}", PLURAL), ("api/v1", "pods")
LEADER_LABEL = f"{GROUP}/gateway"
LEADER_VALUE = "leader"


class CannotStart(Exception):
    """Something that the operator needs is missing in the cluster. The message says what to do."""


class Operator:
    """One process' worth of operator. `watch` runs kopf until it is cancelled or ends."""

    def __init__(self, settings: Settings, watch: Callable[[Operator], Coroutine[Any, Any, None]]) -> None:
        self.settings = settings
        self.cache = Cache(settings.operator_class)
        self.queue = WorkQueue(self._reconcile, behind=lambda: self.cache.unseen > 0)
        self.book = SessionBook(self.queue.put, talked=self._talked)
        self.budget = FleetBudget(lambda: len(self.book))
        self.watching = asyncio.Event()
        self.stopping = asyncio.Event()
        self.kube: Kube
        self._watch = watch
        self._reconciler: Reconciler
        self._announcer: Announcer
        self._election: Election
        self._watchdog: Watchdog | None = None
        self._gateway: GatewayService | None = None
        self._secure: SecureMetrics | None = None
        self._headlines = Headlines()
        self._tally = Tally()
        self._lag = LoopLag()
        self._connected = False
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # -- for the watches

    def run_changed(self, body: Mapping[str, Any]) -> None:
        """A run was seen. What we wrote ourselves is no news: it was judged before it was written."""
        self._run_noted(body)
        metadata = body["metadata"]
        before = self.cache.run((metadata["namespace"], metadata["name"]))
        if before is not None and before["metadata"]["uid"] != metadata["uid"]:
            self._forget(before)  # it went unseen, and its name is taken again
        if (key := self.cache.put_run(body)) is not None:
            self.queue.put(key, first=not (body.get("status") or {}).get("fsmState"))

    def run_deleted(self, body: Mapping[str, Any]) -> None:
        """A run was seen to go."""
        self._run_noted(body)
        self._forget(body)

    def _run_gone(self, uid: str) -> None:
        """A run is there no more, whose end the watch has not shown."""
        body = self.cache.run_by_uid(uid)
        if body is not None:
            log.info("%(namespace)s/%(name)s was deleted while nothing was heard of it", body["metadata"])
            self._forget(body)

    def _forget(self, body: Mapping[str, Any]) -> None:
        key = self.cache.drop_run(body)
        self.book.forget(body["metadata"]["uid"])
        if self.cache.run(key) is None:  # else a new run has taken the name already
            self.queue.forget(key)
            self._reconciler.forget(key)
            self.queue.put(key)  # it may be worked on at this moment, which remembers it anew

    def pod_changed(self, body: Mapping[str, Any]) -> None:
        """A run's pod was seen."""
        if (key := self.cache.pod_seen(body)) is not None:
            self.queue.put(key)

    def pod_deleted(self, body: Mapping[str, Any]) -> None:
        """A run's pod was seen to go."""
        if (key := self.cache.drop_pod(body)) is not None:
            self.queue.put(key)

    def _run_noted(self, body: Mapping[str, Any]) -> None:
        namespace = body["metadata"]["namespace"] if self.settings.namespaces else None
        self._noted(_path(*RUNS, namespace))

    def _noted(self, path: str) -> None:
        """The watch on this collection lives."""
        if self._watchdog is not None:
            self._watchdog.noted(path)

    def _take_signals(self) -> None:
        """SIGTERM and SIGINT mean a graceful stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)

    # -- the life of the process

    async def run(self) -> int:
        """Until a signal comes, or something breaks: the exit code."""
        self._take_signals()
        try:
            health = await self._open()
        except CannotStart as error:
            log.error("%s", error)  # noqa: TRY400 - the sentence says it all
            return 1
        self._spawn("loop lag", self._lag.run())
        try:
            if not await self._unless_stopped(self._lead()):
                return 0
            await self._serve()
        except LeaseLost as error:
            log.error("%s", error)  # noqa: TRY400 - the sentence says it all
            logging.shutdown()
            os._exit(1)  # at once: what is still under way here may already be another's to do
        except CannotStart as error:
            log.error("%s", error)  # noqa: TRY400 - the sentence says it all
            return 1
        finally:
            await self._shut_down()
            if self._secure is not None:
                await self._secure.stop()
            await health.stop()
            await self.kube.close()
        return 0

    async def _open(self) -> HealthServer:
        """What the process has from its first moment on: the way to the API server, and its own health."""
        try:
            self.kube = await Kube.connect()
        except KubeError as error:
            raise CannotStart(str(error)) from None
        page = OperatorPage(self._source())
        if self.settings.metrics_auth:
            readers = MetricsReaders(self.kube)
            self._secure = SecureMetrics(self.kube, self.settings, page, readers, lambda: datetime.now(UTC))
        elsewhere = f"metrics are served over TLS, on port {self.settings.secure_metrics_port}"
        plain = None if self._secure is not None else page
        health = HealthServer(self.settings.health_port, self._unhealthy, self._unready, plain, elsewhere)
        try:
            await health.start()
        except OSError as error:
            await self.kube.close()
            raise CannotStart(
                f"port {self.settings.health_port}, for health and metrics, can't be listened on ({error.strerror}): "
                "set CLEANRL_OPERATOR_HEALTH_PORT to one that is free"
            ) from None
        log.info("health and metrics on port %d", health.port)
        return health

    async def _lead(self) -> None:
        """Wait, warm, until this process leads."""
        settings = self.settings
        identity = settings.pod_name or f"{socket.gethostname()}_{random.getrandbits(64):016x}"
        self._election = Election(
            self.kube, settings.namespace, settings.lease_name, identity, float(settings.lease_seconds)
        )
        await self._until_answered(self._label, None)  # a label from before a crash would draw workers here
        await self._until_answered(self._check_cluster)
        if self._secure is not None:
            await self._until_answered(self._secure.start)
            self._spawn("metrics' certificate", self._secure.keep_fresh())
        self._connected = True
        await self._election.acquire()

    async def _serve(self) -> None:
        """Lead until told to stop. Raises when something ends that should not."""
        self._spawn("lease", self._election.hold())
        settings = self.settings
        clock = WallClock(lambda: datetime.now(UTC))
        self._announcer = Announcer(
            self.kube, settings.operator_class or "default", clock, pressed=lambda: self.queue.pressed
        )
        if settings.gateway_target:
            self._gateway = GatewayService(self.kube, settings, self.book, self.cache, clock)
            settings = replace(settings, gateway_ca=await self._until_answered(self._gateway.start))
        self._reconciler = Reconciler(
            kube=self.kube,
            cache=self.cache,
            settings=settings,
            sessions=self.book,
            budget=self.budget,
            boards=Boards(self.kube, self.queue.put_later),
            wake=self.queue.put_later,
            announce=self._announcer,
            clock=clock,
            pressed=lambda: self.queue.pressed,
            tally=self._tally,
        )
        pods = PodWatch(
            self.kube,
            self._paths(*PODS),
            RUN_UID_LABEL,
            changed=self.pod_changed,
            deleted=self.pod_deleted,
            known=lambda path: self.cache.all_pods(_namespace(path)),
            alive=self._noted,
        )
        await self._until_answered(pods.fill)
        self._watchdog = Watchdog(
            self.kube,
            [
                Watched(path, "", partial(runs_of, self.cache, _namespace(path)), self._run_gone)
                for path in self._paths(*RUNS)
            ]
            + [
                Watched(path, RUN_UID_LABEL, partial(pods_of, self.cache, _namespace(path)))
                for path in self._paths(*PODS)
            ],
            seconds=float(settings.watch_check_seconds),
        )
        self._spawn("queue", self.queue.run())
        self._spawn("events", self._announcer.run())
        self._spawn("pods", pods.run())
        self._spawn("watch", self._watch(self))
        self._spawn("watchdog", self._watchdog.run())
        self._spawn("sweep", self._sweep())
        self._spawn("memory", _give_back_memory())
        if self._gateway is not None:
            self._spawn("certificates", self._gateway.keep_fresh(self._new_authorities))
        self._spawn("label", self._draw_workers())
        await self._first_end()

    async def _first_end(self) -> None:
        stop = asyncio.create_task(self.stopping.wait(), name="stop")
        done, _ = await asyncio.wait([stop, *self._tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if self.stopping.is_set():
            return
        for task in done:
            fault = task.exception()
            if fault is not None:
                raise fault
            raise CannotStart(f"the operator's {task.get_name()} ended by itself; the process ends with it")

    async def _shut_down(self) -> None:
        """Finish what is being done, then let go: watch, queue, workers, Events, label, lease."""
        log.info("stopping")
        for name in ("watch", "pods", "sweep", "memory", "watchdog", "certificates", "queue"):
            await self._end(name)
        if self._gateway is not None:
            await self._gateway.stop()
        if "events" in self._tasks:
            await self._announcer.drain(2.0)
        for name in list(self._tasks):
            await self._end(name)
        if self._connected and self._election.leading:
            with contextlib.suppress(KubeError):
                await self._label(None)
            await self._election.release()
        log.info("stopped")

    # -- what goes on meanwhile

    async def _reconcile(self, key: Key) -> None:
        await self._reconciler(key)

    def _talked(self, key: Key, every: float) -> Pace | None:
        """A worker that reports every so many seconds has sent new figures: when it should from now on, if not as it does.

        They are written at the run's turn. By then newer ones should be there; if none are, these are written.
        """
        now = datetime.now(UTC)
        self.queue.put_later(key, self.budget.moment(key, now).total_seconds())
        return self.budget.pace(key, now, every)

    async def _sweep(self) -> None:
        """Look at runs to which nothing happens; spread over the interval, so that nothing comes in waves.

        Silence makes no event: a run whose worker has not been heard is looked at as often as its progress would be.
        """
        looked = swept = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_SECONDS / 4)
            now, age = time.monotonic(), self.budget.age.total_seconds()
            if now - looked >= age:
                looked = now
                for session in self.book.sessions():
                    if now - session.heard > age:
                        self.queue.put_later(session.key, random.uniform(0, age))  # noqa: S311 - no secret
            live = sum(count for (state, _), count in self.cache.states.items() if state != State.TERM)
            every = max(SWEEP_SECONDS, live / SWEPT_A_SECOND)
            if now - swept >= every:
                swept = now
                for key, body in self.cache.handled():
                    over = (body.get("status") or {}).get("fsmState") == State.TERM
                    if not over and body["metadata"]["uid"] not in self.book:
                        self.queue.put_later(key, random.uniform(0, every))  # noqa: S311 - no secret

    def _new_authorities(self, authorities: tuple[str, ...]) -> None:
        self._reconciler.settings = replace(self._reconciler.settings, gateway_ca=authorities)

    # -- the cluster around it

    async def _check_cluster(self) -> None:
        """Fail loudly at once, where a watch would wait in silence."""
        for path in self._paths(*RUNS):
            try:
                async for _ in self.kube.list(path, metadata_only=True, page=1):
                    break
            except KubeError as error:
                if error.status == 404:
                    raise CannotStart(
                        f"the cluster does not know {PLURAL}.{GROUP}: apply the files in crds/ first"
                    ) from None
                if error.status in (401, 403):
                    raise CannotStart(f"the operator's account lacks a right that it needs: {error}") from None
                raise

    async def _until_answered(self, ask: Callable[..., Awaitable[Answer]], *arguments: object) -> Answer:
        """Ask until there is an answer: an API server that is away at start is waited for."""
        while True:
            try:
                return await ask(*arguments)
            except KubeError as error:
                if not error.transient:
                    raise CannotStart(str(error)) from None
                log.warning("waiting for the API server: %s", error)
                await asyncio.sleep(2)

    async def _draw_workers(self) -> None:
        """From here on the gateway's Service leads to this process. All else goes on while the API server can't be told."""
        await self._until_answered(self._label, LEADER_VALUE)
        await self.stopping.wait()

    async def _label(self, value: str | None) -> None:
        """Set or remove the label by which the gateway's Service finds the leader."""
        if not self.settings.pod_name:
            return
        path = f"api/v1/namespaces/{self.settings.namespace}/pods/{self.settings.pod_name}"
        await self.kube.keep("PATCH", path, {"metadata": {"labels": {LEADER_LABEL: value}}})

    def _paths(self, prefix: str, plural: str) -> list[str]:
        return [_path(prefix, plural, namespace) for namespace in self.settings.namespaces or [None]]

    # -- how it is doing

    def _unhealthy(self) -> str:
        for name, task in self._tasks.items():
            if task.done() and not self.stopping.is_set():
                return f"the {name} has ended"
        return self._watchdog.dead if self._watchdog is not None else ""

    def _unready(self) -> str:
        if self.stopping.is_set():
            return "stopping"
        if not self._connected:
            return "waiting for the API server"
        if self._election.leading and not self.watching.is_set():
            return "starting to watch"
        return "" if self._election.leading else self._election.trouble  # who can't lead does not stand by

    def _source(self) -> Source:
        return Source(
            leading=lambda: self._connected and self._election.leading,
            loop_lag=self._lag.take_worst,
            totals=self._totals,
            gauges=self._gauges,
            states=lambda: {state: count for state, count in self.cache.states.items() if count},
            refusals=lambda: self._gateway.refusals if self._gateway is not None else {},
            arrivals=lambda: self.book.arrivals,
            headlines=lambda: self._headlines.collect((body for _, body in self.cache.handled()), self._spoken()),
            tally=self._tally,
        )

    def _totals(self) -> dict[str, float]:
        if "queue" not in self._tasks:
            return {}
        return {
            "reconciles": self.queue.processed,
            "reconcile_failures": self.queue.failed,
            "writes": self.kube.writes,
            "status_writes": self._reconciler.status_writes,
            "progress_writes": self._reconciler.progress_writes,
            "events_posted": self._announcer.posted,
            "events_dropped": self._announcer.dropped,
        }

    def _gauges(self) -> dict[str, float]:
        age = time.monotonic() - self._watchdog.looked_at if self._watchdog is not None else 0.0
        return {
            "queue_depth": len(self.queue),
            "sessions": len(self.book),
            "streams": self._gateway.streams if self._gateway is not None else 0,
            "last_watch_check_age_seconds": age,
            "headlines_left_out": self._headlines.left_out,
        }

    def _spoken(self) -> dict[str, Spoken]:
        now = time.monotonic()
        return {
            session.run_uid: Spoken(session.figures, max(0.0, now - session.heard)) for session in self.book.sessions()
        }

    # -- tasks

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = asyncio.create_task(work, name=name)

    async def _end(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do this, unless a signal comes first: whether it was done."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self.stopping.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return False


async def _give_back_memory() -> None:
    """Now and then, beside the loop, which must not wait for it."""
    while True:
        await asyncio.sleep(MEMORY_SECONDS)
        await asyncio.to_thread(give_back_free_pages)


def _path(prefix: str, plural: str, namespace: str | None) -> str:
    """A collection's path, of one namespace or of the whole cluster."""
    return f"{prefix}/{plural}" if namespace is None else f"{prefix}/namespaces/{namespace}/{plural}"


def _namespace(path: str) -> str | None:
    """The namespace of a collection; None for one of the whole cluster."""
    parts = path.split("/")
    return parts[parts.index("namespaces") + 1] if "namespaces" in parts else None

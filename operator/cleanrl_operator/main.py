"""The operator's program: every kopf decorator is on this page.

kopf watches; its handlers do one thing, they put what they saw into the cache and the run's key into our queue. kopf never
writes: no change handlers, no timers, no daemons, and so no finalizers and no annotations of its own on anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import grpc
import kopf

from cleanrl_operator.api import GROUP, PLURAL, VERSION
from cleanrl_operator.cache import Cache
from cleanrl_operator.gateway import certificates
from cleanrl_operator.gateway.identity import SessionTokens, TokenReviewer
from cleanrl_operator.gateway.server import Gateway, serve
from cleanrl_operator.gateway.sessions import SessionBook
from cleanrl_operator.kube import Kube
from cleanrl_operator.progress import FleetBudget
from cleanrl_operator.queue import WorkQueue
from cleanrl_operator.reconcile import Reconciler
from cleanrl_operator.run import RUN_UID_LABEL, Run, UnreadableRun
from cleanrl_operator.settings import Settings

log = logging.getLogger(__name__)
LIVENESS_SECONDS = 15.0


class Operator:
    """Everything that lives as long as the program."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cache = Cache()
        self.queue: WorkQueue
        self.book: SessionBook
        self.budget: FleetBudget
        self.kube: Kube
        self._tasks: list[asyncio.Task[None]] = []
        self._server: Any = None

    async def start(self) -> None:
        """Connect, serve the gateway, start the queue."""
        self.kube = await Kube.connect()
        settings = self.settings
        if settings.gateway_target:
            material = await certificates.load_or_make(self.kube, settings.namespace)
            settings = replace(settings, gateway_ca=(material.authority_pem,))
            host = settings.gateway_target.rpartition(":")[0]
            key, certificate = certificates.make_server_certificate(material, [host])
        self.book = SessionBook(lambda key: self.queue.put(key))
        self.budget = FleetBudget(lambda: len(self.book))
        reconciler = Reconciler(
            kube=self.kube,
            cache=self.cache,
            settings=settings,
            sessions=self.book,
            budget=self.budget,
            wake=lambda key, seconds: self.queue.put_later(key, seconds),
        )
        self.queue = WorkQueue(reconciler)
        if settings.gateway_target:
            gateway = Gateway(
                self.book,
                TokenReviewer(self.kube),
                SessionTokens(material.session_key),
                self._run_of_pod,
                self._run_by_uid,
            )
            credentials = grpc.ssl_server_credentials([(key, certificate)])
            self._server, port = serve(gateway, settings.gateway_port, credentials)
            await self._server.start()
            log.info("the gateway listens on port %s", port)
        self._tasks = [asyncio.create_task(self.queue.run()), asyncio.create_task(self._look_after_sessions())]

    async def stop(self) -> None:
        """Finish what is being done, then let go."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace=2)
        await self.kube.close()

    async def _look_after_sessions(self) -> None:
        """Silence makes no event: look at every session now and then. Progress comes to the status this way too."""
        while True:
            await asyncio.sleep(LIVENESS_SECONDS)
            for session in self.book.sessions():
                self.queue.put(session.key)

    def _run_of_pod(self, pod_uid: str) -> Run | None:
        for _, body in self.cache.runs():
            if (body.get("status") or {}).get("podUID") == pod_uid:
                return _parse(body)
        return None

    def _run_by_uid(self, run_uid: str) -> Run | None:
        key = self.cache.key_of(run_uid)
        body = self.cache.run(key) if key is not None else None
        return _parse(body) if body is not None else None


def register(registry: kopf.OperatorRegistry, operator: Operator) -> None:
    """All handlers of the program."""

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 310
        settings.watching.connect_timeout = 30
        settings.networking.request_timeout = 60
        settings.scanning.disabled = True
        await operator.start()

    @kopf.on.login(registry=registry)
    def log_in(**context: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)

    @kopf.on.cleanup(registry=registry)
    async def clean_up(**_: Any) -> None:
        await operator.stop()

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def run_changed(type: str | None, body: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        if type == "DELETED":
            key = operator.cache.drop_run(body)
            operator.book.forget(body["metadata"]["uid"])
            operator.queue.forget(key)
            operator.budget.forget(key)
        else:
            operator.queue.put(operator.cache.put_run(_plain(body)))

    @kopf.on.event("", "v1", "pods", labels={RUN_UID_LABEL: kopf.PRESENT}, registry=registry)
    async def pod_changed(type: str | None, body: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        key = operator.cache.drop_pod(body) if type == "DELETED" else operator.cache.put_pod(_plain(body))
        if key is not None:
            operator.queue.put(key)


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body as plain data, without the bookkeeping of who set which field."""
    plain = dict(body)
    metadata = dict(plain["metadata"])
    metadata.pop("managedFields", None)
    plain["metadata"] = metadata
    return plain


def _parse(body: Mapping[str, Any]) -> Run | None:
    with contextlib.suppress(UnreadableRun):
        return Run.parse(body)
    return None


class JsonLines(logging.Formatter):
    """One JSON object per line, with run and attempt where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("run", "attempt", "reason", "peer", "code", "fault"):
            if hasattr(record, name):
                line[name] = getattr(record, name)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def main() -> int:
    """Run until a signal comes."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        settings = Settings.from_env(os.environ)
    except ValueError as error:
        sys.stderr.write(f"cleanrl-operator: {error}\n")
        return 2
    registry = kopf.OperatorRegistry()
    register(registry, Operator(settings))
    asyncio.run(kopf.operator(registry=registry, clusterwide=True, standalone=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())

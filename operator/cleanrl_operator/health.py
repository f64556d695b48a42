"""The operator's own HTTP endpoint: /healthz, /readyz and, unless it asks for tokens, /metrics (else see `secure`).

It answers on the operator's event loop on purpose: a loop that is stuck does not answer, and that is what a probe looks for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cleanrl_operator.readers import Refusal

Guard = Callable[[str], Awaitable[Refusal | None]]
"""Who may read the metrics, by the request's Authorization: None when the caller may."""
Check = Callable[[], str]
"""What is wrong, in a sentence; empty when nothing is."""


def _of_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


requests = logging.getLogger(f"{__name__}.requests")
"""For what aiohttp says about requests, but for those that are no HTTP: their sender gets a 400, and could fill the log."""
requests.addFilter(_of_ours)


class LoopLag:
    """How late the event loop is, looked at every second."""

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self.last = 0.0
        self.worst = 0.0
        """The worst since it was last taken."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(self._seconds)
            self.last = max(0.0, time.monotonic() - before - self._seconds)
            self.worst = max(self.worst, self.last)

    def take_worst(self) -> float:
        """The worst since the last call."""
        worst, self.worst = self.worst, 0.0
        return worst


class HealthServer:
    """Serves from `start` to `stop`, whether this process leads or waits."""

    def __init__(
        self, port: int, healthy: Check, ready: Check, page: Callable[[], bytes] | None, elsewhere: str = ""
    ) -> None:
        """`page` is None where the metrics are served elsewhere; then `elsewhere` says where."""
        self.port = port
        self._healthy = healthy
        self._ready = ready
        self._page = page
        self._elsewhere = elsewhere
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; with port 0 on one that is free, which `port` then tells."""
        app = web.Application()
        app.router.add_get("/healthz", self._answer(self._healthy))
        app.router.add_get("/readyz", self._answer(self._ready))
        app.router.add_get("/metrics", metrics_handler(self._page) if self._page is not None else self._not_here)
        self._runner = web.AppRunner(app, access_log=None, logger=requests)
        await self._runner.setup()
        site = web.TCPSite(self._runner, None, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Hang up."""
        if self._runner is not None:
            await self._runner.cleanup()

    @staticmethod
    def _answer(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(_request: web.Request) -> web.Response:
            trouble = check()
            return web.Response(status=503 if trouble else 200, text=trouble or "ok")

        return handle

    async def _not_here(self, _request: web.Request) -> web.Response:
        return web.Response(status=404, text=self._elsewhere)


def metrics_handler(
    page: Callable[[], bytes], guard: Guard | None = None
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Answers with the page whoever the guard lets through."""

    async def handle(request: web.Request) -> web.Response:
        if guard is not None:
            refusal = await guard(request.headers.get("Authorization", ""))
            if refusal is not None:
                return web.Response(status=refusal.status, text=refusal.message, headers=refusal.headers)
        return web.Response(body=page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return handle

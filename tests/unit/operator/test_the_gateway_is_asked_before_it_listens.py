"""Metrics are scraped at any moment: also while the gateway still waits for its certificates."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from cleanrl_operator.cache import Cache
from cleanrl_operator.gateway.service import GatewayService
from cleanrl_operator.gateway.sessions import SessionBook
from cleanrl_operator.settings import Settings


class SilentServer:
    """An API server that does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def get(self, _path: str, **_: Any) -> dict[str, Any] | None:
        self.asked.set()
        await asyncio.Event().wait()
        return None


def test_nobody_is_connected_and_nothing_refused_while_it_starts() -> None:
    async def scene() -> None:
        server = SilentServer()
        settings = Settings.from_env({"CLEANRL_OPERATOR_GATEWAY_TARGET": "localhost:1"})
        book = SessionBook(lambda _key: None, talked=lambda _key, _every: None)
        service = GatewayService(server, settings, book, Cache(), lambda: datetime.now(UTC))  # type: ignore[arg-type]
        starting = asyncio.create_task(service.start())
        await server.asked.wait()
        assert (service.streams, dict(service.refusals)) == (0, {})
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await service.stop()

    asyncio.run(scene())

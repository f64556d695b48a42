"""Running workers trust two authorities and nothing else: whatever becomes of the Secret that keeps them."""

from __future__ import annotations

import asyncio
import base64
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from cleanrl_operator.cache import Cache
from cleanrl_operator.gateway.certificates import load_or_make
from cleanrl_operator.gateway.service import GatewayService
from cleanrl_operator.gateway.sessions import SessionBook
from cleanrl_operator.kube import KubeError
from cleanrl_operator.settings import Settings

NOW = datetime.now(UTC)


class Server:
    """The Secret of one namespace. `away`: so many calls are not answered."""

    def __init__(self) -> None:
        self.secret: dict[str, Any] | None = None
        self.away = 0

    async def get(self, _path: str) -> dict[str, Any] | None:
        if self.away:
            self.away -= 1
            raise KubeError(0, "NoAnswer", "no answer")
        return deepcopy(self.secret)

    async def keep(self, _method: str, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.secret = deepcopy(body)
        return body


def service(server: Server) -> GatewayService:
    settings = Settings(gateway_target="localhost:1", gateway_port=0)
    return GatewayService(server, settings, SessionBook(lambda _key: None), Cache(), lambda: NOW)  # type: ignore[arg-type]


def test_a_secret_that_is_gone_is_put_there_again() -> None:
    async def scene() -> None:
        server = Server()
        gateway = service(server)
        first = await gateway.start()
        kept, server.secret = server.secret, None
        again = await gateway._renew()
        assert again.authorities == first
        assert server.secret is not None
        assert kept is not None
        assert server.secret["data"] == kept["data"]
        await gateway.stop()

    asyncio.run(scene())


def test_a_start_that_was_not_answered_can_be_tried_again() -> None:
    async def scene() -> None:
        server = Server()
        gateway, server.away = service(server), 1
        with pytest.raises(KubeError) as refusal:
            await gateway.start()
        assert refusal.value.transient
        assert len(await gateway.start()) == 2
        await gateway.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("lost", ["ca.key", "next.crt", "session.key", "all", "garbage"])
def test_a_secret_that_holds_no_keys_is_refused_with_the_remedy(lost: str) -> None:
    async def scene() -> None:
        server = Server()
        await load_or_make(server, "ns", NOW)  # type: ignore[arg-type]
        assert server.secret is not None
        if lost == "all":
            del server.secret["data"]
        elif lost == "garbage":
            server.secret["data"]["ca.crt"] = base64.b64encode(b"\xff no certificate").decode()
        else:
            del server.secret["data"][lost]
        with pytest.raises(KubeError, match=r"Secret cleanrl-gateway .*: delete it") as refusal:
            await load_or_make(server, "ns", NOW)  # type: ignore[arg-type]
        assert not refusal.value.transient, "no waiting helps"

    asyncio.run(scene())

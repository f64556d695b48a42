"""The gateway's certificate and authorities change under a running server, and no pod from before is locked out."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cleanrl_operator.cache import Cache
from cleanrl_operator.gateway.certificates import (
    AUTHORITY_CHANGE,
    AUTHORITY_LIFE,
    SERVER_CHANGE,
    SERVER_LIFE,
    load_or_make,
)
from cleanrl_operator.gateway.service import GatewayService
from cleanrl_operator.gateway.sessions import SessionBook
from cleanrl_operator.kube import Kube
from cleanrl_operator.settings import Settings
from cryptography import x509


def shown(port: int, authorities: tuple[str, ...]) -> x509.Certificate:
    """The certificate that a worker with these authorities is shown; fails if it would not trust it."""
    context = ssl.create_default_context(cadata="".join(authorities))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("localhost", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        der = wrapped.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


def serve(cluster: Any, began: datetime, story: Callable[[GatewayService, list[datetime], int], Any]) -> None:
    """Run a gateway that believes in this time, and a story with it."""

    async def main() -> None:
        namespace = f"certificates-{began:%Y%m%d%H}"
        cluster.api().create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        settings = Settings(gateway_target=f"localhost:{port}", gateway_port=port, namespace=namespace)
        kube = await Kube.connect(str(cluster.kubeconfig))
        now = [began]
        service = GatewayService(kube, settings, SessionBook(lambda _: None), Cache(), lambda: now[0])
        try:
            await story(service, now, port)
        finally:
            await service.stop()
            await kube.close()

    asyncio.run(main())


def test_a_certificate_near_its_end_is_replaced(cluster: Any) -> None:
    today = datetime.now(UTC)

    async def story(service: GatewayService, now: list[datetime], port: int) -> None:
        authorities = await service.start()
        first = await asyncio.to_thread(shown, port, authorities)
        await service._renew()
        assert await asyncio.to_thread(shown, port, authorities) == first, "there is time enough"
        now[0] = today
        await service._renew()
        second = await asyncio.to_thread(shown, port, authorities)
        assert second.serial_number != first.serial_number
        assert second.issuer == first.issuer

    serve(cluster, today - SERVER_LIFE + SERVER_CHANGE - timedelta(days=1), story)


def test_an_operator_whose_clock_is_ahead_locks_nobody_out(cluster: Any) -> None:
    async def story(service: GatewayService, now: list[datetime], port: int) -> None:
        await asyncio.to_thread(shown, port, await service.start())

    serve(cluster, datetime.now(UTC) + timedelta(hours=2), story)


def test_the_next_authority_takes_over_and_pods_from_before_trust_it(cluster: Any) -> None:
    today = datetime.now(UTC)

    async def story(service: GatewayService, now: list[datetime], port: int) -> None:
        before = await service.start()
        now[0] = today
        renewed = await service._renew()
        after = renewed.authorities
        assert after[0] == before[1]
        assert after[1] not in before
        await asyncio.to_thread(shown, port, before)
        await asyncio.to_thread(shown, port, after)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(shown, port, before[:1])
        again = await load_or_make(service._kube, service._settings.namespace, today)
        assert again == renewed, "the rotation is in the Secret"

    serve(cluster, today - AUTHORITY_LIFE + AUTHORITY_CHANGE - timedelta(days=1), story)


def test_a_certificate_that_is_good_for_months_gives_way_with_its_authority(cluster: Any) -> None:
    today = datetime.now(UTC)
    began = today - AUTHORITY_LIFE + AUTHORITY_CHANGE - timedelta(days=1)

    async def story(service: GatewayService, now: list[datetime], port: int) -> None:
        await load_or_make(service._kube, service._settings.namespace, began)
        now[0] = today - timedelta(days=2)
        before = await service.start()
        now[0] = today
        after = (await service._renew()).authorities
        assert before[0] not in after
        await asyncio.to_thread(shown, port, after)
        await asyncio.to_thread(shown, port, before)

    serve(cluster, today, story)

"""The gateway as a part of the program: certificates, the gRPC server, and who may speak for which run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import grpc

from cleanrl_operator.cache import Cache
from cleanrl_operator.gateway import certificates
from cleanrl_operator.gateway.certificates import Material, ServerCertificate
from cleanrl_operator.gateway.identity import PublishedKeys, SessionTokens, TokenReviewer, Verifier
from cleanrl_operator.gateway.server import Gateway, serve
from cleanrl_operator.gateway.sessions import SessionBook
from cleanrl_operator.kube import Kube, KubeError
from cleanrl_operator.run import Run, UnreadableRun
from cleanrl_operator.settings import Settings

log = logging.getLogger(__name__)
RENEWAL_SECONDS = 6 * 3600.0
GRACE_SECONDS = 2.0


class GatewayService:
    """`start` it, keep it fresh, `stop` it."""

    def __init__(
        self,
        kube: Kube,
        settings: Settings,
        book: SessionBook,
        cache: Cache,
        clock: Callable[[], datetime],
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._book = book
        self._cache = cache
        self._clock = clock
        self._material: Material | None = None
        self._serving: ServerCertificate | None = None
        self._given: ServerCertificate | None = None
        self._gateway: Gateway | None = None
        self._server: Any = None

    @property
    def refusals(self) -> Mapping[str, int]:
        """What was refused, by gRPC code; nothing before it listens."""
        return self._gateway.refusals if self._gateway is not None else {}

    @property
    def streams(self) -> int:
        """Workers that are connected now; none before it listens."""
        return self._gateway.streams if self._gateway is not None else 0

    async def start(self) -> tuple[str, ...]:
        """Listen: the authorities that pods have to trust. Raises KubeError while they can't be had."""
        material = await self._renew()
        # Without cluster-wide rights there is no TokenReview: the published keys tell as much.
        verifier: Verifier = PublishedKeys(self._kube) if self._settings.namespaces else TokenReviewer(self._kube)
        tokens = SessionTokens(material.session_key)
        self._gateway = Gateway(
            self._book,
            verifier,
            tokens,
            run_of_pod=lambda uid: _parse(self._cache.run_of_pod(uid)),
            run_by_uid=lambda uid: _parse(self._cache.run_by_uid(uid)),
            run_by_id=lambda namespace, run_id: _parse(self._cache.run_by_id(namespace, run_id)),
        )
        credentials = grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration)
        self._server, port = serve(self._gateway, self._settings.gateway_port, credentials)
        await self._server.start()
        self._book.open()
        log.info("the gateway listens on port %s", port)
        return material.authorities

    async def stop(self) -> None:
        """Hang up; workers come back to whoever leads next."""
        if self._server is not None:
            await self._server.stop(grace=GRACE_SECONDS)

    async def keep_fresh(self, changed: Callable[[tuple[str, ...]], None]) -> None:
        """Renew certificates in time, until cancelled; `changed` hears of new authorities."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            try:
                material = await self._renew()
            except KubeError as error:
                log.warning("certificates could not be looked after; tried again later: %s", error)
            else:
                changed(material.authorities)

    async def _renew(self) -> Material:
        now = self._clock()
        material = await certificates.load_or_make(self._kube, self._settings.namespace, now, self._material)
        self._material = material
        if self._serving is None or not self._serving.serves(material.current, now):
            host = self._settings.gateway_target.rpartition(":")[0]
            self._serving = certificates.make_server_certificate(material.current, [host], now)
            log.info("the gateway's certificate is good until %s", self._serving.ends.date())
        return material

    def _configuration(self) -> Any:
        """Asked for by gRPC at every handshake, so that a renewed certificate needs no restart; None when it is the same."""
        if self._serving is None or self._serving is self._given:
            return None
        self._given = self._serving
        return grpc.ssl_server_certificate_configuration([(self._serving.key, self._serving.certificate)])


def _parse(body: Mapping[str, Any] | None) -> Run | None:
    with contextlib.suppress(UnreadableRun):
        return Run.parse(body) if body is not None else None
    return None

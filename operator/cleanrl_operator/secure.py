"""/metrics over TLS, for installations that ask readers for a token: a token has no business on a plain connection.

The certificate is signed by the gateway's authority, whose public half a scraper finds in the same Secret (`ca.crt`), and is
renewed while it serves. Its private key is never written to a disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Iterator
from datetime import datetime

from aiohttp import web

from cleanrl_operator.gateway import certificates
from cleanrl_operator.health import Guard, metrics_handler, requests
from cleanrl_operator.kube import Kube, KubeError
from cleanrl_operator.settings import Settings

log = logging.getLogger(__name__)
RENEWAL_SECONDS = 6 * 3600.0


class SecureMetrics:
    """`start` it, keep it fresh, `stop` it. It serves whether this process leads or waits."""

    def __init__(
        self, kube: Kube, settings: Settings, page: Callable[[], bytes], guard: Guard, clock: Callable[[], datetime]
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._handle = metrics_handler(page, guard)
        self._clock = clock
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._material: certificates.Material | None = None
        self._serving: certificates.ServerCertificate | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen, with a certificate. Raises KubeError while the authorities can't be had."""
        await self._renew()
        app = web.Application()
        app.router.add_get("/metrics", self._handle)
        self._runner = web.AppRunner(app, access_log=None, logger=requests)
        await self._runner.setup()
        await web.TCPSite(self._runner, None, self._settings.secure_metrics_port, ssl_context=self._tls).start()
        log.info("metrics over TLS on port %d", self._settings.secure_metrics_port)

    async def stop(self) -> None:
        """Hang up."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def keep_fresh(self) -> None:
        """Renew the certificate in time, until cancelled."""
        while True:
            await asyncio.sleep(RENEWAL_SECONDS)
            try:
                await self._renew()
            except KubeError as error:
                log.warning("the metrics' certificate could not be looked after; tried again later: %s", error)

    async def _renew(self) -> None:
        """Connections from now on get the new certificate: the context is the one that listens already."""
        now = self._clock()
        material = await certificates.load_or_make(self._kube, self._settings.namespace, now, self._material)
        self._material = material
        if self._serving is not None and self._serving.serves(material.current, now):
            return
        made = certificates.make_server_certificate(material.current, [self._settings.metrics_host], now)
        with _in_memory(made.certificate + made.key) as path:
            self._tls.load_cert_chain(path)
        self._serving = made
        log.info("the metrics' certificate is good until %s", made.ends.date())


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A file that exists only in memory: `ssl` takes keys from files only."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)

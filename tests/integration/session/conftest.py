"""A worker's log, its session, and the gateways it meets: all real, on localhost."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cleanrl_protocol.localgateway import LocalGateway
from cleanrl_worker.session import Backoff, Session, Worker
from cleanrl_worker.telemetry import EventLog

RUN = "01JD0000000000000000000000"
PATIENCE = 30.0
"""How long a test waits for what has to happen. Only a failing test waits that long."""
FAST = Backoff(first=0.02, cap=0.1)


@dataclass
class TestWorker:
    """An event log and the session that carries it, as the supervisor holds them."""

    __test__ = False
    log: EventLog
    session: Session

    def emit(self, event: str, **payload: Any) -> int:
        record = self.log.emit(event, **payload)
        self.session.publish(record)
        return int(record["seq"])

    def scalars(self, step: int, **values: float) -> int:
        return self.emit("scalars", step=step, total=1000, sps=10.0, episodes=1, values=values)


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., LocalGateway]]:
    started: list[LocalGateway] = []

    def start(port: int = 0, **options: Any) -> LocalGateway:
        gateway = LocalGateway(**options).start(port)
        started.append(gateway)
        return gateway

    yield start
    for gateway in started:
        gateway.stop()


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[Callable[..., TestWorker]]:
    started: list[TestWorker] = []

    def start(target: str, *, log_name: str = "events.jsonl", start: bool = True, **options: Any) -> TestWorker:
        path = tmp_path / log_name
        log = EventLog(path, RUN, stream=None)
        options.setdefault("backoff", FAST)
        description = options.pop("worker", None) or Worker(run_id=RUN, algo="ppo", env_id="CartPole-v1")
        session = Session(target, description, path, **options)
        worker = TestWorker(log, session)
        started.append(worker)
        if start:
            session.start()
        return worker

    yield start
    for worker in started:
        worker.session.close(0)
        worker.log.close()


@dataclass
class Authority:
    """A throw-away certificate authority and the server certificate it signed for 127.0.0.1."""

    ca_file: Path
    server_credentials: Any


@pytest.fixture
def make_authority(tmp_path: Path) -> Callable[[str], Authority]:
    def make(name: str) -> Authority:
        ca_key = ec.generate_private_key(ec.SECP256R1())
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        ca = _certificate(issuer, issuer, ca_key.public_key(), ca_key, None)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = _certificate(subject, issuer, key.public_key(), ca_key, address)
        ca_file = tmp_path / f"{name}-ca.pem"
        ca_file.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = certificate.public_bytes(serialization.Encoding.PEM)
        return Authority(ca_file, grpc.ssl_server_credentials([(private, chain)]))

    return make


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: Any,
    signing_key: Any,
    names: x509.SubjectAlternativeName | None,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
    )
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signing_key, hashes.SHA256())

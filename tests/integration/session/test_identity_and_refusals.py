"""Who may speak, over what, and what a refusal does."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from cleanrl_protocol import mosaic_trainer_pb2 as mosaic
from cleanrl_protocol import mosaic_trainer_pb2_grpc as mosaic_rpc
from cleanrl_protocol.localgateway import LocalGateway
from cleanrl_worker.session import Refusal, Session, State, Worker

RUN = "01JD0000000000000000000000"
PATIENCE = 30.0


def _expect_token(accepted: str) -> Callable[[dict[str, str], str], tuple[grpc.StatusCode, str] | None]:
    def authenticate(metadata: dict[str, str], run_id: str) -> tuple[grpc.StatusCode, str] | None:
        if metadata.get("authorization") == f"Bearer {accepted}":
            return None
        return grpc.StatusCode.UNAUTHENTICATED, "the token was not accepted"

    return authenticate


def test_the_token_proves_the_worker_over_tls_on_every_call(
    start_gateway: Callable[..., LocalGateway],
    start_worker: Callable[..., Any],
    make_authority: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    authority = make_authority("gateway")
    token = tmp_path / "token"
    token.write_text("pod-token\n")
    gateway = start_gateway(credentials=authority.server_credentials, authenticate=_expect_token("pod-token"))
    worker = start_worker(gateway.target, ca_file=authority.ca_file, token_file=token)
    worker.emit("run_started")
    assert worker.session.close(PATIENCE)
    assert gateway.runs[RUN].names == ["run_started"]
    assert gateway.runs[RUN].refused == []


def test_a_rotated_token_is_read_again(
    start_gateway: Callable[..., LocalGateway],
    start_worker: Callable[..., Any],
    make_authority: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    authority = make_authority("gateway")
    token = tmp_path / "token"
    token.write_text("expired")
    gateway = start_gateway(credentials=authority.server_credentials, authenticate=_expect_token("fresh"))
    refusals: queue.Queue[Refusal] = queue.Queue()
    worker = start_worker(gateway.target, ca_file=authority.ca_file, token_file=token, on_refused=refusals.put)
    worker.emit("run_started")
    refusal = refusals.get(timeout=PATIENCE)
    assert refusal == Refusal("UNAUTHENTICATED", "the token was not accepted", fenced=False)
    token.write_text("fresh")
    assert worker.session.close(PATIENCE), "a refusal that is not final is tried again"
    assert gateway.runs[RUN].names == ["run_started"]
    assert refusals.empty(), "told once, not at every attempt"


def test_a_gateway_signed_by_another_authority_gets_neither_token_nor_events(
    start_gateway: Callable[..., LocalGateway],
    start_worker: Callable[..., Any],
    make_authority: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    seen: list[dict[str, str]] = []

    def record(metadata: dict[str, str], run_id: str) -> None:
        seen.append(metadata)

    impostor, ours = make_authority("impostor"), make_authority("gateway")
    token = tmp_path / "token"
    token.write_text("pod-token")
    gateway = start_gateway(credentials=impostor.server_credentials, authenticate=record)
    worker = start_worker(gateway.target, ca_file=ours.ca_file, token_file=token)
    worker.emit("run_started")
    _wait_for_reconnects(worker.session, 2)
    assert seen == []
    assert gateway.runs == {}
    # Both authorities in one file, as around a rotation: the session comes about.
    ours.ca_file.write_bytes(ours.ca_file.read_bytes() + impostor.ca_file.read_bytes())
    assert worker.session.close(PATIENCE)


def test_the_token_is_never_sent_in_the_clear(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any], tmp_path: Path
) -> None:
    seen: list[dict[str, str]] = []

    def record(metadata: dict[str, str], run_id: str) -> None:
        seen.append(metadata)

    token = tmp_path / "token"
    token.write_text("pod-token")
    gateway = start_gateway(authenticate=record)
    worker = start_worker(gateway.target, token_file=token)
    worker.emit("run_started")
    assert worker.session.close(PATIENCE)
    assert seen
    assert not any("pod-token" in str(metadata) for metadata in seen)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"a\nb"])
def test_an_unusable_token_file_is_an_absence_not_a_crash(
    content: bytes | None,
    start_gateway: Callable[..., LocalGateway],
    start_worker: Callable[..., Any],
    make_authority: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    authority = make_authority("gateway")
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    gateway = start_gateway(credentials=authority.server_credentials, authenticate=_expect_token("good"))
    worker = start_worker(gateway.target, ca_file=authority.ca_file, token_file=token)
    worker.emit("run_started")
    _wait_for_reconnects(worker.session, 2)
    token.write_bytes(b"good")
    assert worker.session.close(PATIENCE)


def test_a_fenced_worker_is_told_once_and_does_not_come_back(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    gateway.faults.refuse = (grpc.StatusCode.FAILED_PRECONDITION, "attempt 2 has taken over")
    refusals: queue.Queue[Refusal] = queue.Queue()
    worker = start_worker(gateway.target, on_refused=refusals.put)
    worker.emit("run_started")
    assert refusals.get(timeout=PATIENCE) == Refusal("FAILED_PRECONDITION", "attempt 2 has taken over", fenced=True)
    gateway.faults.refuse = None
    assert not worker.session.close(PATIENCE), "at once: nothing will ever be acknowledged"
    assert gateway.runs == {}


def test_a_proxy_in_the_environment_is_not_used(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    gateway = start_gateway()
    worker = start_worker(gateway.target)
    worker.emit("run_started")
    assert worker.session.close(PATIENCE)
    assert worker.session.reconnects == 0


def test_paths_come_from_the_environment_of_the_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLEANRL_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("CLEANRL_GATEWAY_CA", str(tmp_path / "ca.pem"))
    session = Session.from_env("gateway:443", Worker(RUN), tmp_path / "events.jsonl")
    assert (session._token_file, session._ca_file) == (tmp_path / "token", tmp_path / "ca.pem")
    monkeypatch.delenv("CLEANRL_TOKEN_FILE")
    monkeypatch.delenv("CLEANRL_GATEWAY_CA")
    session = Session.from_env("gateway:443", Worker(RUN), tmp_path / "events.jsonl")
    assert (session._token_file, session._ca_file) == (None, None)


class _Trainer(mosaic_rpc.TrainerServiceServicer):
    """MOSAIC's trainer, as far as a worker can see it."""

    def __init__(self) -> None:
        self.requests: list[mosaic.RegisterWorkerRequest] = []

    def RegisterWorker(  # noqa: N802
        self, request: mosaic.RegisterWorkerRequest, context: Any
    ) -> mosaic.RegisterWorkerResponse:
        self.requests.append(request)
        return mosaic.RegisterWorkerResponse(accepted_version="MOSAIC/1.0", session_token="0" * 32)


@pytest.fixture
def trainer() -> Iterator[tuple[_Trainer, str]]:
    service = _Trainer()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    mosaic_rpc.add_TrainerServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_mosaics_trainer_gets_its_own_handshake_and_the_worker_is_content(
    trainer: tuple[_Trainer, str], start_worker: Callable[..., Any]
) -> None:
    service, target = trainer
    worker = start_worker(
        target, worker=Worker(RUN, worker_id="w1", algo="ppo", schema_version=2, supports_pause=False)
    )
    assert worker.session.wait_registered(PATIENCE)
    worker.emit("run_started")
    worker.session.close(PATIENCE)  # returns at once: nothing is ever acknowledged there
    (request,) = service.requests
    assert (request.run_id, request.worker_id, request.worker_kind) == (RUN, "w1", "cleanrl")
    assert (request.proto_version, request.schema_id, request.schema_version) == ("MOSAIC/1.0", "cleanrl.ppo", 2)
    assert (request.supports_pause, request.supports_checkpoint) == (False, True)


def test_a_server_that_knows_neither_service_is_an_absence(start_worker: Callable[..., Any]) -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    worker = start_worker(f"127.0.0.1:{port}")
    _wait_for_reconnects(worker.session, 2)
    assert worker.session.state is State.CONNECTING
    server.stop(0).wait()


def _wait_for_reconnects(session: Session, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while session.reconnects < count:
        assert time.monotonic() < deadline, f"only {session.reconnects} attempts"
        time.sleep(0.01)

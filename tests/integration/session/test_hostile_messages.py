"""Neither side is harmed by what the other should never have sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol import session_pb2_grpc as rpc
from cleanrl_protocol.localgateway import LocalGateway
from cleanrl_worker.session import State

RUN = "01JD0000000000000000000000"
PATIENCE = 30.0


def _attend(target: str, messages: list[pb.Up], *, token: str | None = None) -> grpc.StatusCode:
    """Play a worker that sends these messages: how the stream ended."""
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(target, options=options) as channel:
        stub = rpc.SessionServiceStub(channel)
        if token is None:
            token = stub.RegisterWorker(pb.RegisterWorkerRequest(run_id=RUN)).session_token
        call = stub.Attend(iter(messages), metadata=((limits.SESSION_METADATA_KEY, token),), timeout=PATIENCE)
        try:
            for _ in call:
                pass
        except grpc.RpcError:
            pass
        code: grpc.StatusCode = call.code()
        return code


def _note(number: int, after: int | None = None, **fields: Any) -> pb.Up:
    event = pb.Event(number=number, after=number - 1 if after is None else after, timestamp=1.0, name="note")
    event.lifecycle.payload_json = "{}"
    for name, value in fields.items():
        setattr(event, name, value)
    return pb.Up(event=event)


def test_an_event_sent_twice_is_counted_once(start_gateway: Callable[..., LocalGateway]) -> None:
    gateway = start_gateway()
    assert _attend(gateway.target, [_note(1), _note(1), _note(2), _note(1)]) is grpc.StatusCode.OK
    assert gateway.runs[RUN].numbers == [1, 2]
    assert gateway.runs[RUN].duplicates == 2


def test_a_gap_ends_the_stream_so_that_the_worker_replays(start_gateway: Callable[..., LocalGateway]) -> None:
    gateway = start_gateway()
    assert _attend(gateway.target, [_note(1), _note(3)]) is grpc.StatusCode.ABORTED
    assert gateway.runs[RUN].numbers == [1]
    assert gateway.runs[RUN].gaps == 1


@pytest.mark.parametrize(
    "message",
    [
        _note(1, name=""),
        _note(1, name="x" * 200),
        _note(1, name="a\nb"),
        _note(1, timestamp=float("nan")),
        pb.Up(event=pb.Event(number=1, name="note", timestamp=1.0)),
        pb.Up(event=pb.Event(number=1, name="note", timestamp=1.0, lifecycle=pb.Lifecycle(payload_json="[1]"))),
        pb.Up(event=pb.Event(number=1, name="note", timestamp=1.0, lifecycle=pb.Lifecycle(payload_json="{"))),
        pb.Up(event=pb.Event(number=1, name="n", timestamp=1.0, lifecycle=pb.Lifecycle(payload_json="[" * 90_000))),
        pb.Up(event=pb.Event(number=0, name="note", timestamp=1.0, lifecycle=pb.Lifecycle())),
    ],
)
def test_a_malformed_event_is_refused(message: pb.Up, start_gateway: Callable[..., LocalGateway]) -> None:
    gateway = start_gateway()
    assert _attend(gateway.target, [message]) is grpc.StatusCode.INVALID_ARGUMENT
    assert gateway.runs[RUN].events == []


def test_a_huge_message_is_refused_before_it_is_read(start_gateway: Callable[..., LocalGateway]) -> None:
    gateway = start_gateway()
    huge = pb.Up(event=pb.Event(number=1, name="note", lifecycle=pb.Lifecycle(payload_json=" " * 1_000_000)))
    assert _attend(gateway.target, [huge]) is not grpc.StatusCode.OK
    assert gateway.runs[RUN].events == []


@pytest.mark.parametrize("token", ["", RUN, f"{RUN}/{'0' * 32}", "/", "é"])
def test_a_stream_without_a_valid_session_token_is_refused(
    token: str, start_gateway: Callable[..., LocalGateway]
) -> None:
    gateway = start_gateway()
    _attend(gateway.target, [])  # the run exists
    if not token.isascii():
        token = token.encode().hex()
    assert _attend(gateway.target, [_note(1)], token=token) is grpc.StatusCode.UNAUTHENTICATED
    assert gateway.runs[RUN].events == []


def test_the_token_of_an_earlier_session_is_refused(start_gateway: Callable[..., LocalGateway]) -> None:
    gateway = start_gateway()
    _attend(gateway.target, [])
    old = gateway.runs[RUN].token
    _attend(gateway.target, [])
    assert _attend(gateway.target, [_note(1)], token=old) is grpc.StatusCode.UNAUTHENTICATED


def test_an_event_that_is_too_large_travels_shortened(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    worker = start_worker(gateway.target)
    worker.emit("run_failed", error="The sentence. " + "x" * 2_000_000, return_code=1)
    assert worker.session.close(PATIENCE)
    payload = gateway.runs[RUN].events[0].payload
    assert payload["truncated"] is True
    assert payload["error"].startswith("The sentence.")
    assert payload["return_code"] == 1


class _HostileGateway(rpc.SessionServiceServicer):
    """Answers with whatever it was given, then behaves like nobody."""

    def __init__(self, reply: pb.RegisterWorkerReply, down: list[pb.Down]) -> None:
        self.reply = reply
        self.down = down

    def RegisterWorker(self, request: pb.RegisterWorkerRequest, context: Any) -> pb.RegisterWorkerReply:  # noqa: N802
        return self.reply

    def Attend(self, request_iterator: Iterator[pb.Up], context: Any) -> Iterator[pb.Down]:  # noqa: N802
        yield from self.down
        for _ in request_iterator:
            pass


@pytest.mark.parametrize(
    ("reply", "down"),
    [
        (pb.RegisterWorkerReply(acknowledged=2**64 - 1, credits=2**32 - 1, heartbeat_seconds=2**32 - 1), []),
        (
            pb.RegisterWorkerReply(),
            [
                pb.Down(acknowledgement=pb.Acknowledgement(number=2**64 - 1)),
                pb.Down(credits=pb.Credits(granted=2**32 - 1)),
                pb.Down(),
            ],
        ),
        (pb.RegisterWorkerReply(session_token="x" * 300_000), []),
        (pb.RegisterWorkerReply(session_token="line\nbreak"), []),
        (pb.RegisterWorkerReply(), [pb.Down(desired=pb.Desired(stop_reason="x" * 1_000_000))]),
    ],
    ids=["huge-numbers", "huge-grants", "huge-reply", "bad-token", "huge-down"],
)
def test_a_hostile_gateway_does_not_harm_the_worker(
    reply: pb.RegisterWorkerReply, down: list[pb.Down], start_worker: Callable[..., Any]
) -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=4), options=[("grpc.max_send_message_length", -1)])
    rpc.add_SessionServiceServicer_to_server(_HostileGateway(reply, down), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    worker = start_worker(f"127.0.0.1:{port}")
    for _ in range(20):
        worker.emit("heartbeat")
        worker.scalars(1)
    worker.session.close(0.5)
    assert worker.session.state is State.CLOSED
    assert not worker.session._thread.is_alive()
    assert worker.session.acknowledged <= worker.log.last_seq
    server.stop(0).wait()

"""What listens goes on listening: the gateway, the operator's and the worker's HTTP, whatever bytes arrive."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from cleanrl_operator.gateway.identity import NotProven, PodIdentity, SessionTokens
from cleanrl_operator.gateway.limits import CALLS_BURST, Callers
from cleanrl_operator.gateway.server import MOST_REVIEWS, Gateway, attach
from cleanrl_operator.gateway.sessions import SessionBook
from cleanrl_operator.health import HealthServer
from cleanrl_operator.run import Run
from fuzzing import HOSTILE_TEXT, budget
from hypothesis import given
from hypothesis import strategies as st

from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol import session_pb2_grpc as rpc
from cleanrl_worker.fastlane.exporter import Exporter, RunState

EXPECTED = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ABORTED, grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED,
}  # fmt: skip
RUN = Run.parse(
    {
        "metadata": {
            "namespace": "ns",
            "name": "run",
            "uid": "u1",
            "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10},
        "status": {"podUID": "p1", "attempt": 1, "fsmState": "HSHK"},
    }
)


class OnePod:
    """Knows one token; who is whose is the API server's to say, and tested with a real one elsewhere."""

    def __init__(self) -> None:
        self.asked = self.at_once = self._now = 0

    async def verify(self, token: str) -> PodIdentity:
        self.asked, self._now = self.asked + 1, self._now + 1
        self.at_once = max(self.at_once, self._now)
        await asyncio.sleep(0.01)
        self._now -= 1
        if token != "good":
            raise NotProven("the API server does not accept the token")
        return PodIdentity("ns", "p1")


class Loop:
    """An event loop in a thread of its own; what nobody caught in it is kept."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.uncaught: list[str] = []
        self.loop.set_exception_handler(lambda _loop, context: self.uncaught.append(str(context)))
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)


async def listening(verifier: OnePod) -> tuple[Any, Gateway, int]:
    """A gateway of one run and one pod, its server and its port."""
    made = Gateway(
        SessionBook(lambda _key: None),
        verifier,
        SessionTokens(b"k" * 32),
        run_of_pod=lambda uid: RUN if uid == "p1" else None,
        run_by_uid=lambda uid: RUN if uid == "u1" else None,
        run_by_id=lambda _namespace, _run: RUN,
        clock=lambda: 0.0,  # nobody is forgiven with time
    )
    server = grpc.aio.server(options=limits.SERVER_OPTIONS)
    attach(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, made, port


@pytest.fixture(scope="module")
def gateway(loop: Loop) -> Iterator[tuple[str, Gateway]]:
    server, made, port = loop.do(listening(OnePod()))
    yield f"127.0.0.1:{port}", made
    loop.do(server.stop(0))


def register(channel: grpc.Channel) -> pb.RegisterWorkerReply:
    request = pb.RegisterWorkerRequest(run_id=RUN.run_id, attempt=1)
    bearer = (("authorization", "Bearer good"),)
    return rpc.SessionServiceStub(channel).RegisterWorker(request, metadata=bearer, timeout=20)


def raw(channel: grpc.Channel, method: str, messages: list[bytes], metadata: Any) -> grpc.StatusCode:
    """Call with bytes as they are: how it ended."""
    path = f"/{pb.DESCRIPTOR.services_by_name['SessionService'].full_name}/{method}"
    if method == "RegisterWorker":
        call = channel.unary_unary(path).future(b"".join(messages), metadata=metadata, timeout=20)
        call.exception()
    else:
        call = channel.stream_stream(path)(iter(messages), metadata=metadata, timeout=20)
        with contextlib.suppress(grpc.RpcError):
            for _ in call:
                pass
    code: grpc.StatusCode = call.code()
    return code


PIECES = st.lists(
    st.binary(max_size=80)
    | st.builds(
        lambda number, after, name, text: pb.Up(
            event=pb.Event(number=number, after=after, name=name, lifecycle=pb.Lifecycle(payload_json=text))
        ).SerializeToString(),
        st.integers(0, 2**64 - 1) | st.integers(0, 4),
        st.integers(0, 2**64 - 1) | st.integers(0, 4),
        st.sampled_from(["note", "run_started", "checkpoint_saved"]),
        st.sampled_from(["{}", "[" * 90_000, '{"a":1}', ""]),
    ),
    max_size=6,
)
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)


@budget(40)
@given(messages=PIECES, method=st.sampled_from(["Attend", "RegisterWorker"]), token=st.none() | ASCII)
def test_any_bytes_on_a_stream_end_it_with_a_known_code(
    gateway: tuple[str, Gateway],
    loop: Loop,
    caplog: pytest.LogCaptureFixture,
    messages: list[bytes],
    method: str,
    token: str | None,
) -> None:
    target, served = gateway
    served._refused, served._called = Callers(), Callers()  # each is a stranger of its own
    caplog.clear()
    with grpc.insecure_channel(target) as channel:
        session = register(channel).session_token if token is None else token
        bearer = ("authorization", f"Bearer {'good' if token is None else token}")
        code = raw(channel, method, messages, ((limits.SESSION_METADATA_KEY, session), bearer))
        assert code in EXPECTED, "an error that nobody thought of"
        assert register(channel).session_token, "the next worker is served"
    assert loop.uncaught == []
    assert served.streams >= 0
    assert [line for line in caplog.records if line.exc_info] == [], "strangers write tracebacks into the log"


@pytest.mark.parametrize(
    ("metadata", "message", "code"),
    [
        ([("authorization", "Bearer bad")], b"", "UNAUTHENTICATED"),
        ([], b"", "UNAUTHENTICATED"),
        ([("authorization", "Bearer good")], b"\xff", "INVALID_ARGUMENT"),
    ],
)
def test_a_flood_of_refusals_is_turned_away_before_it_costs_a_review(
    gateway: tuple[str, Gateway], caplog: pytest.LogCaptureFixture, metadata: Any, message: bytes, code: str
) -> None:
    target, served = gateway
    told = {code: 0, "RESOURCE_EXHAUSTED": 0}
    before = dict(served.refusals)
    with grpc.insecure_channel(target) as channel:
        codes = {raw(channel, "RegisterWorker", [message], metadata).name for _ in range(150)}
    assert codes == {code, "RESOURCE_EXHAUSTED"}
    counted = {name: count - before.get(name, 0) for name, count in served.refusals.items()}
    for line in caplog.records:
        told[line.code] += line.levelno >= logging.WARNING
    assert told == {code: counted[code], "RESOURCE_EXHAUSTED": 0}
    assert counted["RESOURCE_EXHAUSTED"] > 0, "a flood is counted and does not fill the log"
    served._refused, served._called = Callers(), Callers()


@pytest.mark.parametrize("known", [True, False])
def test_streams_that_are_opened_without_end_are_turned_away(gateway: tuple[str, Gateway], known: bool) -> None:
    target, served = gateway
    with grpc.insecure_channel(target) as channel:
        session = register(channel).session_token if known else "forged"
        metadata = ((limits.SESSION_METADATA_KEY, session),)
        codes = {raw(channel, "Attend", [], metadata) for _ in range(150)}
        if not known:  # a worker of the same address, which has registered before
            good = ((limits.SESSION_METADATA_KEY, served._tokens.issue("u1", "p1")),)
            assert raw(channel, "Attend", [], good) is grpc.StatusCode.OK
    assert codes == {
        grpc.StatusCode.OK if known else grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    served._refused, served._called = Callers(), Callers()


@pytest.mark.parametrize("token", ["good", "bad"])
def test_a_thousand_calls_at_once_leave_the_api_server_to_others(loop: Loop, token: str) -> None:
    """Also those of a worker that is known: it may be a tenant's own program."""
    pod = OnePod()

    async def calls() -> set[grpc.StatusCode]:
        server, _, port = await listening(pod)

        async def one(stub: Any) -> grpc.StatusCode:
            request = pb.RegisterWorkerRequest(run_id=RUN.run_id, attempt=1)
            call = stub.RegisterWorker(request, metadata=(("authorization", f"Bearer {token}"),), timeout=20)
            code: grpc.StatusCode = await call.code()
            return code

        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = rpc.SessionServiceStub(channel)
            codes = set(await asyncio.gather(*(one(stub) for _ in range(1000))))
        await server.stop(0)
        return codes

    codes = loop.do(calls())
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
    assert pod.at_once <= MOST_REVIEWS
    assert pod.asked <= CALLS_BURST + MOST_REVIEWS


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def operators_port(loop: Loop) -> Iterator[int]:
    port = unused_port()
    server = HealthServer(port, lambda: "", lambda: "", lambda: b"metrics 1\n")
    loop.do(server.start())
    yield port
    loop.do(server.stop())


@pytest.fixture(scope="module")
def workers_port() -> Iterator[int]:
    exporter = Exporter("hostile", "127.0.0.1", 0, RunState)
    exporter.start()
    yield exporter.port
    exporter.close()


REQUESTS = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda method, path, name, value, body: (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\n\r\n".encode(errors="replace") + body
        ),
        st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "G\x00T", ""]),
        HOSTILE_TEXT
        | st.sampled_from(
            ["/metrics", "/../../etc/passwd", "//etc/passwd", "/%2e%2e/etc/passwd", "/frame.png?" + "a" * 9000]
        ),
        st.sampled_from(["Content-Length", "Transfer-Encoding", "Authorization", "Accept", "Range", "X"]),
        HOSTILE_TEXT | st.sampled_from(["-1", "99999999999999999999", "chunked", "Bearer \x00", "bytes=0-99999999"]),
        st.binary(max_size=50),
    ),
)


def healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@budget(60)
@given(request=REQUESTS, whose=st.sampled_from(["operator", "worker"]))
def test_any_request_is_answered_or_hung_up_on(
    operators_port: int,
    workers_port: int,
    loop: Loop,
    caplog: pytest.LogCaptureFixture,
    request: bytes,
    whose: str,
) -> None:
    caplog.clear()
    port = operators_port if whose == "operator" else workers_port
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
        try:
            caller.sendall(request)
            caller.shutdown(socket.SHUT_WR)
            while data := caller.recv(65536):
                answer += data
        except OSError:
            pass  # it hung up on us
    assert b"root:" not in answer
    assert b"Traceback" not in answer
    assert b" 500 " not in answer.split(b"\r\n")[0]
    deadline = time.monotonic() + 60
    while not healthy(port):  # a caller that was refused often has to wait a while
        assert time.monotonic() < deadline, "it does not answer any more"
        time.sleep(0.05)
    assert loop.uncaught == []
    assert [line for line in caplog.records if line.exc_info] == [], "strangers write tracebacks into the log"


def test_a_fault_of_our_own_handler_is_still_logged(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> str:
        raise RuntimeError("broken")

    port = unused_port()
    server = HealthServer(port, broken, broken, None)
    loop.do(server.start())
    assert not healthy(port)
    loop.do(server.stop())
    assert any("broken" in str(line.exc_info) for line in caplog.records)

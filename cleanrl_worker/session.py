"""The worker's session with its gateway: the event log goes up, the desired state comes down.

One daemon thread owns the connection: connect, register, attend, and on any failure wait and begin again. gRPC's own
thread pulls what is to be sent from an `Outbox`, so a slow or absent gateway costs the caller nothing: `publish` puts
a reference into memory and returns. The log on disk is what is replayed; nothing is lost while it is there.

After a cut the wait doubles from 0.5 s to 30 s (`limits.LONGEST_BACKOFF_SECONDS`), with jitter, for ever. A gateway
that knows only MOSAIC's handshake is registered with in that way, and nothing more is sent: its own proxy reads
stdout.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import grpc

from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol import session_pb2_grpc as rpc
from cleanrl_protocol.credits import CreditBalance
from cleanrl_protocol.events import encode
from cleanrl_protocol.outbox import Outbox
from cleanrl_worker.telemetry import read_events

log = logging.getLogger(__name__)

ENV_TOKEN_FILE = "CLEANRL_TOKEN_FILE"  # noqa: S105 - the name of a variable that holds a path
ENV_CA_FILE = "CLEANRL_GATEWAY_CA"
MAX_TOKEN_BYTES = 16 * 1024
REFUSALS_BEFORE_REPORT = 3
"""A token may be caught in rotation, a run may not be known yet: a refusal counts when it is repeated."""
_CLOSING_BACKOFF_SECONDS = 0.5
_MAX_HEARTBEAT_SECONDS = 300
_MIN_REPORT_SECONDS, _MAX_REPORT_SECONDS = 0.5, 300.0
_MAX_STOP_REASON = 100

_REFUSALS = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
}


class State(Enum):
    """Where the session stands. For people and tests: nothing has to wait for any of them."""

    CONNECTING = "connecting"
    ATTENDING = "attending"
    FOREIGN = "foreign"  # registered with MOSAIC's trainer: nothing more to do
    FENCED = "fenced"  # the gateway said that this worker's time is over
    CLOSED = "closed"


@dataclass(frozen=True)
class Desired:
    """What the run's owner wants; always the whole truth, except that `checkpoint_request` is true once per request."""

    generation: int = 0
    pause: bool = False
    stop: bool = False
    stop_reason: str = ""
    checkpoint_request: bool = False


@dataclass(frozen=True)
class Refusal:
    """The gateway does not want this worker. `fenced`: for good (another attempt took over, the run has ended)."""

    code: str
    message: str
    fenced: bool


@dataclass(frozen=True)
class Worker:
    """What a worker says about itself when it registers. `extras` must be free of secrets."""

    run_id: str
    worker_id: str = ""
    algo: str = ""
    env_id: str = ""
    worker_kind: str = "cleanrl"
    schema_id: str = ""
    schema_version: int = 1
    supports_pause: bool = True
    supports_checkpoint: bool = True
    attempt: int = 1
    extras: Mapping[str, Any] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    def request(self, last_number: int, log_epoch: int) -> pb.RegisterWorkerRequest:
        """The handshake's message."""
        return pb.RegisterWorkerRequest(
            run_id=self.run_id,
            worker_id=self.worker_id or f"cleanrl-worker-{self.run_id[:8]}",
            worker_kind=self.worker_kind,
            proto_version=limits.PROTO_VERSION,
            schema_id=self.schema_id or f"cleanrl.{self.algo}",
            schema_version=self.schema_version,
            supports_pause=self.supports_pause,
            supports_checkpoint=self.supports_checkpoint,
            algo=self.algo,
            env_id=self.env_id,
            extras_json=_bounded_json(self.extras),
            capabilities_json=_bounded_json(self.capabilities),
            attempt=self.attempt,
            last_number=last_number,
            log_epoch=log_epoch,
        )


@dataclass(frozen=True)
class Backoff:
    """The pause before attempt n (from 1): doubled each time up to the cap, then shortened by up to half at random."""

    first: float = limits.FIRST_BACKOFF_SECONDS
    cap: float = limits.LONGEST_BACKOFF_SECONDS

    def seconds(self, attempt: int, chance: float) -> float:
        """`chance` is a random figure in [0, 1)."""
        return min(self.cap, self.first * 2.0 ** min(attempt - 1, 30)) * (1 - chance / 2)


class Session:
    """Keeps one worker in touch with its gateway. Every public method returns at once, except `close` and `wait_*`.

    The callbacks run on the session's thread: they hand over and return. `log_path` is the run's `events.jsonl`.
    With `ca_file` the channel is TLS and the token in `token_file` (read again for every call) proves who we are;
    without, the channel is plain and no token is ever sent over it.
    """

    def __init__(
        self,
        target: str,
        worker: Worker,
        log_path: Path,
        *,
        on_desired: Callable[[Desired], None] = lambda _: None,
        on_refused: Callable[[Refusal], None] = lambda _: None,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.target = target
        self.worker = worker
        self.heartbeat_seconds = 0
        """What the gateway asked for; 0 while it has not."""
        self.pace: tuple[float, float] | None = None
        """When the gateway wants figures, by the monotonic clock, and every how many seconds after that."""
        self.registered_at: float | None = None
        """When the first handshake was answered, in seconds since 1970."""
        self.reconnects = 0
        self._on_desired = on_desired
        self._on_refused = on_refused
        self._token_file = token_file
        self._ca_file = ca_file
        self._backoff = backoff or Backoff()
        self._outbox = Outbox(lambda: read_events(log_path))
        self._credits = CreditBalance()
        self._starved = False
        self._acknowledged = 0
        self._wish = pb.Desired()
        self._wished = False
        self._refusals = 0
        self._state = State.CONNECTING
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._sending = threading.Lock()  # guards the outbox's cursor and the credits: one stream at a time
        self._hurry = threading.Event()
        self._closing = False
        self._registered = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)

    @classmethod
    def from_env(cls, target: str, worker: Worker, log_path: Path, **callbacks: Any) -> Session:
        """Take the token's and the CA's paths from the environment that the pod gives."""
        token, authority = os.environ.get(ENV_TOKEN_FILE), os.environ.get(ENV_CA_FILE)
        return cls(
            target,
            worker,
            log_path,
            token_file=Path(token) if token else None,
            ca_file=Path(authority) if authority else None,
            **callbacks,
        )

    # -- for the supervisor ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect, in the background."""
        self._thread.start()

    def publish(self, event: Mapping[str, Any]) -> None:
        """Send an event that `EventLog.emit` has just written and returned, of whatever kind."""
        self._outbox.add(event)
        self._wake.set()

    def wait_registered(self, timeout: float) -> bool:
        """Wait for the first handshake. Only for those who have nothing better to do in the meantime."""
        return self._registered.wait(timeout)

    @property
    def state(self) -> State:
        return self._state

    @property
    def acknowledged(self) -> int:
        """The gateway has stored every event up to this number."""
        return self._acknowledged

    def close(self, timeout: float) -> bool:
        """Wait until the last event is acknowledged, `timeout` seconds at most, then hang up. True when it was."""
        deadline = time.monotonic() + timeout
        self._closing = True
        self._hurry.set()
        with self._changed:
            settled = self._changed.wait_for(self._is_settled, timeout)
        self._set_state(State.CLOSED)
        self._wake.set()
        self._hurry.set()
        if self._thread.is_alive():
            self._thread.join(max(0.2, min(1.0, deadline - time.monotonic())))
            call = self._call
            if call is not None:
                call.cancel()
            self._thread.join(1.0)
        return settled and self._acknowledged >= self._outbox.last

    def _is_settled(self) -> bool:
        return self._state in (State.FOREIGN, State.FENCED, State.CLOSED) or (
            self._registered.is_set() and self._acknowledged >= self._outbox.last
        )

    def _set_state(self, state: State) -> None:
        with self._changed:
            if self._state not in (State.FENCED, State.CLOSED) or state is State.CLOSED:
                self._state = state
            self._changed.notify_all()

    # -- the session's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while self._state is not State.CLOSED:
            before = self._acknowledged
            try:
                self._connect_once()
            except grpc.RpcError as error:
                self._judge(error)
            except Exception:  # a fault in here must never end the session, let alone the run
                log.exception("the session failed; it will be tried again")
            if self._state in (State.FOREIGN, State.FENCED, State.CLOSED):
                return
            self._set_state(State.CONNECTING)
            self.reconnects += 1
            # A gateway that lets us in and cuts us off at once is not there: only progress starts the waiting afresh.
            failures = 1 if self._acknowledged > before else failures + 1
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        seconds = self._backoff.seconds(failures, random.random())  # noqa: S311 - jitter, not a secret
        if self._closing:
            seconds = min(seconds, _CLOSING_BACKOFF_SECONDS)
        self._hurry.wait(seconds)
        self._hurry.clear()

    def _connect_once(self) -> None:
        """One connection from handshake to end. Raises RpcError when it was refused or cut."""
        with self._channel() as channel:
            stub = rpc.SessionServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            request = self.worker.request(self._outbox.last, self._outbox.epoch)
            try:
                reply = stub.RegisterWorker(request, timeout=limits.REGISTER_SECONDS)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                self._register_with_mosaic(channel, request)
                return
            self._begin(reply)
            ended = threading.Event()
            call = stub.Attend(self._outgoing(ended), metadata=((limits.SESSION_METADATA_KEY, reply.session_token),))
            self._call = call
            try:
                for message in call:
                    self._hear(message)
            finally:
                with self._sending:
                    ended.set()
                self._wake.set()  # gRPC's sending thread may be waiting in _outgoing
                self._call = None
                call.cancel()

    def _begin(self, reply: pb.RegisterWorkerReply) -> None:
        self._refusals = 0
        self.heartbeat_seconds = min(reply.heartbeat_seconds, _MAX_HEARTBEAT_SECONDS)
        self._credits.reset(reply.credits)
        self._acknowledged = min(reply.acknowledged, self._outbox.last)
        self._outbox.rewind(self._acknowledged)
        self._note_registered()
        self._set_state(State.ATTENDING)
        log.info("registered with the gateway at %s; it holds %d events", self.target, self._acknowledged)
        if reply.HasField("desired"):
            self._want(reply.desired)

    def _register_with_mosaic(self, channel: Any, request: pb.RegisterWorkerRequest) -> None:
        # Imported only here: MOSAIC's own module of that name may live in the same process.
        from cleanrl_protocol import mosaic_trainer_pb2, mosaic_trainer_pb2_grpc

        trainer = mosaic_trainer_pb2_grpc.TrainerServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        reply = trainer.RegisterWorker(
            mosaic_trainer_pb2.RegisterWorkerRequest(
                run_id=request.run_id,
                worker_id=request.worker_id,
                worker_kind=request.worker_kind,
                proto_version=request.proto_version,
                schema_id=request.schema_id,
                schema_version=request.schema_version,
                supports_pause=request.supports_pause,
                supports_checkpoint=request.supports_checkpoint,
            ),
            timeout=limits.REGISTER_SECONDS,
        )
        log.info("registered with MOSAIC's trainer at %s, version %s", self.target, reply.accepted_version)
        self._note_registered()
        self._set_state(State.FOREIGN)

    def _note_registered(self) -> None:
        if not self._registered.is_set():
            self.registered_at = time.time()
            self._registered.set()

    def _channel(self) -> Any:
        if self._ca_file is None:
            return grpc.insecure_channel(self.target, options=limits.CLIENT_OPTIONS)
        credentials = grpc.ssl_channel_credentials(root_certificates=self._ca_file.read_bytes())
        if self._token_file is not None:
            credentials = grpc.composite_channel_credentials(
                credentials, grpc.metadata_call_credentials(_TokenFile(self._token_file))
            )
        return grpc.secure_channel(self.target, credentials, options=limits.CLIENT_OPTIONS)

    def _judge(self, error: grpc.RpcError) -> None:
        """Tell a refusal from an absence. The details are the gateway's own sentence and hold no token of ours."""
        code, details = error.code(), str(error.details() or "")[:500]
        log.info("no session with the gateway at %s (%s): %s", self.target, code.name, details)
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            self._set_state(State.FENCED)
            self._tell(self._on_refused, Refusal(code.name, details, fenced=True))
        elif code in _REFUSALS:
            self._refusals += 1
            if self._refusals == REFUSALS_BEFORE_REPORT:
                self._tell(self._on_refused, Refusal(code.name, details, fenced=False))

    # -- what comes down ---------------------------------------------------------------------------------------------

    def _hear(self, message: pb.Down) -> None:
        body = message.WhichOneof("body")
        if body == "desired":
            self._want(message.desired)
        elif body == "credits":
            with self._sending:
                self._credits.grant(message.credits.granted)
            self._wake.set()
        elif body == "pace":
            first, every = message.pace.next_seconds, message.pace.every_seconds
            sane = first >= 0 and every >= _MIN_REPORT_SECONDS  # nor NaN
            limit = _MAX_REPORT_SECONDS
            self.pace = (time.monotonic() + min(first, limit), min(every, limit)) if sane else None
        elif body == "acknowledgement":
            number = min(message.acknowledgement.number, self._outbox.last)
            if number > self._acknowledged:
                self._outbox.forget(number)
                with self._changed:
                    self._acknowledged = number
                    self._changed.notify_all()

    def _want(self, message: pb.Desired) -> None:
        if self._wished and message == self._wish:
            return
        # Requests from before this process existed were meant for another: the first count is where counting starts.
        checkpoint = self._wished and message.checkpoint_request > self._wish.checkpoint_request
        self._wish.CopyFrom(message)
        self._wished = True
        stop_reason = message.stop_reason[:_MAX_STOP_REASON]
        self._tell(self._on_desired, Desired(message.generation, message.pause, message.stop, stop_reason, checkpoint))

    @staticmethod
    def _tell(callback: Callable[[Any], None], value: Any) -> None:
        try:
            callback(value)
        except Exception:  # the caller's fault must not cut the session
            log.exception("a session callback failed on %r", value)

    # -- what goes up (gRPC's sending thread) ------------------------------------------------------------------------

    def _outgoing(self, ended: threading.Event) -> Iterator[pb.Up]:
        while True:
            self._wake.clear()
            with self._sending:
                if ended.is_set():
                    return
                message = self._next_message()
            if message is not None:
                yield message
            elif self._state is State.CLOSED:
                return
            else:
                self._wake.wait()

    def _next_message(self) -> pb.Up | None:
        if self._starved and self._credits.credits > 0:
            self._starved = False
            flow = pb.Flow(state=pb.Flow.RESUMED, number=self._outbox.sent, coalesced=self._outbox.coalesced)
            self._outbox.coalesced = 0
            return pb.Up(flow=flow)
        outgoing = self._outbox.take(self._credits.spend)
        if outgoing is not None:
            return pb.Up(event=encode(outgoing.event, outgoing.after))
        if self._outbox.starving and not self._starved:
            self._starved = True
            return pb.Up(flow=pb.Flow(state=pb.Flow.STARVED, number=self._outbox.sent))
        return None


class _TokenFile(grpc.AuthMetadataPlugin):  # type: ignore[misc]  # grpc has no types
    """Presents the token that is in the file now. Pods' tokens are rotated in place."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, context: Any, callback: Any) -> None:  # noqa: ARG002 - gRPC's signature
        try:
            with self._path.open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
            if not token:
                raise ValueError("the token file is empty")  # noqa: TRY301 - one place turns a bad token into an answer
        except (OSError, ValueError) as error:
            callback((), error)
        else:
            callback((("authorization", f"Bearer {token}"),), None)


def _bounded_json(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True, default=str)
    return text if len(text) <= limits.MAX_PAYLOAD_BYTES // 2 else json.dumps({"truncated": True})

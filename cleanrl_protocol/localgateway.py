"""A gateway in memory, for trying out `--grpc-target` and for tests. The operator has the real one.

    python -m cleanrl_protocol.localgateway --port 50055

prints each event as a JSON line, and reads commands: `pause`, `resume`, `stop`, `checkpoint`, `credits 100`, followed by a
run's id or nothing for all runs.

Each stream has two threads: gRPC's own waits for what is to be said (`_Stream.mail`), a second one listens. One lock guards
all state. `Faults` makes it misbehave on purpose.
"""

from __future__ import annotations

import argparse
import json
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol import session_pb2_grpc as rpc
from cleanrl_protocol.credits import CreditBalance
from cleanrl_protocol.events import BadEvent, Received, decode, epoch_micros
from cleanrl_protocol.ledger import Arrival, Ledger

Authenticate = Callable[[dict[str, str], str], tuple[grpc.StatusCode, str] | None]
"""(metadata, run id) -> why not, or None."""


@dataclass
class Faults:
    """What goes wrong. May be changed while the gateway runs."""

    cut_after: int | None = None
    """End each stream after so many messages, before the last of them is looked at."""
    seconds_per_message: float = 0.0
    acknowledge: bool = True
    say_twice: bool = False
    """Send everything down twice."""
    refuse: tuple[grpc.StatusCode, str] | None = None
    """Answer every RegisterWorker with this."""


@dataclass
class Run:
    """What the gateway knows of one run."""

    ledger: Ledger = field(default_factory=Ledger)
    credits: CreditBalance = field(default_factory=CreditBalance)
    owed: int = 0
    """Credits to grant as soon as there is a stream to say so on."""
    desired: pb.Desired = field(default_factory=pb.Desired)
    token: str = ""
    registrations: list[pb.RegisterWorkerRequest] = field(default_factory=list)
    events: list[Received] = field(default_factory=list)
    flow: list[str] = field(default_factory=list)
    duplicates: int = 0
    gaps: int = 0
    overspent: int = 0
    refused: list[str] = field(default_factory=list)

    @property
    def numbers(self) -> list[int]:
        return [event.number for event in self.events]

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]


class _Cut(Exception):
    """The stream ends here, with this status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _Stream:
    """One open stream: what is to be said on it, ended by None or by the reason for a cut."""

    def __init__(self) -> None:
        self.mail: queue.SimpleQueue[pb.Down | _Cut | None] = queue.SimpleQueue()


class LocalGateway(rpc.SessionServiceServicer):
    """`start()`, then `target` is where workers connect; `stop()` cuts everybody off and keeps what was received."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        credentials: Any = None,
        authenticate: Authenticate | None = None,
        faults: Faults | None = None,
        initial_credits: int = limits.INITIAL_CREDITS,
        regrant: bool = True,
        on_event: Callable[[str, Received], None] = lambda *_: None,
    ) -> None:
        """`regrant`: give each credit back when it was spent."""
        self.faults = faults or Faults()
        self.runs: dict[str, Run] = {}
        self.port = 0
        self._host = host
        self._credentials = credentials
        self._authenticate = authenticate
        self._initial_credits = initial_credits
        self._regrant = regrant
        self._on_event = on_event
        self._streams: dict[str, list[_Stream]] = {}
        self._changed = threading.Condition()
        self._server: Any = None

    def start(self, port: int = 0) -> LocalGateway:
        """Listen. Raises RuntimeError when the port is taken. May be called again after `stop`."""
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=32, thread_name_prefix="gateway"), options=limits.SERVER_OPTIONS
        )
        rpc.add_SessionServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]  # generated
        address = f"{self._host}:{port}"
        self.port = (
            self._server.add_insecure_port(address)
            if self._credentials is None
            else self._server.add_secure_port(address, self._credentials)
        )
        self._server.start()
        return self

    def stop(self) -> None:
        """Cut everybody off at once."""
        with self._changed:
            streams = [stream for streams in self._streams.values() for stream in streams]
        for stream in streams:
            stream.mail.put(_Cut(grpc.StatusCode.UNAVAILABLE, "the gateway stops"))
        if self._server is not None:
            self._server.stop(grace=0).wait()

    @property
    def target(self) -> str:
        return f"{self._host}:{self.port}"

    def wait_for(self, predicate: Callable[[], bool], timeout: float = 30.0) -> bool:
        """Wait until `predicate`, asked after every change, is true."""
        with self._changed:
            return self._changed.wait_for(predicate, timeout)

    def want(self, run_id: str, **wishes: Any) -> None:
        """Change a run's desired state: `pause`, `stop`, `stop_reason`, `checkpoint=True`."""
        with self._changed:
            desired = self._run(run_id).desired
            if wishes.pop("checkpoint", False):
                desired.checkpoint_request += 1
            for name, value in wishes.items():
                setattr(desired, name, value)
            desired.generation += 1
            self._say(run_id, pb.Down(desired=desired))

    def grant(self, run_id: str, count: int) -> None:
        """Give a run more credits: now, or when its stream is open. Both sides have to count the same."""
        with self._changed:
            self._run(run_id).owed += count
            self._pay(run_id)

    def pace(self, run_id: str, seconds: float) -> None:
        """Ask for a run's figures so many seconds from now, and then as often."""
        with self._changed:
            self._say(run_id, pb.Down(pace=pb.Pace(next_seconds=seconds, every_seconds=seconds)))

    def cut(self, run_id: str) -> None:
        """End a run's streams now."""
        with self._changed:
            for stream in self._streams.get(run_id, []):
                stream.mail.put(_Cut(grpc.StatusCode.UNAVAILABLE, "cut on purpose"))

    # -- the service -------------------------------------------------------------------------------------------------

    def RegisterWorker(self, request: pb.RegisterWorkerRequest, context: Any) -> pb.RegisterWorkerReply:  # noqa: N802
        """See proto/session.proto."""
        if self.faults.refuse is not None:
            context.abort(*self.faults.refuse)
        if not request.run_id:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "run_id is empty")
        self._check(request.run_id, context)
        with self._changed:
            run = self._run(request.run_id)
            run.registrations.append(request)
            run.token = f"{request.run_id}/{secrets.token_hex(16)}"
            run.credits.reset(self._initial_credits)
            acknowledged = run.ledger.register(request.last_number, request.log_epoch)
            for stream in self._streams.pop(request.run_id, []):  # whoever registered last is the worker
                stream.mail.put(_Cut(grpc.StatusCode.ABORTED, "the worker registered again"))
            self._changed.notify_all()
            return pb.RegisterWorkerReply(
                accepted_version=request.proto_version,
                session_token=run.token,
                acknowledged=acknowledged,
                desired=run.desired,
                credits=run.credits.credits,
            )

    def Attend(self, request_iterator: Iterator[pb.Up], context: Any) -> Iterator[pb.Down]:  # noqa: N802
        """See proto/session.proto."""
        token = dict(context.invocation_metadata()).get(limits.SESSION_METADATA_KEY, "")
        run_id = token.rpartition("/")[0]
        self._check(run_id, context)
        stream = _Stream()
        with self._changed:
            run = self.runs.get(run_id)
            if run is None or not secrets.compare_digest(run.token.encode(), token.encode()):
                run = None
            else:
                self._streams.setdefault(run_id, []).append(stream)
                self._say(run_id, pb.Down(desired=run.desired))
                self._pay(run_id)
        if run is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "register first: the session token is not valid")
            return
        listener = threading.Thread(target=self._listen, args=(run_id, run, request_iterator, stream), daemon=True)
        listener.start()
        try:
            while (message := stream.mail.get()) is not None:
                if isinstance(message, _Cut):
                    context.abort(message.code, message.message)  # raises
                    return
                yield message
                if self.faults.say_twice:
                    yield message
        finally:
            with self._changed:
                if stream in self._streams.get(run_id, []):
                    self._streams[run_id].remove(stream)

    def _check(self, run_id: str, context: Any) -> None:
        refusal = self._authenticate(dict(context.invocation_metadata()), run_id) if self._authenticate else None
        if refusal is not None:
            with self._changed:
                self._run(run_id).refused.append(refusal[1])
                self._changed.notify_all()
            context.abort(*refusal)

    def _listen(self, run_id: str, run: Run, messages: Iterator[pb.Up], stream: _Stream) -> None:
        heard = 0
        try:
            for message in messages:
                heard += 1
                if self.faults.seconds_per_message:
                    time.sleep(self.faults.seconds_per_message)
                if self.faults.cut_after is not None and heard > self.faults.cut_after:
                    raise _Cut(grpc.StatusCode.UNAVAILABLE, "cut on purpose")  # noqa: TRY301 - one way out
                with self._changed:
                    if stream not in self._streams.get(run_id, []):  # the worker has registered again
                        return
                    self._take(run, message, stream, run_id)
                    self._changed.notify_all()
        except _Cut as cut:
            stream.mail.put(cut)
        except grpc.RpcError:  # the worker hung up or was cut off
            stream.mail.put(None)
        except Exception as error:  # whatever it was, the stream must not stay open unheard
            stream.mail.put(_Cut(grpc.StatusCode.INTERNAL, type(error).__name__))
            raise
        stream.mail.put(None)

    def _take(self, run: Run, message: pb.Up, stream: _Stream, run_id: str) -> None:
        body = message.WhichOneof("body")
        if body == "flow":
            run.flow.append(pb.Flow.State.Name(message.flow.state))
            return
        if body != "event":
            return
        try:
            event = decode(message.event)
        except BadEvent as error:
            raise _Cut(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        paid = not event.is_scalars or run.credits.spend()
        arrival = run.ledger.receive(
            event.number, event.after, epoch=epoch_micros(event.timestamp), scalars=event.is_scalars
        )
        if arrival is Arrival.GAP:
            run.gaps += 1
            raise _Cut(grpc.StatusCode.ABORTED, f"something is missing before event {event.number}: register again")
        if arrival is Arrival.DUPLICATE:
            run.duplicates += 1
        elif not paid:
            run.overspent += 1
        else:
            run.events.append(event)
            self._on_event(run_id, event)
        if self.faults.acknowledge:
            acknowledgement = pb.Acknowledgement(number=run.ledger.acknowledged)
            stream.mail.put(pb.Down(acknowledgement=acknowledgement))
        if event.is_scalars and paid and self._regrant:
            run.credits.grant(1)
            stream.mail.put(pb.Down(credits=pb.Credits(granted=1)))

    def _run(self, run_id: str) -> Run:
        return self.runs.setdefault(run_id, Run())

    def _pay(self, run_id: str) -> None:
        run = self._run(run_id)
        if run.owed and self._streams.get(run_id):
            granted = run.credits.grant(run.owed)
            run.owed = 0
            self._say(run_id, pb.Down(credits=pb.Credits(granted=granted)))

    def _say(self, run_id: str, message: pb.Down) -> None:
        copy = pb.Down()
        copy.CopyFrom(message)
        for stream in self._streams.get(run_id, []):
            stream.mail.put(copy)


def _obey(gateway: LocalGateway, line: str) -> str | None:
    """Carry out one command: a sentence when it was not understood."""
    words = line.split()
    if not words:
        return None
    wishes: dict[str, dict[str, Any]] = {
        "pause": {"pause": True},
        "resume": {"pause": False},
        "stop": {"stop": True, "stop_reason": "cancel"},
        "checkpoint": {"checkpoint": True},
    }
    command, rest = words[0], words[1:]
    if command == "credits" and rest and rest[0].isdigit():
        for run_id in rest[1:] or list(gateway.runs):
            gateway.grant(run_id, int(rest[0]))
    elif command in wishes:
        for run_id in rest or list(gateway.runs):
            gateway.want(run_id, **wishes[command])
    else:
        return "commands: pause, resume, stop, checkpoint, credits <count>; then run ids, or none for all runs"
    return None


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m cleanrl_protocol.localgateway", description="A gateway in memory, to try --grpc-target with."
    )
    parser.add_argument("--port", type=int, default=50055, help="0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1")
    args = parser.parse_args(argv)

    def show(run_id: str, event: Received) -> None:
        line = {"run_id": run_id, "number": event.number, "event": event.name, "payload": event.payload}
        print(json.dumps(line, separators=(",", ":"), sort_keys=True), flush=True)

    try:
        gateway = LocalGateway(host=args.host, on_event=show).start(args.port)
    except RuntimeError:
        print(f"port {args.port} on {args.host} can't be listened on; choose another with --port", file=sys.stderr)
        return 1
    print(f"listening on {gateway.target}", file=sys.stderr, flush=True)
    try:
        for line in sys.stdin:
            if (complaint := _obey(gateway, line)) is not None:
                print(complaint, file=sys.stderr, flush=True)
        threading.Event().wait()  # no terminal: serve until a signal comes
    except KeyboardInterrupt:
        return 0
    finally:
        gateway.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

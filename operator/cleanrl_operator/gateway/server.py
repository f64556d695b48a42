"""The gRPC face of the gateway.

Codes mean the same everywhere: FAILED_PRECONDITION is final for a worker, everything else is tried again. What is refused is
counted and logged, never with a token in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from cleanrl_operator.api.status import State
from cleanrl_operator.gateway.identity import NotProven, PodIdentity, SessionTokens, Verifier
from cleanrl_operator.gateway.limits import EVENTS_BURST, EVENTS_PER_SECOND, Bucket, Callers, address
from cleanrl_operator.gateway.sessions import HEARTBEAT_SECONDS, Session, SessionBook
from cleanrl_operator.kube import KubeError
from cleanrl_operator.run import Run
from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol import session_pb2_grpc as rpc
from cleanrl_protocol.events import BadEvent, decode
from cleanrl_protocol.ledger import Arrival

log = logging.getLogger(__name__)
FindRun = Callable[[str], Run | None]
Context = Any  # grpc.aio.ServicerContext; grpc has no types
MOST_STREAMS = 20_000
MOST_REVIEWS = 50
"""Tokens that are verified at once: half of the connections to the API server are for others, such as who renews the lease."""
COUNTED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)
"""What is held against a caller: no healthy worker hears it again and again."""
LOOK_SECONDS = 60.0
"""How often a stream looks whether its worker has earned credits, and acknowledges figures and heartbeats, while nothing else
happens: of a thousand workers that talk all the time each gets one answer to several of them."""


class Gateway(rpc.SessionServiceServicer):
    """Registers workers and keeps their streams. Only the leader serves it.

    `run_of_pod` finds the run whose `status.podUID` is given, `run_by_uid` the run of that UID, `run_by_id` the one of that
    `status.runId` in a namespace.
    """

    def __init__(
        self,
        book: SessionBook,
        verifier: Verifier,
        tokens: SessionTokens,
        run_of_pod: FindRun,
        run_by_uid: FindRun,
        run_by_id: Callable[[str, str], Run | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._verifier = verifier
        self._tokens = tokens
        self._run_of_pod = run_of_pod
        self._run_by_uid = run_by_uid
        self._run_by_id = run_by_id
        self._clock = clock
        self._refused, self._called = Callers(), Callers()
        """Who was refused, by address, and who called at all: to register by the token's digest, for a stream by the pod."""
        self._reviews = asyncio.Semaphore(MOST_REVIEWS)
        self.refusals: Counter[str] = Counter()
        """What was refused, by gRPC code."""
        self.streams = 0

    async def RegisterWorker(  # noqa: N802 - the protocol's name
        self, request: pb.RegisterWorkerRequest | None, context: Context
    ) -> pb.RegisterWorkerReply:
        """See proto/session.proto."""
        await self._hold_back(context, self._refused, address(context.peer()))
        if request is None:
            await self._refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "these bytes are no message of the protocol")
        run, pod_uid = await self._admit(request, context)
        session, acknowledged = self._book.register(run, pod_uid, request)
        log.info("worker registered", extra=session.log_fields)
        return pb.RegisterWorkerReply(
            accepted_version=limits.PROTO_VERSION,
            session_token=self._tokens.issue(run.uid, pod_uid),
            acknowledged=acknowledged,
            desired=_desired(session),
            credits=session.credits.balance.credits,
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )

    async def Attend(  # noqa: N802 - the protocol's name
        self, request_iterator: AsyncIterator[pb.Up | None], context: Context
    ) -> AsyncIterator[pb.Down]:
        """See proto/session.proto."""
        session = await self._resume(context)
        registration, wake = session.registration, asyncio.Event()
        session.changed = wake.set
        listener = asyncio.create_task(self._listen(session, request_iterator, wake))
        self.streams += 1
        try:
            said: tuple[Any, int] = (None, -1)
            acknowledged = -1
            while not listener.done():
                if self._book.is_over(session):
                    self._end(context, grpc.StatusCode.FAILED_PRECONDITION, "the run is done with this pod")
                    return
                if session.registration != registration or session.changed != wake.set:
                    context.set_code(grpc.StatusCode.ABORTED)
                    context.set_details("the worker has registered again")
                    return
                if (session.desired, session.generation) != said:
                    said = (session.desired, session.generation)
                    yield pb.Down(desired=_desired(session))
                if session.ledger.acknowledged != acknowledged:
                    acknowledged = session.ledger.acknowledged
                    yield pb.Down(acknowledgement=pb.Acknowledgement(number=acknowledged))
                if session.pace_is_new and session.pace is not None:
                    session.pace_is_new = False
                    first, every = session.pace
                    yield pb.Down(pace=pb.Pace(next_seconds=first, every_seconds=every))
                granted = session.credits.due(self._clock())
                if granted > 0:
                    yield pb.Down(credits=pb.Credits(granted=granted))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await wake.wait()
                wake.clear()
            fault = listener.result()
            if fault is not None:
                self._end(context, *fault)
        finally:
            self.streams -= 1
            listener.cancel()
            if session.changed == wake.set:
                session.changed = None

    async def _listen(
        self, session: Session, messages: AsyncIterator[pb.Up | None], wake: asyncio.Event
    ) -> tuple[grpc.StatusCode, str] | None:
        """Take what the worker sends, no faster than it may send: the transport holds the rest back."""
        bucket = Bucket.full(EVENTS_PER_SECOND, EVENTS_BURST, self._clock())
        registration, again = session.registration, 0
        try:
            async for message in messages:
                if session.registration != registration:
                    return None
                if (wait := bucket.take(self._clock())) > 0:
                    await asyncio.sleep(wait)
                if message is None:
                    return grpc.StatusCode.INVALID_ARGUMENT, "these bytes are no message of the protocol"
                if message.WhichOneof("body") != "event":
                    continue
                try:
                    event = decode(message.event)
                except BadEvent as error:
                    return grpc.StatusCode.INVALID_ARGUMENT, str(error)
                arrival = self._book.take(session, event)
                if arrival is Arrival.GAP:
                    return grpc.StatusCode.ABORTED, f"something is missing before event {event.number}: register again"
                if arrival is Arrival.DUPLICATE:
                    again += 1
                    if again == 1:
                        log.info("event %d was sent again: dropped", event.number, extra=session.log_fields)
        except grpc.RpcError:
            log.debug("a worker hung up", extra=session.log_fields)
        finally:
            wake.set()
        return None

    async def _admit(self, request: pb.RegisterWorkerRequest, context: Context) -> tuple[Run, str]:
        """The run that the caller's pod may speak for. Aborts the call otherwise."""
        bearer = _metadata(context).get("authorization", "")
        if not bearer.startswith("Bearer "):
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "no pod token was given")
        token = bearer.removeprefix("Bearer ")
        try:
            async with self._reviews:  # of a thousand calls at once most are turned away when their turn comes
                await self._hold_back(context, self._refused, address(context.peer()))
                await self._count_call(context, hashlib.sha256(token.encode(errors="replace")).hexdigest())
                identity = await self._verifier.verify(token)
        except NotProven as error:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        except KubeError as error:
            log.warning("a worker's token could not be verified: %s", error)
            await self._not_now(context, "the API server does not answer; try again")
        run = self._run_of_pod(identity.pod_uid)
        if run is None and self._is_superseded(identity, request):
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "the run is done with this pod")
        if run is None:
            # The status that names the pod may be a moment behind the pod itself: the worker tries again.
            await self._not_now(context, "no run knows this pod, yet")
        if run.namespace != identity.namespace or run.run_id != request.run_id:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, "this pod may not speak for that run")
        if run.status.fsm_state == State.TERM:
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "the run is over")
        return run, identity.pod_uid

    def _is_superseded(self, identity: PodIdentity, request: pb.RegisterWorkerRequest) -> bool:
        """Whether the run has had this pod and let go of it. A status gets the number of an attempt and the UID of its pod in
        one write: an attempt that it counts already, and whose pod it does not name, is over. The caller is believed
        about the attempt, since nobody but itself is turned away by that."""
        run = self._run_by_id(identity.namespace, request.run_id)
        return run is not None and 0 < request.attempt <= run.status.attempt

    async def _hold_back(self, context: Context, callers: Callers, caller: str) -> None:
        """Turn away who calls too often, before it costs more."""
        if callers.too_often(caller, self._clock()):
            await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls lately: wait a while")

    async def _count_call(self, context: Context, whose: str) -> None:
        await self._hold_back(context, self._called, whose)
        self._called.note(whose, self._clock())

    async def _resume(self, context: Context) -> Session:
        try:
            run_uid, pod_uid = self._tokens.verify(_metadata(context).get(limits.SESSION_METADATA_KEY, ""))
        except NotProven as error:
            await self._hold_back(context, self._refused, address(context.peer()))
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        await self._count_call(context, pod_uid)  # whoever shares its address with a stranger is not judged by that
        session = self._book.find(run_uid, pod_uid)
        run = self._run_by_uid(run_uid)
        if session is None or run is None or run.status.pod_uid != pod_uid:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "register first")
        return session

    async def _refuse(self, context: Context, code: grpc.StatusCode, why: str) -> NoReturn:
        """Count, log, and end the call."""
        self._end(context, code, why)
        await context.abort(code, why)
        raise AssertionError("abort never returns")

    def _end(self, context: Context, code: grpc.StatusCode, why: str) -> None:
        """Count, log, and have the call end so when its handler returns.

        A stream must end this way: `abort` raises one exception in everybody who uses the call, and where the listener gets
        it too, exception and call hold each other for good, ten kilobytes each time.
        """
        self.refusals[code.name] += 1
        if code in COUNTED:
            self._refused.note(address(context.peer()), self._clock())
        # A flood is counted; were each call of it told, it would fill the log as well.
        level = logging.DEBUG if code is grpc.StatusCode.RESOURCE_EXHAUSTED else logging.WARNING
        log.log(level, "refused: %s", why, extra={"peer": context.peer(), "code": code.name})
        context.set_code(code)
        context.set_details(why)

    async def _not_now(self, context: Context, why: str) -> NoReturn:
        """End a call that may succeed later."""
        self.refusals["UNAVAILABLE"] += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, why)
        raise AssertionError("abort never returns")


def _metadata(context: Context) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _desired(session: Session) -> pb.Desired:
    wanted = session.desired
    return pb.Desired(
        generation=session.generation, pause=wanted.pause, stop=wanted.stop, stop_reason=wanted.stop_reason
    )


def attach(gateway: Gateway, server: Any) -> None:
    """Answer calls to this server. Like the generated function, but bytes that are no message reach the gateway as None:
    left to the library, each of them would be a traceback in the log, written by whoever can reach the port."""
    handlers = {
        "RegisterWorker": grpc.unary_unary_rpc_method_handler(
            gateway.RegisterWorker, _read(pb.RegisterWorkerRequest), pb.RegisterWorkerReply.SerializeToString
        ),
        "Attend": grpc.stream_stream_rpc_method_handler(gateway.Attend, _read(pb.Up), pb.Down.SerializeToString),
    }
    service = pb.DESCRIPTOR.services_by_name["SessionService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


def _read(message: Any) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return message.FromString(data)
        except DecodeError:
            return None

    return read


def serve(gateway: Gateway, port: int, credentials: Any) -> tuple[Any, int]:
    """A server that is not started yet, and the port it will listen on."""
    server = grpc.aio.server(options=limits.SERVER_OPTIONS, maximum_concurrent_rpcs=MOST_STREAMS)
    attach(gateway, server)
    return server, server.add_secure_port(f"[::]:{port}", credentials)

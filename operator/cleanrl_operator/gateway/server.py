"""The gRPC face of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from cleanrl_operator.api.status import State
from cleanrl_operator.gateway.identity import NotProven, SessionTokens, TokenReviewer
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
"""The run whose `status.podUID` this is."""


class Gateway(rpc.SessionServiceServicer):
    """Registers workers and keeps their streams. Only the leader serves it."""

    def __init__(
        self,
        book: SessionBook,
        reviewer: TokenReviewer,
        tokens: SessionTokens,
        run_of_pod: FindRun,
        run_by_uid: FindRun,
    ) -> None:
        self._book = book
        self._reviewer = reviewer
        self._tokens = tokens
        self._run_of_pod = run_of_pod
        self._run_by_uid = run_by_uid
        self.refusals: dict[str, int] = {}

    async def RegisterWorker(  # noqa: N802 - the protocol's name
        self, request: pb.RegisterWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.RegisterWorkerReply:
        """See proto/session.proto."""
        run, pod_uid = await self._admit(request, context)
        session, acknowledged = self._book.register(run, pod_uid, request)
        log.info("worker registered", extra={"run": f"{run.namespace}/{run.name}", "attempt": run.status.attempt})
        return pb.RegisterWorkerReply(
            accepted_version=limits.PROTO_VERSION,
            session_token=self._tokens.issue(run.uid, pod_uid),
            acknowledged=acknowledged,
            desired=_desired(session),
            credits=session.credits.credits,
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )

    async def Attend(  # noqa: N802 - the protocol's name
        self, request_iterator: AsyncIterator[pb.Up], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.Down]:
        """See proto/session.proto."""
        session = await self._resume(context)
        wake = asyncio.Event()
        session.changed = wake.set
        listener = asyncio.create_task(self._listen(session, request_iterator, wake))
        said: tuple[Any, int, int] = (None, -1, -1)
        granted = session.credits.credits
        try:
            yield pb.Down(desired=_desired(session))
            said = (session.desired, session.generation, session.ledger.acknowledged)
            while not listener.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), 30)
                wake.clear()
                if self._book.facts_gone(session):
                    await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "the run does not know this pod")
                if (session.desired, session.generation) != said[:2]:
                    yield pb.Down(desired=_desired(session))
                if session.ledger.acknowledged != said[2]:
                    yield pb.Down(acknowledgement=pb.Acknowledgement(number=session.ledger.acknowledged))
                said = (session.desired, session.generation, session.ledger.acknowledged)
                granted = session.credits.grant(limits.INITIAL_CREDITS - session.credits.credits)
                if granted > 0:
                    yield pb.Down(credits=pb.Credits(granted=granted))
            fault = listener.result()
            if fault is not None:
                await context.abort(*fault)
        finally:
            listener.cancel()
            if session.changed == wake.set:
                session.changed = None

    async def _listen(
        self, session: Session, messages: AsyncIterator[pb.Up], wake: asyncio.Event
    ) -> tuple[grpc.StatusCode, str] | None:
        try:
            async for message in messages:
                if message.WhichOneof("body") != "event":
                    continue
                try:
                    event = decode(message.event)
                except BadEvent as error:
                    return grpc.StatusCode.INVALID_ARGUMENT, str(error)
                if self._book.take(session, event) is Arrival.GAP:
                    return grpc.StatusCode.ABORTED, f"something is missing before event {event.number}: register again"
                wake.set()
        except grpc.RpcError:
            log.debug("a worker hung up", extra={"run": "/".join(session.key)})
        finally:
            wake.set()
        return None

    async def _admit(
        self, request: pb.RegisterWorkerRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tuple[Run, str]:
        """The run that the caller's pod may speak for. Aborts the call otherwise."""
        bearer = _metadata(context).get("authorization", "")
        if not bearer.startswith("Bearer "):
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "no pod token was given")
        try:
            identity = await self._reviewer.verify(bearer.removeprefix("Bearer "))
        except NotProven as error:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        except KubeError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the API server does not answer; try again")
        run = self._run_of_pod(identity.pod_uid)
        if run is None:
            # The status that names the pod may be a moment behind the pod itself: the worker tries again.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no run knows this pod, yet")
            raise AssertionError("abort returns never")
        if run.namespace != identity.namespace or run.run_id != request.run_id:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, "this pod may not speak for that run")
        if run.status.fsm_state == State.TERM:
            await self._refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "the run is over")
        return run, identity.pod_uid

    async def _resume(self, context: grpc.aio.ServicerContext[Any, Any]) -> Session:
        try:
            run_uid, pod_uid = self._tokens.verify(_metadata(context).get(limits.SESSION_METADATA_KEY, ""))
        except NotProven as error:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        session = self._book.find(run_uid, pod_uid)
        run = self._run_by_uid(run_uid)
        if session is None or run is None or run.status.pod_uid != pod_uid:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, "register first")
        assert session is not None
        return session

    async def _refuse(self, context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, why: str) -> None:
        self.refusals[why] = self.refusals.get(why, 0) + 1
        log.warning("refused: %s", why, extra={"peer": context.peer(), "code": code.name})
        await context.abort(code, why)


def _metadata(context: grpc.aio.ServicerContext[Any, Any]) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _desired(session: Session) -> pb.Desired:
    wanted = session.desired
    return pb.Desired(
        generation=session.generation, pause=wanted.pause, stop=wanted.stop, stop_reason=wanted.stop_reason
    )


def serve(gateway: Gateway, port: int, credentials: Any) -> tuple[Any, int]:
    """A server that is not started yet, and the port it will listen on."""
    server = grpc.aio.server(options=limits.SERVER_OPTIONS)
    rpc.add_SessionServiceServicer_to_server(gateway, server)  # type: ignore[no-untyped-call]  # generated
    address = f"[::]:{port}"
    bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    return server, bound

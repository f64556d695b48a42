"""What each worker has said, as facts for the state machine, and what it should be told.

One `Session` per run, for the pod that `status.podUID` names. All of it lives in the event loop's thread. Lifecycle events and
checkpoints are acknowledged only after the status that holds them was written; everything else on arrival.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from cleanrl_operator.facts import SessionFacts
from cleanrl_operator.fsm import Desired
from cleanrl_operator.run import Run
from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.credits import CreditBalance
from cleanrl_protocol.events import CHECKPOINT_SAVED, HEARTBEAT, Received, epoch_micros
from cleanrl_protocol.ledger import Arrival, Ledger

HEARTBEAT_SECONDS = 30
TAKEOVER_GRACE = limits.LONGEST_ABSENCE_SECONDS + 30
"""After a restart of the gateway nobody is late for this long: a healthy worker is back by then."""
RETURN_TAG = "charts/episodic_return"


@dataclass
class Session:
    """The live side of one run's worker."""

    key: tuple[str, str]
    run_uid: str
    pod_uid: str
    attempt: int
    facts: SessionFacts
    ledger: Ledger
    heard: float
    credits: CreditBalance = field(default_factory=lambda: CreditBalance(limits.INITIAL_CREDITS))
    desired: Desired = field(default_factory=Desired)
    generation: int = 0
    changed: Callable[[], None] | None = None
    """Wakes the open stream, if there is one, to say what has changed."""


class SessionBook:
    """All sessions, keyed by the run's UID."""

    def __init__(self, notify: Callable[[tuple[str, str]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._notify = notify
        self._clock = clock
        self._serving_since = clock()
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def sessions(self) -> list[Session]:
        """All sessions that are known."""
        return list(self._sessions.values())

    def register(self, run: Run, pod_uid: str, request: pb.RegisterWorkerRequest) -> tuple[Session, int]:
        """A worker (re)connects: its session, and the number after which it has to send."""
        known = run.status.session
        session = self._sessions.get(run.uid)
        if session is None or session.pod_uid != pod_uid:
            ledger = Ledger(acknowledged=known.last_event if known else 0, epoch=known.log_epoch if known else 0)
            registered = known.registered_at if known and known.registered_at else datetime.now(UTC)
            session = Session(
                key=run.key,
                run_uid=run.uid,
                pod_uid=pod_uid,
                attempt=run.status.attempt,
                facts=SessionFacts(
                    registered_at=registered,
                    worker_id=request.worker_id[:256],
                    supports_pause=request.supports_pause,
                    supports_checkpoint=request.supports_checkpoint,
                    protocol=limits.PROTO_VERSION,
                ),
                ledger=ledger,
                heard=self._clock(),
            )
            self._sessions[run.uid] = session
        acknowledged = session.ledger.register(request.last_number, request.log_epoch)
        session.heard = self._clock()
        session.credits.reset(limits.INITIAL_CREDITS)
        self._note(session, last_event=acknowledged)
        self._notify(session.key)
        return session, acknowledged

    def take(self, session: Session, event: Received) -> Arrival:
        """One event of a worker."""
        session.heard = self._clock()
        hold = not event.is_scalars and event.name != HEARTBEAT
        if event.is_scalars and not session.credits.spend():
            return Arrival.DUPLICATE  # sent without a credit: dropped
        arrival = session.ledger.receive(
            event.number, event.after, epoch=epoch_micros(event.timestamp), scalars=event.is_scalars, hold=hold
        )
        if arrival is Arrival.NEW:
            self._learn(session, event)
            if hold:
                self._notify(session.key)
        return arrival

    def _learn(self, session: Session, event: Received) -> None:
        moment = datetime.fromtimestamp(min(event.timestamp, 2**40), UTC)
        payload = event.payload
        self._note(session, last_event=session.ledger.received)
        if event.name == "run_started" and payload.get("attempt", session.attempt) == session.attempt:
            self._note(session, started_at=moment, paused=False)
        elif event.name == "run_paused":
            self._note(session, paused=True)
        elif event.name == "run_resumed":
            self._note(session, paused=False)
        elif event.name == CHECKPOINT_SAVED and payload["path"]:
            self._note(
                session,
                checkpoint_path=payload["path"],
                checkpoint_step=payload["step"],
                checkpoint_sha256=payload["sha256"] if len(payload["sha256"]) == 64 else None,
                checkpoint_at=moment,
            )
        elif event.is_scalars:
            self._note(
                session,
                step=payload["step"],
                steps_per_second=round(payload["sps"], 1) or None,
                episodic_return=payload["values"].get(RETURN_TAG, session.facts.episodic_return),
            )

    def _note(self, session: Session, **fields: object) -> None:
        session.facts = replace(session.facts, log_epoch=session.ledger.epoch, **fields)  # type: ignore[arg-type]

    # -- what reconcile asks for

    def facts(self, run: Run) -> SessionFacts | None:
        """What the worker of the run's current pod has said, or None."""
        session = self._sessions.get(run.uid)
        if session is None or session.pod_uid != run.status.pod_uid:
            return None
        return replace(session.facts, late_seconds=self._late(session))

    def written(self, run: Run, last_event: int) -> None:
        """The status holds everything up to this event: acknowledge it."""
        session = self._sessions.get(run.uid)
        if session is None:
            return
        before = session.ledger.acknowledged
        if session.ledger.commit(last_event) != before and session.changed is not None:
            session.changed()

    def desire(self, run: Run, desired: Desired) -> None:
        """Tell the worker what it should do, if that has changed; forget workers of runs that need none."""
        session = self._sessions.get(run.uid)
        if session is None:
            return
        if run.status.pod_uid != session.pod_uid and not desired.stop:
            return
        if desired != session.desired or run.generation != session.generation:
            session.desired, session.generation = desired, run.generation
            if session.changed is not None:
                session.changed()

    def find(self, run_uid: str, pod_uid: str) -> Session | None:
        """The session of this pod of this run, if it has registered here."""
        session = self._sessions.get(run_uid)
        return session if session is not None and session.pod_uid == pod_uid else None

    def facts_gone(self, session: Session) -> bool:
        """Whether the session was replaced or forgotten."""
        return self._sessions.get(session.run_uid) is not session

    def forget(self, run_uid: str) -> None:
        """The run is gone or over."""
        session = self._sessions.pop(run_uid, None)
        if session is not None and session.changed is not None:
            session.changed()

    def _late(self, session: Session) -> float:
        """How long past its time the next heartbeat is, counted only while this gateway could have heard it."""
        now = self._clock()
        if now - self._serving_since < TAKEOVER_GRACE:
            return 0.0
        return max(0.0, now - max(session.heard, self._serving_since) - HEARTBEAT_SECONDS)

"""What each worker has said, as facts for the state machine, and what it should be told.

One `Session` per run, for the pod that `status.podUID` names. All of it lives in the event loop's thread. Lifecycle events and
checkpoints are acknowledged only after the status that holds them was written; everything else on arrival.
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cleanrl_operator import conditions
from cleanrl_operator.api.status import MAX_STAGE, State, Status
from cleanrl_operator.decision import Desired
from cleanrl_operator.facts import SessionFacts
from cleanrl_operator.progress import Pace
from cleanrl_operator.run import Run
from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.credits import CreditRefill
from cleanrl_protocol.events import CHECKPOINT_SAVED, HEARTBEAT, LATEST, Received, epoch_micros
from cleanrl_protocol.ledger import Arrival, Ledger
from cleanrl_protocol.record import MAX_URL, is_inside

HEARTBEAT_SECONDS = 30
TAKEOVER_GRACE = limits.LONGEST_ABSENCE_SECONDS + 30
"""After a restart of the gateway nobody is late for this long: a healthy worker is back by then."""
STAGE_STARTED = "stage_started"
CHECKPOINT_FAILED = "checkpoint_failed"
MAX_FAILURE = 1000
WANDB_LINKED = "wandb_linked"
RUN_COMPLETED = "run_completed"
DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_SUMMARY = 3000
RETURN_TAG = "charts/episodic_return"
SCALARS_PER_SECOND = 2.0
"""How fast a worker earns credits; it has headline figures about once a second."""
MOST_STEPS = 10**15
"""More are nobody's plan: what is reckoned with them has to fit into a status."""


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
    credits: CreditRefill = field(default_factory=lambda: CreditRefill(SCALARS_PER_SECOND))
    desired: Desired = field(default_factory=Desired)
    generation: int = 0
    registration: int = 0
    """Counts handshakes: a stream of an earlier one has no say any more."""
    held: int = 0
    """The newest event that has to be stored before it is acknowledged."""
    pace: Pace | None = None
    """When the worker was asked to report; None when it was not."""
    pace_is_new: bool = False
    """It has to be told."""
    figures: dict[str, float] = field(default_factory=dict)
    """The newest headline figures."""
    changed: Callable[[], None] | None = None
    """Wakes the open stream, if there is one, to say what has changed."""

    @property
    def log_fields(self) -> dict[str, object]:
        """What every log line about this session carries."""
        return {"run": "/".join(self.key), "attempt": self.attempt}


class SessionBook:
    """All sessions, keyed by the run's UID."""

    def __init__(
        self,
        notify: Callable[[tuple[str, str]], None],
        clock: Callable[[], float] = time.monotonic,
        talked: Callable[[tuple[str, str], float], Pace | None] = lambda _key, _every: None,
    ) -> None:
        """`notify` hears of what has to be stored, `talked` of new figures and how often they come: it may say another pace."""
        self._notify = notify
        self._talked = talked
        self._clock = clock
        self._serving_since = math.inf
        self._sessions: dict[str, Session] = {}
        self.arrivals: Counter[str] = Counter()
        """Events by what became of them: new, duplicate, gap, overspent."""

    def open(self) -> None:
        """The gateway listens from now on. A standby may have waited for days before: nobody could have been heard in those."""
        self._serving_since = self._clock()

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, run_uid: str) -> bool:
        return run_uid in self._sessions

    def sessions(self) -> list[Session]:
        """All sessions that are known."""
        return list(self._sessions.values())

    def register(self, run: Run, pod_uid: str, request: pb.RegisterWorkerRequest) -> tuple[Session, int]:
        """A worker (re)connects: its session, and the number after which it has to send."""
        session = self._sessions.get(run.uid)
        if session is None or session.pod_uid != pod_uid:
            self.forget(run.uid)
            session = self._sessions[run.uid] = self._new(run, pod_uid, request)
        session.registration += 1
        session.pace, session.pace_is_new = None, False
        if session.changed is not None:
            session.changed()  # a stream of the last registration ends
        epoch = request.log_epoch if request.log_epoch < 2**63 else 0  # no more fits into a status
        acknowledged = session.ledger.register(request.last_number, epoch)
        session.heard = self._clock()
        session.held = acknowledged
        session.credits.balance.reset(limits.INITIAL_CREDITS)
        self._note(session, last_event=acknowledged)
        self._notify(session.key)
        return session, acknowledged

    def _new(self, run: Run, pod_uid: str, request: pb.RegisterWorkerRequest) -> Session:
        """A session that goes on where the run's status stands: after a restart nothing is sent again that is in there."""
        known, status = run.status.session, run.status
        now = datetime.now(UTC)
        return Session(
            key=run.key,
            run_uid=run.uid,
            pod_uid=pod_uid,
            attempt=status.attempt,
            facts=SessionFacts(
                registered_at=known.registered_at if known and known.registered_at else now,
                worker_id=request.worker_id[:256],
                supports_pause=request.supports_pause,
                supports_checkpoint=request.supports_checkpoint,
                protocol=limits.PROTO_VERSION,
                started_at=status.exec_started_at if status.fsm_state in (State.EXEC, State.PAUSE) else None,
                paused=status.fsm_state == State.PAUSE,
                stage=status.progress.stage if status.progress is not None else None,
                stages_done=status.progress.percent / 100 if status.progress is not None else 0.0,
                checkpoint_failure=conditions.message_of(status, conditions.CHECKPOINT_FAILED)
                if known and known.registered_at
                else "",
            ),
            ledger=Ledger(acknowledged=known.last_event if known else 0, epoch=known.log_epoch if known else 0),
            heard=self._clock(),
            desired=Desired.of(run.spec, status, now),
            generation=run.generation,
        )

    def take(self, session: Session, event: Received) -> Arrival:
        """One event of a worker."""
        session.heard = self._clock()
        hold = not event.is_scalars and event.name != HEARTBEAT
        if event.is_scalars and not session.credits.balance.spend():
            self.arrivals["overspent"] += 1
            return Arrival.DUPLICATE  # sent without a credit: dropped
        arrival = session.ledger.receive(
            event.number, event.after, epoch=epoch_micros(event.timestamp), scalars=event.is_scalars, hold=hold
        )
        self.arrivals[arrival.value] += 1
        if arrival is Arrival.NEW:
            self._learn(session, event)
            if hold:
                session.held = event.number
                self._notify(session.key)
            elif event.is_scalars:
                pace = self._talked(session.key, session.pace.every if session.pace is not None else 0.0)
                if pace is not None:
                    session.pace, session.pace_is_new = pace, True
                    if session.changed is not None:
                        session.changed()
        return arrival

    def _learn(self, session: Session, event: Received) -> None:
        moment = min(datetime.fromtimestamp(min(event.timestamp, LATEST), UTC), datetime.now(UTC))
        payload = event.payload
        learnt: dict[str, object] = {}
        if event.name == "run_started" and payload.get("attempt", session.attempt) == session.attempt:
            learnt = {"started_at": moment, "paused": False}
        elif event.name == "run_paused":
            learnt = {"paused": True}
        elif event.name == "run_resumed":
            learnt = {"paused": False}
        elif event.name == WANDB_LINKED:
            learnt = {"wandb_url": url_of(payload)}
        elif event.name == STAGE_STARTED:
            learnt = {"stage": stage_of(payload), "stages_done": stages_done(payload)}
        elif event.name == RUN_COMPLETED and payload.get("dry_run"):
            learnt = {"summary": summary_of(payload.get("summary"))}
        elif event.name == CHECKPOINT_SAVED and is_inside(payload["path"]):
            learnt = {
                "checkpoint_path": payload["path"],
                "checkpoint_step": payload["step"],
                "checkpoint_sha256": payload["sha256"] if DIGEST.fullmatch(payload["sha256"]) else None,
                "checkpoint_at": moment,
                "checkpoint_failure": "",
            }
        elif event.name == CHECKPOINT_FAILED:
            learnt = {"checkpoint_failure": _printable(payload.get("message"))[:MAX_FAILURE] or "No word why."}
        elif event.is_scalars:
            total = min(payload.get("total", 0), MOST_STEPS)
            session.figures = {**payload["values"], "step": payload["step"], "sps": payload["sps"]}
            session.figures |= {"total": total} if total else {}
            learnt = {
                "step": payload["step"],
                "total": total,
                "steps_per_second": max(0.0, round(payload["sps"], 1)) or None,
                "episodic_return": payload["values"].get(RETURN_TAG, session.facts.episodic_return),
            }
        self._note(session, last_event=session.ledger.received, **learnt)

    def _note(self, session: Session, **fields: object) -> None:
        session.facts = replace(session.facts, log_epoch=session.ledger.epoch, **fields)  # type: ignore[arg-type]

    # -- what reconcile asks for

    def facts(self, run: Run) -> SessionFacts | None:
        """What the worker of the run's current pod has said, or None."""
        session = self._sessions.get(run.uid)
        if session is None or session.pod_uid != run.status.pod_uid:
            return None
        return replace(session.facts, late_seconds=self._late(session.heard))

    def unheard(self, run: Run) -> float:
        """How late the worker of the run's current pod is, when another gateway has heard it and this one has not."""
        pod_uid, known = run.status.pod_uid, run.status.session
        if pod_uid is None or known is None or known.registered_at is None or self.find(run.uid, pod_uid) is not None:
            return 0.0
        return self._late(self._serving_since)

    def awaits(self, run: Run) -> bool:
        """Whether the worker waits for something to be stored that the run's status does not hold yet."""
        session = self._sessions.get(run.uid)
        stored = run.status.session.last_event if run.status.session is not None else 0
        return session is not None and session.held > stored

    def written(self, run: Run, status: Status) -> None:
        """The API server holds this status: acknowledge what is in it, and let go of a worker that it has no use for."""
        session = self._sessions.get(run.uid)
        if session is None:
            return
        if status.fsm_state == State.TERM or status.pod_uid != session.pod_uid:
            self.forget(run.uid)
        elif status.session is not None:
            waited = session.held > session.ledger.acknowledged
            session.ledger.commit(status.session.last_event)
            if waited and session.changed is not None:  # figures have time until the stream looks by itself
                session.changed()

    def desire(self, run: Run, desired: Desired) -> None:
        """Tell the worker what it should do, if that has changed."""
        session = self._sessions.get(run.uid)
        if session is None or (desired == session.desired and run.generation == session.generation):
            return
        session.desired, session.generation = desired, run.generation
        if session.changed is not None:
            session.changed()

    def find(self, run_uid: str, pod_uid: str) -> Session | None:
        """The session of this pod of this run, if it has registered here."""
        session = self._sessions.get(run_uid)
        return session if session is not None and session.pod_uid == pod_uid else None

    def is_over(self, session: Session) -> bool:
        """Whether the session was replaced or forgotten."""
        return self._sessions.get(session.run_uid) is not session

    def forget(self, run_uid: str) -> None:
        """The run is gone or over."""
        session = self._sessions.pop(run_uid, None)
        if session is not None and session.changed is not None:
            session.changed()

    def _late(self, heard: float) -> float:
        """How long past its time the next heartbeat is, counted only while this gateway could have heard it."""
        now = self._clock()
        if now - self._serving_since < TAKEOVER_GRACE:
            return 0.0
        return max(0.0, now - max(heard, self._serving_since) - HEARTBEAT_SECONDS)


def url_of(payload: Mapping[str, Any]) -> str | None:
    """An address that a status may show: printable, and without a user or password in it."""
    url = str(payload.get("url") or "")
    return url if len(url) <= MAX_URL and re.fullmatch(r"https?://[!-?A-~]+", url) else None


def stage_of(payload: Mapping[str, Any]) -> str | None:
    """A stage as a status shows it, for example `2/3 BabyAI-GoToObj-v0`; None when the worker names none."""
    name, place = _printable(payload.get("name")), _place(payload)
    text = f"{place[0] + 1}/{place[1]} {name}" if place is not None else name
    return text.strip()[:MAX_STAGE] or None


def stages_done(payload: Mapping[str, Any]) -> float:
    """The share of all stages that are over when this one starts; 0 when the worker does not count them."""
    index, count = _place(payload) or (0, 0)
    return min(1.0, index / count) if count else 0.0


def _place(payload: Mapping[str, Any]) -> tuple[int, int] | None:
    """A stage's index, from 0, and the count of all."""
    index, count = payload.get("index"), payload.get("count")
    if isinstance(index, int) and isinstance(count, int) and 0 <= index < 10**6 and 0 <= count < 10**6:
        return index, count
    return None


def summary_of(found: Any) -> str:
    """What a dry run would run, in one sentence; empty when the worker does not say."""
    if not isinstance(found, Mapping):
        return _printable(found)[:MAX_SUMMARY]
    config, command = found.get("config"), found.get("command")
    asked = config if isinstance(config, Mapping) else {}
    words = [str(word) for word in command] if isinstance(command, list) else []
    about = f"{asked.get('algo')} on {asked.get('env_id')}, seed {asked.get('seed')}, mode {found.get('mode')}"
    steps = asked.get("total_timesteps")
    for_steps = f", {steps} steps" if steps else ""
    sets = found.get("requirements")
    needs = f" It needs {', '.join(map(str, sets))}." if isinstance(sets, list) and sets else ""
    return _printable(f"Would run {about}{for_steps}: {shlex.join(words)}.{needs}")[:MAX_SUMMARY]


def _printable(value: Any) -> str:
    return "".join(letter for letter in str(value or "") if letter.isprintable()).strip()

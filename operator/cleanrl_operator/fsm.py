"""The state machine: (spec, previous status, facts, now) -> next status, effects, events. Pure and total.

Facts are levels, not edges: the same facts always lead to the same status, however many times and after however many
restarts they are judged. One call walks as far as the facts allow, so a worker that was quicker than the watch still
leaves a complete list of transitions. A status in TERM is final.

The order of judgement is the meaning of the table in docs/concepts/state-machine.md: what has ended comes first, then what
the user wants ended, then what has begun, then what is waited for, then what is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from cleanrl_operator import conditions
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import (
    MAX_TRANSITIONS,
    CheckpointStatus,
    Outcome,
    ProgressStatus,
    SessionStatus,
    State,
    Status,
    Transition,
)
from cleanrl_operator.facts import EndReason, Facts, PodSituation, RefusalKind, SessionFacts, WorkerEnd
from cleanrl_operator.policies import deadline, gpu, retry, stopping, ttl
from cleanrl_operator.policies.stopping import Intent

FORWARD = (State.INIT, State.HSHK, State.RDY, State.EXEC)
IMAGE_PATIENCE = timedelta(minutes=5)
HEARTBEAT_LATE = timedelta(seconds=90)
QUOTA_RETRY = timedelta(seconds=30)
LIVE_PODS = (PodSituation.GATED, PodSituation.PENDING, PodSituation.IMAGE_ERROR, PodSituation.RUNNING)


@dataclass(frozen=True)
class CreatePod:
    """POST the pod of this attempt. On success its UID comes back as a fact, on refusal the refusal does."""

    attempt: int


@dataclass(frozen=True)
class DeletePod:
    """Delete exactly this pod, with its own grace period."""

    uid: str


@dataclass(frozen=True)
class CleanUp:
    """Remove pod, Service and TensorBoard of a finished run."""


Effect = CreatePod | DeletePod | CleanUp


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event, emitted after the status write that it speaks of."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Desired:
    """What the worker should do; sent down its session."""

    pause: bool = False
    stop: bool = False
    stop_reason: str = ""
    """cancel, suspend or deadline, when stop is set."""


@dataclass(frozen=True)
class Decision:
    """The result of one judgement."""

    status: Status
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    desired: Desired = Desired()
    wake_at: datetime | None = None
    """When time alone will change the answer."""


def decide(spec: Spec, previous: Status, facts: Facts, now: datetime, *, generation: int, run_id: str) -> Decision:
    """Judge a run. `previous` is the status as it was read, empty for a run that was never seen."""
    draft = _Draft(spec, previous, facts, now)
    if previous.fsm_state == State.TERM:
        draft.after_the_end()
    else:
        draft.set(run_id=run_id)
        draft.accept()
        draft.absorb()
        draft.judge_end()
        draft.judge_stop()
        draft.walk_forward()
        draft.judge_waiting()
        draft.judge_fault()
        draft.keep_time()
    return draft.decision(generation)


@dataclass
class _Draft:
    """A status in the making. Each method judges one thing and may move the state; after TERM none does anything."""

    spec: Spec
    status: Status
    facts: Facts
    now: datetime
    effects: list[Effect] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    wakes: list[datetime] = field(default_factory=list)
    notices: dict[str, tuple[bool, str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        last = self.status.transitions[-1].at if self.status.transitions else None
        if last is not None and last > self.now:
            self.now = last  # a clock that jumped back must not make time run backwards in the status

    @property
    def state(self) -> State:
        assert self.status.fsm_state is not None
        return State(self.status.fsm_state)  # a status that was read holds the plain text

    def set(self, **changes: object) -> None:
        self.status = self.status.model_copy(update=changes)

    # -- the steps of a judgement, in their order

    def accept(self) -> None:
        if self.status.fsm_state is not None:
            return
        self.set(started_at=self.now)
        if self.spec.suspend and not self.spec.cancel:
            self.go(State.PAUSE, "Suspended", "Created suspended; lift suspend to start it.")
        else:
            self.go(State.INIT, "Accepted", "The run was accepted.")

    def absorb(self) -> None:
        """Take over what needs no judgement: identity of the pod, session, progress, checkpoint."""
        pod = self.facts.pod
        if pod.uid is not None and self.status.pod_uid is None and self.state is State.INIT:
            self.set(pod_uid=pod.uid, attempt=self.status.attempt + 1, stop_requested_at=None)
            self.forget_worker()
        if self.status.pod_uid is None:
            return
        if pod.node_name is not None:
            self.set(node_name=pod.node_name)
        session = self.facts.session
        if session is None:
            return
        if session.registered_at is not None:
            self.set(
                session=SessionStatus(
                    worker_id=session.worker_id or None,
                    registered_at=session.registered_at,
                    last_event=session.last_event,
                    log_epoch=session.log_epoch,
                    protocol=session.protocol or None,
                    supports_pause=session.supports_pause,
                    supports_checkpoint=session.supports_checkpoint,
                )
            )
        self.absorb_progress(session)
        if session.checkpoint_path is not None:
            self.take_checkpoint(
                session.checkpoint_path, session.checkpoint_step, session.checkpoint_sha256, session.checkpoint_at
            )
        if timedelta(seconds=session.late_seconds) > HEARTBEAT_LATE:
            text = f"The worker's heartbeat is {session.late_seconds:.0f} s late; the run is not judged by that alone."
            self.notices["HeartbeatLate"] = (True, "HeartbeatLate", text)

    def absorb_progress(self, session: SessionFacts) -> None:
        if session.step == 0 and session.steps_per_second is None:
            return
        total = self.spec.total_timesteps
        rate = session.steps_per_second
        left = max(0, total - session.step) if total else None
        self.set(
            progress=ProgressStatus(
                step=session.step,
                percent=round(100 * session.step / total, 1) if total else 0,
                steps_per_second=rate,
                eta_seconds=round(left / rate) if rate and left is not None else None,
                episodic_return=session.episodic_return,
                updated_at=self.now,
            )
        )
        if session.step > self.status.failed_at_step and self.status.retries:
            self.set(retries=0)

    def judge_end(self) -> None:
        """The pod has ended, or is gone, or was never ours."""
        pod = self.facts.pod
        if self.state is State.TERM:
            return
        if pod.situation is PodSituation.FOREIGN and self.status.pod_uid is None and self.state is State.INIT:
            self.fault(EndReason.NAME_TAKEN, "A pod of the run's name exists and belongs to somebody else.")
            return
        if self.status.pod_uid is None:
            return
        if pod.situation is PodSituation.ENDED and pod.end is not None:
            self.pod_ended(pod.end)
        elif pod.situation is PodSituation.GONE:
            self.pod_gone()

    def pod_ended(self, end: WorkerEnd) -> None:
        self.fill_from_record(end)
        if end.outcome == "completed":
            self.walk_to(State.EXEC, end.started_at)
            self.finish(Outcome.COMPLETED, "Completed", "The run did all its steps.")
            return
        if end.outcome == "deadline_exceeded":
            self.finish(Outcome.DEADLINE_EXCEEDED, "DeadlineExceeded", "The wall clock limit was reached.")
            return
        purpose = stopping.intent(self.spec, self.status, self.now)
        failed = end.outcome == "failed" or (end.outcome is None and end.exit_code not in (0, 137, 143))
        if purpose is Intent.SUSPEND and not failed:
            confirmed = end.outcome is not None
            self.suspended(confirmed)
        elif purpose in (Intent.CANCEL, Intent.DEADLINE):
            self.stopped_for_good(purpose)
        else:
            reason, message = classify(end, self.facts.pod.disrupted)
            self.fault(reason, message)

    def pod_gone(self) -> None:
        purpose = stopping.intent(self.spec, self.status, self.now)
        if self.status.reason == EndReason.NO_GPU and self.state is State.INIT:
            self.release_pod()
        elif purpose is Intent.SUSPEND:
            self.suspended(confirmed=False)
        elif purpose is not None:
            self.stopped_for_good(purpose)
        else:
            reason = self.facts.pod.disrupted or EndReason.POD_LOST
            self.fault(reason, "The pod is gone and left no record; the next attempt reads what is on the claim.")

    def fill_from_record(self, end: WorkerEnd) -> None:
        if end.registered_at is not None:
            self.walk_to(State.RDY, end.registered_at)
        if end.started_at is not None:
            self.walk_to(State.EXEC, end.started_at)
        if end.checkpoint_path is not None:
            self.take_checkpoint(end.checkpoint_path, end.checkpoint_step, end.checkpoint_sha256, end.finished_at)
        if end.step > self.status.failed_at_step and self.status.retries:
            self.set(retries=0)

    def judge_stop(self) -> None:
        """The user, or the clock, wants the run stopped."""
        if self.state is State.TERM:
            return
        purpose = stopping.intent(self.spec, self.status, self.now)
        if purpose is None:
            if self.status.stop_requested_at is not None and self.status.pod_uid is None:
                self.set(stop_requested_at=None)
            return
        if self.status.pod_uid is None:
            if purpose is Intent.SUSPEND:
                if self.state is not State.PAUSE:
                    self.go(State.PAUSE, "Suspended", "Suspended before it had a pod; nothing was lost.")
            else:
                self.stopped_for_good(purpose)
            return
        self.ask_to_stop(purpose)

    def ask_to_stop(self, purpose: Intent) -> None:
        """Ask over the session where there is one; delete the pod where there is none, or after the grace period."""
        if self.status.stop_requested_at is None:
            self.set(stop_requested_at=self.now)
            self.explain(purpose.value, "Asked to checkpoint and stop.")
        assert self.status.stop_requested_at is not None
        give_up = self.status.stop_requested_at + stopping.GRACE
        registered = self.status.session is not None and self.status.session.registered_at is not None
        can_hear = registered and self.state in (State.RDY, State.EXEC, State.PAUSE)
        if not can_hear or self.now >= give_up:
            self.delete_pod()
        else:
            self.wakes.append(give_up)

    def walk_forward(self) -> None:
        """What has begun: the container, the registration, the run; pause and its end."""
        if self.status.pod_uid is None or self.state in (State.TERM, State.FAULT):
            return
        pod, session = self.facts.pod, self.facts.session
        if pod.situation is PodSituation.RUNNING:
            self.walk_to(State.HSHK, pod.since)
        if session is not None and session.registered_at is not None:
            self.walk_to(State.RDY, session.registered_at)
            if session.started_at is not None:
                self.walk_to(State.EXEC, session.started_at)
        if session is not None and self.state is State.EXEC and session.paused and self.spec.pause:
            self.go(State.PAUSE, "Paused", "Paused by the user; the pod is kept.")
        elif session is not None and self.state is State.PAUSE and not session.paused:
            self.go(State.EXEC, "Resumed", "Stepping again.")

    def judge_waiting(self) -> None:
        """What is waited for, and for how long still."""
        if self.state is not State.INIT or self.status.stop_requested_at is not None:
            return
        pod = self.facts.pod
        if self.status.pod_uid is None:
            self.judge_creation()
        elif pod.situation is PodSituation.GATED:
            self.explain("Queued", pod.message or "Held by a scheduling gate until its queue admits it.")
        elif pod.situation is PodSituation.IMAGE_ERROR:
            self.judge_patience(pod.since, IMAGE_PATIENCE, EndReason.IMAGE, pod.message)
        elif pod.situation is PodSituation.PENDING:
            self.judge_pending()

    def judge_creation(self) -> None:
        refusal = self.facts.refusal
        if self.facts.config_error:
            self.fault(EndReason.BAD_CONFIG, self.facts.config_error)
        elif refusal is None:
            self.effects.append(CreatePod(self.status.attempt + 1))
        elif refusal.kind is RefusalKind.POLICY:
            self.fault(EndReason.REFUSED, refusal.message)
        elif refusal.kind is RefusalKind.QUOTA:
            self.explain(EndReason.QUOTA, refusal.message)
            self.wakes.append(self.now + QUOTA_RETRY)

    def judge_pending(self) -> None:
        pod = self.facts.pod
        over = deadline.pending_over_at(self.spec, pod.since)
        if over is not None and over <= self.now:
            self.go(State.FAULT, "PendingDeadlineExceeded", pod.unschedulable or "The pod did not start in time.")
            self.delete_pod()
            self.finish(Outcome.FAILED, "PendingDeadlineExceeded", self.status.message or "")
            return
        fallback = gpu.fallback_at(self.spec, self.status, pod)
        if fallback is not None and fallback <= self.now:
            text = f"No GPU after {self.spec.resources.gpus.fallback_after_seconds} s; the run goes on with the CPU."
            self.set(gpu_fallback=True)
            self.explain(EndReason.NO_GPU, text)
            self.events.append(Event("GPUFallback", text, warning=True))
            self.delete_pod()
            return
        if self.status.reason == EndReason.NO_GPU and self.status.gpu_fallback and pod.deleting:
            return
        if pod.unschedulable:
            self.explain("Unschedulable", pod.unschedulable)
        else:
            self.explain("Pending", pod.message or "The pod waits to start.")
        self.wakes.extend(at for at in (over, fallback) if at is not None)

    def judge_patience(self, since: datetime | None, patience: timedelta, reason: EndReason, message: str) -> None:
        until = (since or self.now) + patience
        if until <= self.now:
            self.fault(reason, message)
        else:
            self.explain(reason, message)
            self.wakes.append(until)

    def judge_fault(self) -> None:
        """Silence with a second witness; then retry, wait, or end."""
        self.judge_silence()
        if self.state is not State.FAULT:
            return
        if self.spec.suspend and self.status.pod_uid is None:
            self.go(State.PAUSE, "Suspended", "Suspended after a failure; lifting suspend tries again.")
            return
        if self.status.pod_uid is not None:
            self.delete_pod()  # no new attempt before the old pod is gone or terminal
            return
        if self.status.retry_at is None:
            self.finish(Outcome.FAILED, self.status.reason or "Failed", self.status.message or "")
        elif self.status.retry_at <= self.now:
            self.set(retry_at=None)
            self.go(State.INIT, "Retrying", f"Attempt {self.status.attempt + 1} goes on from the last checkpoint.")
            self.judge_waiting()
        else:
            self.wakes.append(self.status.retry_at)

    def judge_silence(self) -> None:
        session = self.facts.session
        silent = session is not None and timedelta(seconds=session.late_seconds) > HEARTBEAT_LATE
        live = self.status.pod_uid is not None and self.state not in (State.TERM, State.FAULT)
        if live and silent and self.facts.node_ready is False:
            self.fault(EndReason.NODE_LOST, "The worker is silent and its node is not ready.", release=False)
        if self.state is State.PAUSE and self.status.pod_uid is None and not self.spec.suspend:
            self.go(State.INIT, "Unsuspended", f"Attempt {self.status.attempt + 1} goes on from the last checkpoint.")
            self.judge_waiting()

    def keep_time(self) -> None:
        """The wall clock runs in EXEC, and in PAUSE while the pod is kept."""
        runs = self.state is State.EXEC or (self.state is State.PAUSE and self.status.pod_uid is not None)
        if runs and self.status.wallclock_since is None:
            self.set(wallclock_since=self.now)
        elif not runs and self.status.wallclock_since is not None:
            used = deadline.wallclock_used(self.status, self.now).total_seconds()
            self.set(wallclock_seconds=round(used, 3), wallclock_since=None)
        if runs:
            over = deadline.wallclock_over_at(self.spec, self.status, self.now)
            if over is not None:
                self.wakes.append(over)

    def after_the_end(self) -> None:
        """TERM is final. Only what is left of the run in the cluster may still go."""
        if self.status.pod_uid is not None and self.facts.pod.situation in LIVE_PODS:
            self.delete_pod()
        gone = ttl.cleanup_at(self.spec, self.status)
        if gone is not None and gone <= self.now:
            self.effects.append(CleanUp())
        elif gone is not None:
            self.wakes.append(gone)

    # -- moves

    def go(self, to: State, reason: str, message: str, at: datetime | None = None) -> None:
        """One step of the machine, recorded. Times never run backwards, and only the last steps are kept."""
        history = list(self.status.transitions or [])
        moment = min(at, self.now) if at is not None else self.now
        if history and moment < history[-1].at:
            moment = history[-1].at
        before = self.status.fsm_state
        history.append(Transition(from_=before, to=to, at=moment, attempt=self.status.attempt, reason=reason))
        self.set(fsm_state=to, reason=reason, message=message, transitions=history[-MAX_TRANSITIONS:])
        if to is State.EXEC and self.status.exec_started_at is None:
            self.set(exec_started_at=moment)
        self.events.append(Event(reason, message, warning=to is State.FAULT))

    def walk_to(self, target: State, at: datetime | None) -> None:
        """Move forward to a state of the opening walk, through every state between."""
        texts = {
            State.HSHK: ("WorkerRunning", "The worker container runs; waiting for it to register."),
            State.RDY: ("Registered", "The worker has registered."),
            State.EXEC: ("RunStarted", "The run has started."),
        }
        while self.state in FORWARD and FORWARD.index(self.state) < FORWARD.index(target):
            following = FORWARD[FORWARD.index(self.state) + 1]
            self.go(following, *texts[following], at=at)

    def fault(self, reason: EndReason, message: str, *, release: bool = True) -> None:
        """FAULT, with what it costs. `release` is False while the old pod may still be there."""
        if self.state is State.FAULT:
            if release:
                self.release_pod()
            return
        judged = retry.verdict(reason)
        self.go(State.FAULT, reason, message)
        if judged.spends:
            self.set(retries=self.status.retries + 1, failed_at_step=self.reached_step())
        spent = judged.spends and self.status.retries > self.spec.retry.limit
        if judged.retryable and not spent:
            wait = retry.backoff(self.spec.retry.backoff_seconds, max(self.status.retries, 1))
            self.set(retry_at=self.now + wait)
        else:
            self.set(retry_at=None)
        if release:
            self.release_pod()

    def finish(self, outcome: Outcome, reason: str, message: str) -> None:
        """TERM, for good."""
        self.go(State.TERM, reason, message)
        self.set(outcome=outcome, finished_at=self.now, retry_at=None, stop_requested_at=None)

    def stopped_for_good(self, purpose: Intent) -> None:
        if purpose is Intent.CANCEL:
            self.finish(Outcome.CANCELED, "Canceled", "Canceled by the user.")
        else:
            self.finish(Outcome.DEADLINE_EXCEEDED, "DeadlineExceeded", "The wall clock limit was reached.")

    def suspended(self, confirmed: bool) -> None:
        self.walk_time_stops()
        if confirmed:
            reason, message = "Suspended", "Suspended with a checkpoint; pod and GPU are free."
        else:
            reason, message = "SuspendUnconfirmed", "Suspended without a new checkpoint; the last one stands."
        if self.state is State.PAUSE:
            self.explain(reason, message)  # it was paused with its pod kept; now the pod is free too
        else:
            self.go(State.PAUSE, reason, message)
        self.release_pod()

    def walk_time_stops(self) -> None:
        if self.status.wallclock_since is not None:
            used = deadline.wallclock_used(self.status, self.now).total_seconds()
            self.set(wallclock_seconds=round(used, 3), wallclock_since=None)

    def release_pod(self) -> None:
        """This attempt's pod no longer speaks for the run."""
        self.set(pod_uid=None, stop_requested_at=None)

    def forget_worker(self) -> None:
        """A new pod has not registered yet; the numbers of the run's event log go on over attempts."""
        known = self.status.session
        if known is not None:
            self.set(session=SessionStatus(last_event=known.last_event, log_epoch=known.log_epoch))

    def delete_pod(self) -> None:
        uid = self.status.pod_uid
        if uid is not None and not self.facts.pod.deleting and DeletePod(uid) not in self.effects:
            self.effects.append(DeletePod(uid))

    def explain(self, reason: str, message: str) -> None:
        """Say why the state is what it is, without moving."""
        self.set(reason=str(reason), message=message[:4096])

    def take_checkpoint(self, path: str, step: int, sha256: str | None, at: datetime | None) -> None:
        known = self.status.checkpoint
        if known is None or step >= known.step:
            moment = known.time if known is not None and known.path == path else (at or self.now)
            self.set(
                checkpoint=CheckpointStatus(
                    path=path, step=step, time=moment, sha256=sha256, attempt=self.status.attempt
                )
            )

    def reached_step(self) -> int:
        return self.status.progress.step if self.status.progress is not None else 0

    # -- the result

    def decision(self, generation: int) -> Decision:
        self.set(observed_generation=generation)
        notices = {} if self.state is State.TERM else self.notices
        self.set(conditions=conditions.conditions(self.status, notices, generation, self.now))
        live = self.status.pod_uid is not None and self.state is not State.TERM
        stop = live and self.status.stop_requested_at is not None
        purpose = stopping.intent(self.spec, self.status, self.now)
        why = purpose.name.lower() if stop and purpose is not None else ""
        desired = Desired(pause=self.spec.pause, stop=stop, stop_reason=why)
        return Decision(
            status=self.status,
            effects=tuple(self.effects),
            events=tuple(self.events),
            desired=desired,
            wake_at=min(self.wakes, default=None),
        )


def classify(end: WorkerEnd, disrupted: EndReason | None) -> tuple[EndReason, str]:
    """What an end that nobody asked for was, and the sentence for it. The kubelet's word comes before the exit code."""
    said = end.message
    if end.kubelet_reason == "OOMKilled":
        return EndReason.OOM_KILLED, "The worker ran out of memory: raise resources.memory, or lower the buffer size."
    if disrupted is not None:
        return disrupted, said or f"The pod was ended by the cluster ({disrupted})."
    if end.outcome is None and end.exit_code == 0:
        return EndReason.NO_RECORD, "The worker ended without a record of what it did."
    if end.reason == "BadConfig" or end.exit_code == 2:
        return EndReason.BAD_CONFIG, said or "The worker refused its configuration."
    if end.reason.startswith("NaN") or end.exit_code == 3:
        return EndReason.NAN, said or "Training diverged: a loss or a return was not a finite number."
    if end.outcome in {"canceled", "suspended"}:
        return EndReason.POD_LOST, "The pod was stopped by somebody else; it left a checkpoint."
    return EndReason.EXIT_CODE, said or f"The worker ended with exit code {end.exit_code}."


def forward_path(states: Iterable[State]) -> bool:
    """Whether a list of states follows the machine's edges."""
    edges = {
        (State.INIT, State.HSHK),
        (State.HSHK, State.RDY),
        (State.RDY, State.EXEC),
        (State.EXEC, State.PAUSE),
        (State.PAUSE, State.EXEC),
        (State.PAUSE, State.INIT),
        (State.FAULT, State.INIT),
        (State.FAULT, State.PAUSE),
        (State.INIT, State.PAUSE),
        (State.HSHK, State.PAUSE),
        (State.RDY, State.PAUSE),
    }
    listed = list(states)
    return all(
        (before, after) in edges or (before is not State.TERM and after in (State.FAULT, State.TERM))
        for before, after in pairwise(listed)
    )

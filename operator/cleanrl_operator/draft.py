"""A status in the making: the moves that the state machine can make, each keeping the status true to itself.

`fsm` decides which move; this module makes it, with everything that belongs to it: the recorded transition, times that never
run backwards, the retry's cost, the clocks, the Event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cleanrl_operator import conditions
from cleanrl_operator.api.spec import Mode, Spec
from cleanrl_operator.api.status import (
    MAX_TRANSITIONS,
    AnalyticsStatus,
    CheckpointStatus,
    Outcome,
    ProgressStatus,
    SessionStatus,
    State,
    Status,
    Transition,
)
from cleanrl_operator.decision import Decision, DeletePod, Desired, Effect, Event
from cleanrl_operator.facts import EndReason, Facts, PodSituation, SessionFacts, WorkerEnd
from cleanrl_operator.policies import deadline, gpu, retry, ttl
from cleanrl_operator.policies.stopping import Intent

TRAINING = (Mode.TRAIN, Mode.CURRICULUM, Mode.RESUME)
"""Modes that count steps towards those asked for, and on over their attempts; others begin anew with each attempt or phase."""
FORWARD = (State.INIT, State.HSHK, State.RDY, State.EXEC)
OPENING = {
    State.HSHK: ("WorkerRunning", "The worker container runs; waiting for it to register."),
    State.RDY: ("Registered", "The worker has registered."),
    State.EXEC: ("RunStarted", "The run has started."),
}


@dataclass
class Draft:
    """One judgement's working copy."""

    spec: Spec
    status: Status
    facts: Facts
    now: datetime
    effects: list[Effect] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    wakes: list[datetime] = field(default_factory=list)
    notices: dict[str, tuple[bool, str, str]] = field(default_factory=dict)
    released: bool = False
    """The pod that the facts speak of was let go in this judgement: they say nothing about the next one."""
    worked_until: datetime = field(init=False)
    """Until when the attempt's time counts: now, or when its pod was over, which may be hours ago if no operator ran."""

    def __post_init__(self) -> None:
        last = self.status.transitions[-1].at if self.status.transitions else None
        if last is not None and last > self.now:
            self.now = last  # a clock that jumped back must not make time run backwards in the status
        self.worked_until = self.now
        pod, progress, session = self.facts.pod, self.status.progress, self.facts.session
        if pod.situation in (PodSituation.ENDED, PodSituation.GONE):
            heard = self.now - timedelta(seconds=session.late_seconds) if session is not None else None
            over = (pod.end.finished_at if pod.end is not None else pod.since) or heard
            # Nobody may know it, and the node's clock may be behind ours: it was not before the last sign of life.
            signs = (over, last, progress.updated_at if progress is not None else None, self.status.stop_requested_at)
            self.worked_until = min(self.now, max(filter(None, signs), default=self.now))

    @property
    def state(self) -> State:
        """The state so far."""
        assert self.status.fsm_state is not None
        return State(self.status.fsm_state)  # a status that was read holds the plain text

    def set(self, **changes: object) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)

    # -- moves

    def go(self, to: State, reason: str, message: str, at: datetime | None = None) -> None:
        """One step of the machine, recorded. Times never run backwards, and only the last steps are kept."""
        history = list(self.status.transitions or [])
        moment = min(at, self.now) if at is not None else self.now
        if history and moment < history[-1].at:
            moment = history[-1].at
        before = self.status.fsm_state
        history.append(Transition(from_=before, to=to, at=moment, attempt=self.status.attempt, reason=reason))
        self.set(fsm_state=to, transitions=history[-MAX_TRANSITIONS:], gpu_awaited_since=None)
        self.explain(reason, message)
        if to is State.EXEC:
            self.set(
                exec_started_at=self.status.exec_started_at or moment,
                wallclock_since=self.status.wallclock_since or moment,
            )
        self.events.append(Event(reason, message, warning=to is State.FAULT))

    def walk_to(self, target: State, at: datetime | None) -> None:
        """Move forward to a state of the opening walk, through every state between. A dry run never comes to EXEC."""
        if self.spec.dry_run and target is State.EXEC:
            target = State.RDY
        while self.state in FORWARD and FORWARD.index(self.state) < FORWARD.index(target):
            following = FORWARD[FORWARD.index(self.state) + 1]
            self.go(following, *OPENING[following], at=at)

    def fault(self, reason: EndReason, message: str, *, release: bool = True) -> None:
        """FAULT, with what it costs. `release` is False while the old pod may still be there."""
        if self.state is not State.FAULT:
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
        self.count_gpus()
        self.set(outcome=outcome, finished_at=self.now, retry_at=None, stop_requested_at=None)
        if (gone := ttl.cleanup_at(self.spec, self.status)) is not None:
            self.wakes.append(gone)  # nothing else may happen to the run until then
        known = self.status.analytics
        if self.status.attempt and not self.spec.dry_run and (known is None or known.manifest_digest is None):
            text = "The worker left no record of an analytics manifest; what it wrote is on the claim."
            self.set(analytics=_analytics(known, reason="NoRecord", message=text))

    def stopped_for_good(self, purpose: Intent) -> None:
        """TERM, because somebody or the clock wanted it."""
        if purpose is Intent.CANCEL:
            self.finish(Outcome.CANCELED, "Canceled", "Canceled by the user.")
        else:
            self.finish(Outcome.DEADLINE_EXCEEDED, "DeadlineExceeded", deadline.over(self.spec))

    def suspended(self, confirmed: bool) -> None:
        """PAUSE without a pod."""
        if confirmed:
            self.rest("Suspended", "Suspended with a checkpoint; pod and GPU are free.")
        else:
            self.rest("SuspendUnconfirmed", "Suspended without a new checkpoint; the last one stands.")

    def rest(self, reason: str, message: str) -> None:
        """PAUSE, and nothing is held or waited for. What the next attempt asks for may be edited now, and a GPU may be free by
        then: that there was none once says nothing any more."""
        if self.state is State.PAUSE:
            self.explain(reason, message)  # it was paused with its pod kept; now the pod is free too
        else:
            self.go(State.PAUSE, reason, message)
        self.release_pod()
        self.set(gpu_fallback=None, retry_at=None)
        self.notices.pop("GPUFallback", None)

    # -- the pod

    def adopt_pod(self) -> None:
        """The pod that the facts speak of is the next attempt's."""
        self.set(pod_uid=self.facts.pod.uid, attempt=self.status.attempt + 1, stop_requested_at=None, node_name=None)
        known = self.status.session
        if known is not None:  # the new worker has not registered; the numbers of the run's event log go on
            self.set(session=SessionStatus(last_event=known.last_event, log_epoch=known.log_epoch))

    @property
    def has_registered(self) -> bool:
        """Whether this attempt's worker has registered, with whichever operator."""
        return self.status.session is not None and self.status.session.registered_at is not None

    def release_pod(self) -> None:
        """This attempt's pod no longer speaks for the run."""
        if self.status.pod_uid is None:
            return
        self.count_gpus()
        self.stop_clock()
        self.set(pod_uid=None, stop_requested_at=None)
        self.released = True

    def delete_pod(self) -> None:
        """Ask for the pod's deletion, once."""
        uid = self.status.pod_uid or self.facts.pod.uid
        if uid is not None and not self.facts.pod.deleting and DeletePod(uid) not in self.effects:
            self.effects.append(DeletePod(uid))

    # -- bookkeeping

    def explain(self, reason: str, message: str) -> None:
        """Say why the state is what it is, without moving."""
        self.set(reason=str(reason), message=message[:4096])

    def warn(self, kind: str, message: str) -> None:
        """A condition that asks for attention while the run goes on, with one Event when it begins."""
        if kind not in {each.type for each in self.status.conditions or []}:
            self.events.append(Event(kind, message, warning=True))
        self.notices[kind] = (True, kind, message)

    def warn_again(self, kind: str) -> None:
        """Such a condition stays as it is, if it holds."""
        if message := conditions.message_of(self.status, kind):
            self.notices[kind] = (True, kind, message)

    def stop_clock(self) -> None:
        """Add the stretch that has ended to the time that counts against the limit."""
        if self.status.wallclock_since is not None:
            used = deadline.wallclock_used(self.status, self.worked_until).total_seconds()
            self.set(wallclock_seconds=round(used, 3), wallclock_since=None)

    def count_gpus(self) -> None:
        """Add what the attempt that ends has held."""
        gpus = gpu.gpus_held(self.spec, self.status) if self.status.pod_uid is not None else 0
        if gpus == 0:
            return
        began = [
            step.at
            for step in self.status.transitions or []
            if step.to == State.HSHK and step.attempt == self.status.attempt
        ]
        session = self.status.session
        if not began and session is not None and session.registered_at is not None:
            began = [session.registered_at]  # so many pauses since that the first steps are not kept any more
        if began:
            held = max((self.worked_until - began[0]).total_seconds(), 0.0)
            self.set(gpu_seconds=round(self.status.gpu_seconds + gpus * held, 1))

    def take_progress(self, session: SessionFacts) -> None:
        """How far the worker is; the sample keeps its time while nothing has changed."""
        known = self.status.progress
        # A session that has only begun knows the stage from the status, and nothing else.
        stage = known.stage if known is not None else None
        if session.step == 0 and session.steps_per_second is None and session.stage in (None, stage):
            return
        asked = self.spec.total_timesteps if self.spec.mode in TRAINING else 0
        total, rate = session.total or asked, session.steps_per_second
        judges = self.spec.mode == Mode.POLICY_EVAL  # which counts episodes, and has a rate of steps
        left = max(0, total - session.step) if total and not judges else None
        share = session.step / total if total else session.stages_done
        sample = ProgressStatus(
            step=session.step,
            percent=min(100.0, round(100 * share, 1)),
            steps_per_second=rate,
            eta_seconds=round(left / rate) if rate and left is not None else None,
            episodic_return=_readable(session.episodic_return),
            stage=session.stage,
        )
        if known is None or known.model_copy(update={"updated_at": None}).dump() != sample.dump():
            self.set(progress=sample.model_copy(update={"updated_at": self.now}))
        self.refill(session.step)

    def complete_progress(self, step: int) -> None:
        """A run that completed has nothing left to do, whatever was last heard of it and however its rollouts divide."""
        if self.spec.mode == Mode.INTERACTIVE:  # a conversation has no share that is done
            return
        known = self.status.progress or ProgressStatus()
        done = {"step": max(known.step, step), "percent": 100.0, "eta_seconds": None, "updated_at": self.now}
        self.set(progress=known.model_copy(update=done))

    def take_checkpoint(self, path: str, step: int, sha256: str | None, at: datetime | None) -> None:
        """The newest checkpoint; an older one never replaces it. Each phase of a script counts its steps from the start."""
        known = self.status.checkpoint
        if known is None or step >= known.step or self.spec.mode == Mode.SCRIPT:
            same = known is not None and (known.path, known.step) == (path, step)
            moment = known.time if known is not None and same else (at or self.now)
            attempt = known.attempt if known is not None and same else self.status.attempt
            self.set(checkpoint=CheckpointStatus(path=path, step=step, time=moment, sha256=sha256, attempt=attempt))

    def take_record(self, end: WorkerEnd) -> None:
        """What an ended worker's container and record add to what was heard of it."""
        if end.ran_at is not None:
            self.walk_to(State.HSHK, end.ran_at)
        if end.registered_at is not None:
            self.walk_to(State.RDY, end.registered_at)
        if end.started_at is not None:
            self.walk_to(State.EXEC, end.started_at)
        if end.checkpoint_path is not None:
            self.take_checkpoint(end.checkpoint_path, end.checkpoint_step, end.checkpoint_sha256, end.finished_at)
        if end.manifest_digest is not None:
            known = self.status.analytics
            self.set(analytics=_analytics(known, manifest_digest=end.manifest_digest, reason=None, message=None))
        self.take_wandb(end.wandb_url)
        self.refill(end.step)

    def take_wandb(self, url: str | None) -> None:
        """Where the tracked run is."""
        if url is not None:
            self.set(analytics=_analytics(self.status.analytics, wandb_url=url))

    def refill(self, step: int) -> None:
        """Progress since the last failure gives the budget back."""
        if step > self.status.failed_at_step and self.status.retries:
            self.set(retries=0)

    def reached_step(self) -> int:
        """The furthest step that is known. Progress is sampled, and a worker's record is often further: without it a run that
        fails at the same step each time would refill its budget for ever."""
        sampled = self.status.progress.step if self.status.progress is not None else 0
        end = self.facts.pod.end
        before = self.status.failed_at_step if self.spec.mode in TRAINING else 0
        return max(before, sampled, end.step if end is not None else 0)

    # -- the result

    def decision(self, generation: int) -> Decision:
        """What all moves together come to."""
        self.set(observed_generation=generation)
        notices = {} if self.state is State.TERM else self.notices
        self.set(conditions=conditions.conditions(self.status, notices, generation, self.now))
        return Decision(
            status=self.status,
            effects=tuple(self.effects),
            events=tuple(self.events),
            desired=Desired.of(self.spec, self.status, self.now),
            wake_at=min(self.wakes, default=None),
        )


def late(facts: Facts, patience: timedelta) -> bool:
    """Whether the worker has been silent for longer than this."""
    silent = facts.session.late_seconds if facts.session is not None else facts.unheard_seconds
    return timedelta(seconds=silent) > patience


def _analytics(known: AnalyticsStatus | None, **changes: str | None) -> AnalyticsStatus:
    return (known or AnalyticsStatus()).model_copy(update=changes)


def _readable(figure: float | None) -> float | None:
    """As many digits as mean something to a person: `kubectl get` prints the number as it is stored."""
    return None if figure is None else float(f"{figure:.6g}")

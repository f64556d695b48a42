"""The state machine: (spec, previous status, facts, now) -> next status, effects, events. Pure and total.

Facts are levels, not edges: the same facts always lead to the same status, however many times and after however many
restarts they are judged. One call walks as far as the facts allow, so a worker that was quicker than the watch still
leaves a complete list of transitions. A status in TERM is final.

The order of judgement is the meaning of the table in docs/concepts/state-machine.md: what has ended comes first, then what
the user wants ended, then what has begun, then what is waited for, then what is tried again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Outcome, SessionStatus, State, Status
from cleanrl_operator.conditions import CHECKPOINT_FAILED
from cleanrl_operator.decision import CleanUp, CreatePod, Decision, Event
from cleanrl_operator.draft import Draft, late
from cleanrl_operator.facts import EndReason, Facts, PodSituation, RefusalKind, WorkerEnd
from cleanrl_operator.policies import deadline, gpu, stopping, ttl
from cleanrl_operator.policies.failure import BY_SIGNAL, classify
from cleanrl_operator.policies.stopping import Intent

IMAGE_PATIENCE = timedelta(minutes=5)
HEARTBEAT_LATE = timedelta(seconds=90)
PREDECESSOR_RETRY = timedelta(seconds=30)
SOURCE_RETRY = timedelta(seconds=10)
WAITED_FOR = {RefusalKind.QUOTA: EndReason.QUOTA, RefusalKind.NOT_YET: "NotAdmittedYet"}
"""Refusals that may not last, and the reason to show meanwhile."""
ON_ITS_NODE = (
    "The pod has a node and waits to start there: an image is pulled, or a volume (a claim, a ConfigMap) is not there yet; "
    "kubectl describe pod says which."
)
LIVE_PODS = (PodSituation.GATED, PodSituation.PENDING, PodSituation.IMAGE_ERROR, PodSituation.RUNNING)


def decide(spec: Spec, previous: Status, facts: Facts, now: datetime, *, generation: int, run_id: str) -> Decision:
    """Judge a run. `previous` is the status as it was read, empty for a run that was never seen."""
    judge = _Judge(spec, previous, facts, now)
    if previous.fsm_state == State.TERM:
        judge.after_the_end()
    else:
        judge.set(run_id=run_id)
        judge.accept()
        judge.absorb()
        judge.judge_end()
        judge.judge_stop()
        judge.walk_forward()
        judge.judge_waiting()
        judge.judge_silence()
        judge.judge_fault()
        judge.judge_resume()
        judge.keep_time()
    return judge.decision(generation)


class _Judge(Draft):
    """Each method judges one thing and may move the state; after TERM none does anything."""

    def accept(self) -> None:
        """A run that was never seen."""
        if self.status.fsm_state is not None:
            return
        self.set(started_at=self.now, dry_run=self.spec.dry_run)
        if self.spec.suspend and not self.spec.cancel and self.facts.pod.uid is None:
            self.go(State.PAUSE, "Suspended", "Created suspended; lift suspend to start it.")
        else:
            self.go(State.INIT, "Accepted", "The run was accepted.")
        if idle := gpu.unused(self.spec, self.status):
            self.events.append(Event("GPUUnused", idle, warning=True))

    def absorb(self) -> None:
        """Take over what needs no judgement: identity of the pod, session, progress, checkpoint."""
        pod, session = self.facts.pod, self.facts.session
        if idle := gpu.unused(self.spec, self.status):
            self.notices["GPUUnused"] = (True, "GPUUnused", idle)
        if self.status.gpu_fallback:
            text = "No GPU came free in time, so the run trains on the CPU."
            self.notices["GPUFallback"] = (True, "GPUFallback", text)
        if pod.uid is not None and self.status.pod_uid is None:
            if self.state is State.INIT:
                self.adopt_pod()
            else:  # just made, or made before a write that failed: the attempt has begun, whatever is wanted by now
                self.begin_again("Retrying" if self.state is State.FAULT else "Unsuspended")
        if self.facts.claim_uid is not None:
            self.set(claim_uid=self.facts.claim_uid)
        if self.facts.source is not None:
            self.set(source=self.facts.source)
        if self.status.pod_uid is None:
            return
        if pod.node_name is not None:
            self.set(node_name=pod.node_name)
        if session is None:
            if self.has_registered:  # with another operator: what the worker said still holds
                self.warn_again(CHECKPOINT_FAILED)
            self.notice_silence()
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
        self.take_progress(session)
        self.take_wandb(session.wandb_url)
        if session.checkpoint_path is not None:
            self.take_checkpoint(
                session.checkpoint_path, session.checkpoint_step, session.checkpoint_sha256, session.checkpoint_at
            )
        if session.checkpoint_failure:
            self.warn(CHECKPOINT_FAILED, session.checkpoint_failure)
        self.notice_silence()

    def notice_silence(self) -> None:
        """A late heartbeat is told, whoever heard the last one."""
        if late(self.facts, HEARTBEAT_LATE):
            text = "The worker's heartbeat is late; the run is not judged by that alone."
            self.notices["HeartbeatLate"] = (True, "HeartbeatLate", text)

    # -- what has ended

    def judge_end(self) -> None:
        """The pod has ended, or is gone."""
        if self.state is State.TERM or self.status.pod_uid is None:
            return
        pod = self.facts.pod
        if pod.situation is PodSituation.ENDED and pod.end is not None:
            self.pod_ended(pod.end)
        elif pod.situation is PodSituation.GONE:
            self.pod_gone()

    @property
    def is_given_up(self) -> bool:
        """Whether the pod has waited for a GPU for too long. It may get one, and start, before it is gone: it goes all the
        same, since the status says that the run does without."""
        return self.state is State.INIT and bool(self.status.gpu_fallback) and self.status.reason == EndReason.NO_GPU

    def give_up(self) -> None:
        """The pod that was given up is over."""
        self.release_pod()
        self.explain("GPUFallback", "The pod that waited for a GPU is gone; the next one does without.")

    def pod_ended(self, end: WorkerEnd) -> None:
        """Its worker container is over: completed, stopped as asked, or failed."""
        if self.is_given_up and end.outcome != "completed":
            self.give_up()
            return
        self.take_record(end)
        if end.outcome == "completed" and self.spec.dry_run:
            heard = self.facts.session.summary if self.facts.session is not None else ""
            self.finish(Outcome.COMPLETED, "DryRun", heard or end.message or "The pre-flight found nothing wrong.")
            return
        if end.outcome == "completed":
            self.walk_to(State.EXEC, end.started_at)
            self.complete_progress(end.step)
            self.finish(Outcome.COMPLETED, "Completed", end.message or "The run did all its steps.")
            return
        purpose = stopping.purpose(self.spec, self.status, self.worked_until)
        if end.outcome == "deadline_exceeded" and purpose is not Intent.SUSPEND:  # else the limit was raised meanwhile
            self.finish(Outcome.DEADLINE_EXCEEDED, "DeadlineExceeded", deadline.over(self.spec))
            return
        failed = end.outcome == "failed" or (end.outcome is None and end.exit_code not in (0, *BY_SIGNAL))
        if purpose in (Intent.CANCEL, Intent.DEADLINE):
            self.stopped_for_good(purpose)
        elif purpose is Intent.SUSPEND and not failed:
            saved = end.checkpoint_path is not None and end.checkpoint_step >= end.step
            self.suspended(confirmed=end.outcome is not None and saved)
        else:
            silent = late(self.facts, HEARTBEAT_LATE)
            memory, of_a_run = self.spec.resources.memory, self.status.source is not None
            self.fault(*classify(end, self.facts.pod.disrupted, silent, memory, of_a_run=of_a_run))

    def pod_gone(self) -> None:
        """It left no record."""
        purpose = stopping.purpose(self.spec, self.status, self.worked_until)
        if self.is_given_up:
            self.give_up()
        elif purpose is Intent.SUSPEND:
            self.suspended(confirmed=False)
        elif purpose is not None:
            self.stopped_for_good(purpose)
        else:
            reason = self.facts.pod.disrupted or EndReason.POD_LOST
            self.fault(reason, "The pod is gone and left no record; the next attempt reads what is on the claim.")

    # -- what is wanted ended

    def judge_stop(self) -> None:
        """The user, or the clock, wants the run stopped."""
        if self.state is State.TERM:
            return
        purpose = stopping.purpose(self.spec, self.status, self.now)
        if purpose is None:
            return
        if self.status.pod_uid is not None:
            self.ask_to_stop(purpose)
        elif purpose is not Intent.SUSPEND:
            self.stopped_for_good(purpose)
        elif self.state is State.INIT:  # a FAULT is judged first: what would only happen again ends, suspended or not
            self.rest("Suspended", "Suspended before it had a pod; nothing was lost.")

    def ask_to_stop(self, purpose: Intent) -> None:
        """Ask over the session where there is one; delete the pod where there is none, or after the grace period."""
        if self.status.stop_requested_at is None:
            self.set(stop_requested_at=self.now)
            self.explain(purpose.value, "Asked to checkpoint and stop.")
        assert self.status.stop_requested_at is not None
        give_up = self.status.stop_requested_at + stopping.GRACE
        can_hear = self.has_registered and self.state in (State.RDY, State.EXEC, State.PAUSE)
        if not can_hear or self.now >= give_up:
            self.delete_pod()
        else:
            self.wakes.append(give_up)

    # -- what has begun

    def walk_forward(self) -> None:
        """The container, the registration, the run; pause and its end."""
        if self.status.pod_uid is None or self.state in (State.TERM, State.FAULT) or self.is_given_up:
            return
        pod, session = self.facts.pod, self.facts.session
        if pod.situation is PodSituation.RUNNING:
            self.walk_to(State.HSHK, pod.since)
        if session is None or session.registered_at is None:
            return
        self.walk_to(State.RDY, session.registered_at)
        if session.started_at is not None:
            self.walk_to(State.EXEC, session.started_at)
        if self.state is State.EXEC and session.paused and self.spec.pause:
            self.go(State.PAUSE, "Paused", "Paused by the user; the pod is kept.")
        elif self.state is State.PAUSE and not session.paused:
            self.go(State.EXEC, "Resumed", "Stepping again.")
        elif self.state is State.EXEC and self.spec.pause and not session.supports_pause:
            text = "This worker can't pause: lift pause, or use suspend, which frees the pod."
            self.notices["PauseUnsupported"] = (True, "PauseUnsupported", text)

    # -- what is waited for

    def judge_waiting(self) -> None:
        """Who holds the run up in INIT, and for how long still."""
        if self.state is not State.INIT or self.status.stop_requested_at is not None:
            return
        pod = self.facts.pod
        if self.status.pod_uid is None:
            self.judge_creation()
        elif self.is_given_up:
            self.delete_pod()
        elif pod.situation is PodSituation.GATED:
            held = "Held by a scheduling gate until its queue admits it."
            self.set(gpu_awaited_since=None)  # a quota may have kept it from its GPU before; a queue is another matter
            if not self.waited_too_long(pod.since, held):
                self.explain("Queued", held)
        elif pod.situation is PodSituation.IMAGE_ERROR:
            self.judge_image()
        elif pod.situation is PodSituation.PENDING:
            self.judge_pending()

    def judge_creation(self) -> None:
        """There is no pod: may there be one?"""
        facts = self.facts
        if self.released:
            self.wakes.append(self.now)  # look afresh: these facts were the last pod's
        elif facts.pod.uid is not None:
            self.adopt_pod()
            self.judge_waiting()
        elif facts.pod.situation is PodSituation.FOREIGN:
            self.fault(EndReason.NAME_TAKEN, "A pod of the run's name exists and belongs to somebody else.")
        elif facts.config_error:
            self.fault(EndReason.BAD_CONFIG, facts.config_error)
        elif facts.source_pending:
            self.explain("WaitingForSource", facts.source_pending)
            self.wakes.append(self.now + SOURCE_RETRY)
        elif facts.claim_lost:
            self.fault(EndReason.CLAIM_LOST, facts.claim_lost)
        elif facts.predecessor:
            self.explain("WaitingForPod", f"Pod {facts.predecessor} of an earlier attempt has not ended yet.")
            self.wakes.append(self.now + PREDECESSOR_RETRY)
        elif facts.refusal is None:
            self.effects.append(CreatePod(self.status.attempt + 1))
        elif facts.refusal.kind is RefusalKind.POLICY:
            self.fault(EndReason.REFUSED, facts.refusal.message)
        elif facts.refusal.kind in WAITED_FOR:
            if self.waited_too_long(facts.refusal.since, facts.refusal.message):
                return
            if self.falls_back(facts.refusal.message, "GPUFallback"):
                self.wakes.append(self.now)
                return
            self.explain(WAITED_FOR[facts.refusal.kind], facts.refusal.message)
            self.wakes.append(self.now + timedelta(seconds=facts.refusal.retry_seconds))

    def judge_pending(self) -> None:
        """No place yet, or not started yet."""
        pod = self.facts.pod
        if self.waited_too_long(pod.since, pod.unschedulable or "The pod did not start in time."):
            return
        if self.falls_back(pod.unschedulable, EndReason.NO_GPU):
            self.delete_pod()
            return
        if gpu.is_short(self.spec, self.status, pod):
            self.explain(EndReason.NO_GPU, gpu.waiting(self.spec, pod, gpu.fallback_at(self.spec, self.status)))
        elif pod.unschedulable:
            self.explain("Unschedulable", pod.unschedulable)
        else:
            self.explain("Pending", pod.message or (ON_ITS_NODE if pod.node_name else "The pod waits for a node."))

    def falls_back(self, said: str, reason: str) -> bool:
        """Whether an optional GPU has been waited for long enough: then the run does without. The wait begins when that is
        first heard: before, a queue may have held the pod back for hours."""
        waits = gpu.may_do_without(self.spec, self.status, said)
        self.set(gpu_awaited_since=(self.status.gpu_awaited_since or self.now) if waits else None)
        fallback = gpu.fallback_at(self.spec, self.status)
        if fallback is None:
            return False
        if fallback > self.now:
            self.wakes.append(fallback)
            return False
        text = f"No GPU after {self.spec.resources.gpus.fallback_after_seconds} s; the run goes on with the CPU."
        self.set(gpu_fallback=True, gpu_awaited_since=None)
        self.explain(reason, text)
        self.events.append(Event("GPUFallback", text, warning=True))
        return True

    def waited_too_long(self, since: datetime | None, message: str) -> bool:
        """The end of a run whose pod, made or not yet, may not wait any longer."""
        over = deadline.pending_over_at(self.spec, since)
        if over is None:
            return False
        if over > self.now:
            self.wakes.append(over)
            return False
        self.go(State.FAULT, "PendingDeadlineExceeded", message)
        self.delete_pod()
        self.finish(Outcome.FAILED, "PendingDeadlineExceeded", self.status.message or "")
        return True

    def judge_image(self) -> None:
        """An image that can't be had may come, for a while."""
        pod = self.facts.pod
        until = (pod.since or self.now) + IMAGE_PATIENCE
        if until <= self.now:
            self.fault(EndReason.IMAGE, pod.message, release=False)
        else:
            self.explain(EndReason.IMAGE, pod.message)
            self.wakes.append(until)

    # -- what is tried again

    def judge_silence(self) -> None:
        """Silence is no death without a second witness; here it is the node."""
        live = self.status.pod_uid is not None and self.state not in (State.TERM, State.FAULT)
        # A worker that nobody has heard can't fall silent. That its pod is to go is all that the cluster does of its own.
        never_heard = self.facts.session is None and not self.has_registered and self.facts.pod.deleting
        if live and (late(self.facts, HEARTBEAT_LATE) or never_heard) and self.facts.node_ready is False:
            self.fault(EndReason.NODE_LOST, "The worker is silent and its node is not ready.", release=False)

    def judge_fault(self) -> None:
        """Retry, wait, or end."""
        if self.state is not State.FAULT:
            return
        if self.status.pod_uid is not None:
            self.delete_pod()  # no new attempt before the old pod is gone or terminal
        elif self.spec.suspend and self.status.retry_at is not None:
            self.rest("Suspended", "Suspended after a failure; lifting suspend tries again.")
        elif self.status.retry_at is None:
            self.finish(Outcome.FAILED, self.status.reason or "Failed", self.status.message or "")
        elif self.status.retry_at <= self.now:
            self.begin_again("Retrying")
        else:
            self.wakes.append(self.status.retry_at)

    def judge_resume(self) -> None:
        """A suspended run whose suspend was lifted."""
        if self.state is State.PAUSE and self.status.pod_uid is None and not self.spec.suspend:
            self.begin_again("Unsuspended")

    def begin_again(self, reason: str) -> None:
        """The next attempt."""
        number = self.status.attempt + 1
        saved = self.status.checkpoint
        if number == 1:
            text = "The first attempt starts."
        elif saved is None:
            text = f"Attempt {number} starts from the beginning: no checkpoint is known yet."
        else:
            text = f"Attempt {number} goes on from the checkpoint of step {saved.step}."
        self.set(retry_at=None)
        self.go(State.INIT, reason, text)
        self.judge_waiting()
        self.judge_fault()

    # -- clocks, and what is left after the end

    def keep_time(self) -> None:
        """The wall clock runs in EXEC, and in PAUSE while the pod is kept."""
        runs = self.state is State.EXEC or (self.state is State.PAUSE and self.status.pod_uid is not None)
        if not runs:
            self.stop_clock()
            return
        over = deadline.wallclock_over_at(self.spec, self.status, self.now)
        if over is not None and over > self.now:
            self.wakes.append(over)

    def after_the_end(self) -> None:
        """TERM is final. Only what is left of the run in the cluster may still go, a pod that came too late among it."""
        if self.facts.pod.situation in LIVE_PODS:
            self.delete_pod()
        gone = ttl.cleanup_at(self.spec, self.status)
        if gone is not None and gone <= self.now:
            self.effects.append(CleanUp())
        elif gone is not None:
            self.wakes.append(gone)

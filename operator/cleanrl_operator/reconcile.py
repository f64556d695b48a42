"""Reconcile one run: observe -> decide -> create -> one status write -> events -> delete.

Level-based and idempotent: it may be called at any time and any number of times. The order matters: a pod is created before the
status that names it is written (its name is deterministic, so a crash in between finds it again), and a session's events are
acknowledged only after the status that holds them is written. A pod is deleted after the status that says why: were that write
to fail, nobody would know of the next look's missing pod that it was us.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from cleanrl_operator import logs, unreadable
from cleanrl_operator.api import GROUP, PLURAL, VERSION
from cleanrl_operator.api.status import AnalyticsStatus, State, Status, TensorBoardStatus
from cleanrl_operator.asides import Asides
from cleanrl_operator.boards import Boards
from cleanrl_operator.cache import Cache, Key
from cleanrl_operator.clock import WallClock
from cleanrl_operator.decision import CleanUp, CreatePod, Decision, DeletePod, Desired, Event
from cleanrl_operator.desired import claim, pod, tensorboard
from cleanrl_operator.facts import Facts, PodFacts, PodSituation, Refusal, RefusalKind, SessionFacts
from cleanrl_operator.fsm import decide
from cleanrl_operator.kube import Kube, KubeError, Object
from cleanrl_operator.metrics import Tally
from cleanrl_operator.observe import (
    finished_manifest,
    is_owned,
    left_behind_since,
    may_still_write,
    observe_departed,
    observe_pod,
)
from cleanrl_operator.policies import deadline, storage
from cleanrl_operator.policies import tensorboard as tensorboard_policy
from cleanrl_operator.policies.source import Source
from cleanrl_operator.policies.source import judge as judge_source
from cleanrl_operator.run import Run, UnreadableRun, class_of
from cleanrl_operator.settings import Settings
from cleanrl_protocol.podconfig import BadPodConfig

log = logging.getLogger(__name__)
CLAIM_FRESH_SECONDS = 30.0
"""How long a shared claim's UID is believed without asking again: a burst of runs on one claim asks once."""
MOST_NOT_YET_SECONDS = 30.0
LINGER_SECONDS = 90.0
"""So long beyond a worker's grace its pod may go on after it: thirty seconds are the kubelet's, for our own sidecar."""
WAITING = (PodSituation.GATED, PodSituation.PENDING, PodSituation.IMAGE_ERROR)
ASIDES = frozenset({"nodeName", "reason", "message", "conditions", "gpuAwaitedSince"})
"""What changes of a run whose pod has not started: small news."""

BEGUN = ("stop_requested_at", "gpu_awaited_since")
"""Moments of a status from which a length of time is counted, and which stay as they are until that is over."""


class Sessions(Protocol):
    """What reconcile needs of the gateway."""

    def facts(self, run: Run) -> SessionFacts | None:
        """What the worker of the run's current pod has said, or None."""

    def unheard(self, run: Run) -> float:
        """How late a worker is that an earlier operator has heard and this one has not."""

    def awaits(self, run: Run) -> bool:
        """Whether the worker waits for something to be stored that the run's status does not hold yet."""

    def written(self, run: Run, status: Status) -> None:
        """The API server now holds this status: what is in it may be acknowledged, sessions it has no use for end."""

    def desire(self, run: Run, desired: Desired) -> None:
        """What the worker should do."""


class ProgressBudget(Protocol):
    """Who may write progress now."""

    def wait(self, key: Key, now: datetime, *, awaited: bool) -> timedelta:
        """How long this run's write has to wait; zero when it may go now, and then it counts."""

    def wrote(self, key: Key, now: datetime) -> None:
        """The run's status was written for another reason, and its progress with it."""

    def forget(self, key: Key) -> None:
        """The run is gone or over."""


@dataclass
class Reconciler:
    """Reconcile with everything it needs injected."""

    kube: Kube
    cache: Cache
    settings: Settings
    sessions: Sessions
    budget: ProgressBudget
    boards: Boards
    wake: Callable[[Key, float], None]
    announce: Callable[[Run, Event], None]
    clock: WallClock = field(default_factory=WallClock)
    pressed: Callable[[], bool] = lambda: False
    """Whether new runs wait for their turn: then a pod that was just created is written down after theirs exist."""
    tally: Tally = field(default_factory=Tally)
    status_writes: int = 0
    progress_writes: int = 0
    _refused: dict[Key, tuple[float, Refusal]] = field(default_factory=dict)
    _claims: dict[Key, tuple[float, Object | None]] = field(default_factory=dict)
    _asides: Asides = field(default_factory=Asides)
    _awaited: dict[Key, tuple[datetime, float]] = field(default_factory=dict)
    """The moment that each run waits for, and when that is by the monotonic clock: a wall clock may jump meanwhile."""

    async def __call__(self, key: Key) -> None:
        """Bring one run a step further. Raises when it should be tried again."""
        body = self.cache.run(key)
        if body is None:
            self.forget(key)
            return
        logs.about(f"{key[0]}/{key[1]}", (body.get("status") or {}).get("attempt", 0))
        try:
            await self._reconcile_body(key, body)
        except KubeError as error:
            log.warning("%s", error)
            if error.status in (404, 409):
                await self._refresh(key)
            if error.retry_after is not None:
                self.wake(key, max(error.retry_after, 1.0))
                return
            raise
        except Exception:
            log.exception("reconcile failed; it will be tried again")
            raise

    async def _refresh(self, key: Key) -> None:
        """The API server spoke of a newer version, or of none: look for ourselves."""
        fresh = await self.kube.get(_run_path(*key))
        known = self.cache.run(key)
        if fresh is not None:
            self.cache.put_run(fresh)
        elif known is not None:
            self.cache.drop_run(known)

    def forget(self, key: Key) -> None:
        """The run is gone: a new one of its name begins with nothing."""
        for remembered in (self._refused, self._awaited):
            remembered.pop(key, None)
        self._asides.forget(key)
        self.budget.forget(key)
        self.boards.forget(key)

    async def _reconcile_body(self, key: Key, body: Mapping[str, Any]) -> None:
        if "deletionTimestamp" in body["metadata"]:
            return
        if class_of(body) != self.settings.operator_class:
            return
        if self._rests(body):
            return
        try:
            run = Run.parse(body)
        except UnreadableRun as error:
            await self._admit_unreadable(key, body, str(error))
            return
        await self._reconcile(run)

    def _rests(self, body: Mapping[str, Any]) -> bool:
        """Whether this run is over and nothing of it is left to do: a restart over thousands of those costs little."""
        metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
        if status.get("fsmState") != State.TERM or status.get("observedGeneration") != metadata.get("generation"):
            return False
        board = (spec.get("artifacts") or {}).get("tensorboard") or {}
        if spec.get("ttlSecondsAfterFinished") is not None or board.get("serve", "whileRunning") != "whileRunning":
            return False
        pods = self.cache.pods(metadata["namespace"], metadata["uid"])
        said = (None, (status.get("analytics") or {}).get("manifestDigest"))
        return not any(
            may_still_write(pod)
            or (pod["metadata"]["name"] == status.get("podName") and finished_manifest(pod) not in said)
            for pod in pods
        )

    async def _admit_unreadable(self, key: Key, body: Mapping[str, Any], fault: str) -> None:
        """A run that can't be understood is left alone, and its conditions say so."""
        conditions = unreadable.conditions(body, fault, self.clock())
        if conditions is None:
            return
        log.error("run can't be read: %s", fault)
        version = body["metadata"]["resourceVersion"]
        status = {"conditions": conditions, "observedGeneration": body["metadata"].get("generation", 1)}
        self.cache.put_run(await self.kube.patch_status(*key, version, status))

    async def _reconcile(self, run: Run) -> None:
        now = self._now(run)
        facts = await self._gather(run)
        decision = self._decide(run, facts, now)
        if any(isinstance(effect, CreatePod) for effect in decision.effects):
            facts = await self._create_pod(run, facts)
            if facts.pod.uid is not None and self.pressed():
                # The pod is in the cache, where the next look finds it, as after a crash.
                self.wake(run.key, self._asides.wait(run.key, small=False, pressed=True))
                return
            decision = self._decide(run, facts, now)
        if decision.status.gpu_fallback != run.status.gpu_fallback:
            self._refused.pop(run.key, None)  # another pod will be asked for
        self.boards.note(run, decision.status)
        decision = replace(decision, status=await self._named(run, facts, decision))
        await self._write(run, decision, now)
        await self._apply(run, decision)
        await self._clear_away(run, decision.status)
        self.sessions.desire(run, decision.desired)
        self._await(run, decision, now)

    def _now(self, run: Run) -> datetime:
        """The time; a moment that was waited for has come, even when the wall clock was set back meanwhile."""
        moment, due = self._awaited.get(run.key, (None, 0.0))
        now = self.clock()
        return max(now, moment) if moment is not None and time.monotonic() >= due else now

    def _await(self, run: Run, decision: Decision, now: datetime) -> None:
        """Wake the run when time alone will have changed the answer."""
        moment = decision.wake_at
        if moment is None:
            self._awaited.pop(run.key, None)
            return
        known, due = self._awaited.get(run.key, (None, 0.0))
        if known != moment:
            last = [step.at for step in decision.status.transitions or []][-1:]
            due = time.monotonic() + (moment - max([now, *last])).total_seconds()
            self._awaited[run.key] = (moment, due)
        self.wake(run.key, due - time.monotonic())

    def _decide(self, run: Run, facts: Facts, now: datetime) -> Decision:
        """Judge the run, with what it waits for measured in time that has really passed."""
        status, pod = run.status, facts.pod
        if status.wallclock_since is not None:
            status = deadline.with_stretch_from(status, self.clock.carried_along(status.wallclock_since), now)
        begun = {name: moment for name in BEGUN if (moment := getattr(status, name)) is not None}
        carried = {name: self.clock.carried_along(moment) for name, moment in begun.items()}
        status = status.model_copy(update=carried)
        if pod.situation in WAITING and pod.since is not None:
            facts = replace(facts, pod=replace(pod, since=self.clock.carried_along(pod.since)))
        if facts.refusal is not None and status.fsm_state == State.INIT and status.transitions:
            # The last of them led to INIT.
            since = self.clock.carried_along(status.transitions[-1].at)
            facts = replace(facts, refusal=replace(facts.refusal, since=since))
        decision = decide(run.spec, status, facts, now, generation=run.generation, run_id=run.run_id)
        kept = {name: moment for name, moment in begun.items() if getattr(decision.status, name) == carried[name]}
        return replace(decision, status=decision.status.model_copy(update=kept))

    # -- observe

    async def _gather(self, run: Run) -> Facts:
        """Everything that is known; what an index can't prove is asked live."""
        if run.status.fsm_state == State.TERM:
            self.cache.forget_departed(run.namespace, run.uid)
            return Facts(pod=self._cached_pod(run))
        seen = self._cached_pod(run)
        if seen.situation is PodSituation.UNKNOWN and run.status.pod_uid is not None:
            seen = await self._missing_pod(run)
        facts = Facts(pod=seen, session=self.sessions.facts(run), unheard_seconds=self.sessions.unheard(run))
        if run.status.claim_uid is None and seen.uid is not None and not run.spec.dry_run:
            found = await self._claim(run)
            facts = replace(facts, claim_uid=found["metadata"]["uid"] if found else None)
        if run.status.source is None and seen.uid is not None:  # a pod whose status was not written yet
            facts = replace(facts, source=(await self._source(run)).found)
        if seen.node_name is not None and _may_be_cut_off(facts):
            facts = replace(facts, node_ready=await self._node_ready(seen.node_name))
        return facts

    def _cached_pod(self, run: Run) -> PodFacts:
        """The pod of the current attempt, or of the next one if a crash hid it; never one of another UID than known."""
        body = self.cache.pod(run.namespace, run.uid, run.pod_name(run.next_attempt))
        if body is None or run.status.pod_uid not in (None, body["metadata"]["uid"]):
            return PodFacts()
        return observe_pod(run, body)

    async def _missing_pod(self, run: Run) -> PodFacts:
        """The current attempt's pod is not in the cache: was it seen to go, or is it there all the same?

        A watch shows a pod as deleted that has only lost the label by which we watch. So a pod is asked for by its name too,
        unless its worker had ended when it was last seen.
        """
        assert run.status.pod_uid is not None
        last_words = self.cache.departed(run.namespace, run.uid, run.status.pod_uid)
        departed = PodFacts(PodSituation.GONE) if last_words is None else observe_departed(run, last_words)
        if departed.situation is PodSituation.ENDED:
            return departed
        body = await self.kube.get(_pod_path(run, run.pod_name(run.next_attempt)))
        if body is None or body["metadata"]["uid"] != run.status.pod_uid:
            return departed
        self.cache.put_pod(body)
        return observe_pod(run, body)

    async def _node_ready(self, name: str) -> bool | None:
        try:
            node = await self.kube.get(f"api/v1/nodes/{name}")
        except KubeError as error:
            if error.status == 403:  # an installation without cluster-wide rights can't ask: no witness
                return None
            raise
        if node is None:
            return False
        conditions = (node.get("status") or {}).get("conditions") or []
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def _predecessor(self, run: Run) -> str:
        """An earlier attempt's pod that may still write."""
        own = run.pod_name(run.next_attempt)
        for body in self.cache.pods(run.namespace, run.uid):
            if body["metadata"]["name"] != own and is_owned(run, body) and may_still_write(body):
                return str(body["metadata"]["name"])
        return ""

    # -- create

    async def _create_pod(self, run: Run, facts: Facts) -> Facts:
        """Claim and pod of the next attempt. What the API server refuses becomes a fact."""
        if earlier := self._predecessor(run):
            return replace(facts, predecessor=earlier)
        refused_at, refusal = self._refused.pop(run.key, (0.0, None))
        if refusal is not None and time.monotonic() - refused_at < refusal.retry_seconds:
            self._refused[run.key] = (refused_at, refusal)
            return replace(facts, refusal=refusal)
        try:
            source = await self._source(run)
            if source.fault or source.pending:
                return replace(facts, config_error=source.fault, source_pending=source.pending)
            found, lost = await self._ensure_claim(run)
            if lost:
                return replace(facts, claim_lost=lost)
            facts = replace(facts, claim_uid=found)
            body = pod.build(run, self.settings, source.found)
            await self.boards.make_way(run, body)
            # Strict: a name that is misspelt in an affinity would be dropped, and the pod go anywhere.
            created = await self.kube.create(f"api/v1/namespaces/{run.namespace}/pods?fieldValidation=Strict", body)
        except BadPodConfig as error:
            return replace(facts, config_error=str(error))
        except KubeError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                return replace(facts, pod=await self._taken(run))
            answer = _refusal(error, refusal)
            if answer is None:
                raise
            self._refused[run.key] = (time.monotonic(), answer)
            return replace(facts, refusal=answer)
        self.cache.put_created_pod(created)
        return replace(facts, pod=observe_pod(run, created), source=source.found)

    async def _taken(self, run: Run) -> PodFacts:
        """A pod of the name exists: ours from before a crash, or somebody else's."""
        body = await self.kube.get(_pod_path(run, run.pod_name(run.next_attempt)))
        if body is None:
            raise KubeError(409, "Conflict", "the pod vanished while it was looked at")
        self.cache.put_pod(body)
        return observe_pod(run, body)

    async def _ensure_claim(self, run: Run) -> tuple[str | None, str]:
        """The claim's UID, or why there is none that holds the run's data. Only a run without data gets a new one.

        A shared claim that is not there yet is waited for, by the scheduler and in its words.
        """
        body = claim.build(run, self.settings)
        found = await self._claim(run) if run.status.claim_uid is not None or body is None else None
        if lost := storage.lost(run.status, run.claim_name, found):
            return None, lost
        if found is None and body is not None:
            try:
                found = await self.kube.create(f"api/v1/namespaces/{run.namespace}/persistentvolumeclaims", body)
            except KubeError as error:
                if error.reason != "AlreadyExists":
                    raise
                found = await self._claim(run)
        return (str(found["metadata"]["uid"]) if found else None), ""

    async def _claim(self, run: Run) -> Object | None:
        key = (run.namespace, run.claim_name)
        asked, body = self._claims.get(key, (0.0, None))
        shared = run.spec.artifacts.storage.claim_name is not None
        has_data = run.status.claim_uid is not None  # then nothing but the live answer will do
        if shared and not has_data and body is not None and time.monotonic() - asked < CLAIM_FRESH_SECONDS:
            return body
        body = await self.kube.get(f"api/v1/namespaces/{run.namespace}/persistentvolumeclaims/{run.claim_name}")
        if shared:
            now = time.monotonic()
            fresh = {claim: kept for claim, kept in self._claims.items() if now - kept[0] < CLAIM_FRESH_SECONDS}
            self._claims = {**fresh, key: (now, body)}
        return body

    async def _source(self, run: Run) -> Source:
        """What this run starts from, or the sentence that says why it can't."""
        named = run.spec.from_
        if named is None or named.run is None:
            return Source()
        body = self.cache.run((run.namespace, named.run)) or await self.kube.get(_run_path(run.namespace, named.run))
        return judge_source(run, body, self.clock())

    # -- apply and write

    async def _apply(self, run: Run, decision: Decision) -> None:
        for effect in decision.effects:
            if isinstance(effect, DeletePod):
                await self.kube.delete(_pod_path(run, run.pod_name(run.next_attempt)), uid=effect.uid)
            elif isinstance(effect, CleanUp):
                for body in self.cache.pods(run.namespace, run.uid):
                    metadata = body["metadata"]
                    if is_owned(run, body) and "deletionTimestamp" not in metadata:
                        await self.kube.delete(_pod_path(run, metadata["name"]), uid=metadata["uid"])

    async def _clear_away(self, run: Run, status: Status) -> None:
        """Delete a pod that the run is done with and that does not end: a container that somebody has injected (a proxy of a
        service mesh) outlives the worker, and with it the pod holds its place and its GPUs, and keeps the next attempt away."""
        for body in self.cache.pods(run.namespace, run.uid):
            metadata = body["metadata"]
            in_use = metadata["uid"] == status.pod_uid and status.fsm_state != State.TERM
            since = left_behind_since(body)
            if in_use or since is None or not is_owned(run, body):
                continue
            noticed = [step.at for step in (status.transitions or [])[-1:]]  # the node's clock may be behind ours
            patience = timedelta(seconds=self.settings.grace_seconds + LINGER_SECONDS)
            left = max([since, *noticed]) + patience - self.clock()
            if left > timedelta():
                self.wake(run.key, left.total_seconds())
            else:
                await self.kube.delete(_pod_path(run, metadata["name"]), uid=metadata["uid"])

    async def _write(self, run: Run, decision: Decision, now: datetime) -> None:
        """One status write if something changed, then what depends on it."""
        status = decision.status
        before, after = run.status.dump(), status.dump()
        changed = merge_patch(before, after)
        if aside := self._aside(run, decision, changed):
            self.wake(run.key, aside)
            return
        if changed:
            if _is_talk(before, after):
                awaited = self.sessions.awaits(run)
                wait = self.budget.wait(run.key, now, awaited=awaited)
                if wait:
                    if awaited:
                        self.wake(run.key, wait.total_seconds())
                    return
                self.progress_writes += 1
            elif status.fsm_state == State.TERM:
                self.budget.forget(run.key)
            elif status.progress is not None:
                self.budget.wrote(run.key, now)
            self.status_writes += 1
            written = await self.kube.patch_status(run.namespace, run.name, run.resource_version, changed)
            self.cache.put_run(written)
            if run.status.fsm_state != status.fsm_state:
                logs.about(f"{run.namespace}/{run.name}", status.attempt)
                log.info("%s -> %s", run.status.fsm_state or "new", status.fsm_state, extra={"reason": status.reason})
                self.tally.moved(run.status, status)
            for event in decision.events:
                self.announce(run, event)
        self.sessions.written(run, status)

    def _aside(self, run: Run, decision: Decision, changed: dict[str, Any]) -> float:
        """How many seconds this write may wait for what comes next; 0 when it may not."""
        pressed = self.pressed()
        small = run.status.fsm_state == State.INIT and changed.keys() <= ASIDES and not decision.events
        opening = run.status.fsm_state is None and decision.status.fsm_state == State.INIT
        waits = small or (opening and pressed and decision.status.pod_uid is not None)
        if changed and waits:
            return self._asides.wait(run.key, small=small, pressed=pressed)
        self._asides.forget(run.key)
        return 0.0

    async def _named(self, run: Run, facts: Facts, decision: Decision) -> Status:
        """The status with the names of what belongs to the run filled in."""
        status = decision.status
        if status.pod_uid is not None and run.status.pod_uid is None:
            status = status.model_copy(update={"pod_name": run.pod_name(status.attempt)})
        if not status.attempt or run.spec.dry_run:
            return status
        known = status.analytics or AnalyticsStatus()
        found: dict[str, Any] = {"tensorboard": await self._tensorboard(run, facts, decision)}
        if known.claim_name is None:
            found |= {"claim_name": run.claim_name, "path": run.folder}
        last = self.cache.pod(run.namespace, run.uid, status.pod_name) if status.pod_name else None
        if last is not None and is_owned(run, last) and (digest := finished_manifest(last)) is not None:
            found |= {"manifest_digest": digest, "reason": None, "message": None}
        return status.model_copy(update={"analytics": known.model_copy(update=found)})

    async def _tensorboard(self, run: Run, facts: Facts, decision: Decision) -> TensorBoardStatus | None:
        """Where the run's TensorBoard is, or why it is nowhere."""
        status = decision.status
        if tensorboard.is_served(run, self.settings):
            over = any(isinstance(effect, CleanUp) for effect in decision.effects)
            ready = facts.pod.tensorboard_ready
            return await self.boards.look_after(run, status, self.settings, sidecar_ready=ready, over=over)
        if run.status.fsm_state == State.TERM:
            return status.analytics.tensorboard if status.analytics else None  # said when it ended
        if not run.spec.artifacts.tensorboard.enabled:
            return tensorboard_policy.disabled()
        if tensorboard.wants_service(run):
            return tensorboard_policy.not_offered()
        name = run.pod_name(status.attempt)
        return tensorboard_policy.beside_worker(status, name, self.settings.tensorboard_port)


def merge_patch(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What turns one into the other as a JSON merge patch: what is gone, at any depth, is null."""
    changed: dict[str, Any] = {}
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if inner := merge_patch(old, new):
                changed[name] = inner
        elif old != new:
            changed[name] = new
    return changed


def _is_talk(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether the two differ only in what a working worker says all the time: progress, checkpoints, event numbers."""
    return _without_talk(before) == _without_talk(after)


def _without_talk(status: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in status.items() if name not in ("progress", "checkpoint", "session")}
    kept["session"] = {name: value for name, value in (status.get("session") or {}).items() if name != "lastEvent"}
    return kept


def _may_be_cut_off(facts: Facts) -> bool:
    """Whether nothing is heard of the pod, so that it is worth a question how its node is."""
    if facts.session is not None:
        return facts.session.late_seconds > 0
    return facts.unheard_seconds > 0 or facts.pod.deleting


NOT_YET = re.compile(
    r"""\ is\ forbidden:\ (
    User\ "[^"]*"\ cannot\              # our own rights: an API server that has just started knows nobody's
    | error\ looking\ up\ service\ account  # a namespace's first seconds, or an account that is applied after the run
    | status\ unknown\ for\ quota         # a quota's first seconds
    | no\ PriorityClass\ with\ name
    | pod\ rejected:\ RuntimeClass\ "[^"]*"\ not\ found
    )""",
    re.VERBOSE,
)
"""Refusals of what may be there in a moment: who applies several manifests at once does not choose their order."""


def _refusal(error: KubeError, before: Refusal | None = None) -> Refusal | None:
    """What a refused pod means; None when it is no refusal but a failure to ask. `before` is the last answer."""
    message = str(error)
    no_word = error.status == 500 and error.reason == "InternalError"  # a webhook that does not answer, mostly
    if no_word or (error.status == 403 and NOT_YET.search(message)):
        waited = before.retry_seconds if before is not None and before.kind is RefusalKind.NOT_YET else 0.5
        return Refusal(RefusalKind.NOT_YET, message, min(2 * waited, MOST_NOT_YET_SECONDS))
    if error.status == 403 and "exceeded quota" in message:
        return Refusal(RefusalKind.QUOTA, message)
    if error.status == 403 and "being terminated" in message:
        return Refusal(RefusalKind.NAMESPACE, message)
    if error.status in (400, 403, 422):
        return Refusal(RefusalKind.POLICY, message)
    return None


def _run_path(namespace: str, name: str) -> str:
    return f"apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}"


def _pod_path(run: Run, name: str) -> str:
    return f"api/v1/namespaces/{run.namespace}/pods/{name}"

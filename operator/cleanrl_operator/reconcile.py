"""Reconcile one run: observe -> decide -> apply -> one status write -> events.

Level-based and idempotent: it may be called at any time and any number of times. The order matters: a pod is created before the
status that names it is written (its name is deterministic, so a crash in between finds it again), and a session's events are
acknowledged only after the status that holds them is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from cleanrl_operator.api import GROUP, KIND, VERSION
from cleanrl_operator.api.spec import Mode
from cleanrl_operator.api.status import State, Status
from cleanrl_operator.cache import Cache, Key
from cleanrl_operator.desired import claim, pod
from cleanrl_operator.facts import Facts, PodFacts, PodSituation, Refusal, RefusalKind, SessionFacts
from cleanrl_operator.fsm import CleanUp, CreatePod, Decision, DeletePod, Desired, decide
from cleanrl_operator.kube import Kube, KubeError
from cleanrl_operator.observe import observe_pod
from cleanrl_operator.run import Run, UnreadableRun
from cleanrl_operator.settings import Settings
from cleanrl_protocol.podconfig import BadPodConfig

log = logging.getLogger(__name__)
PROGRESS_FIELDS = ("progress",)


class Sessions(Protocol):
    """What reconcile needs of the gateway."""

    def facts(self, run: Run) -> SessionFacts | None:
        """What the worker of the run's current pod has said, or None."""

    def written(self, run: Run, last_event: int) -> None:
        """The status now holds everything up to this event: it may be acknowledged."""

    def desire(self, run: Run, desired: Desired) -> None:
        """What the worker should do."""


class ProgressBudget(Protocol):
    """Who may write progress now."""

    def allow(self, key: Key, now: datetime) -> bool:
        """Take one write out of the fleet's budget, if there is one and it is this run's turn."""


@dataclass
class Reconciler:
    """Reconcile with everything it needs injected."""

    kube: Kube
    cache: Cache
    settings: Settings
    sessions: Sessions
    budget: ProgressBudget
    wake: Callable[[Key, float], None]
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def __call__(self, key: Key) -> None:
        """Bring one run a step further. Raises KubeError when it should be tried again."""
        body = self.cache.run(key)
        if body is None:
            return
        try:
            run = Run.parse(body)
        except UnreadableRun as error:
            log.exception("run can't be read", extra={"run": f"{key[0]}/{key[1]}", "fault": str(error)})
            return
        if run.deleting or (run.spec.operator_class or "") != self.settings.operator_class:
            return
        try:
            await self._reconcile(run)
        except KubeError as error:
            if error.status == 404:
                return  # the run is going away; its deletion is the garbage collector's
            if error.status == 409:
                fresh = await self.kube.get(_run_path(run))
                if fresh is not None:
                    self.cache.put_run(fresh)
            log.warning("%s", error, extra={"run": f"{run.namespace}/{run.name}", "attempt": run.status.attempt})
            if error.retry_after is not None:
                self.wake(key, error.retry_after)
                return
            raise

    async def _reconcile(self, run: Run) -> None:
        now = self.clock()
        facts = await self._gather(run)
        decision = self._decide(run, facts, now)
        if any(isinstance(effect, CreatePod) for effect in decision.effects):
            facts = await self._create_pod(run, facts)
            decision = self._decide(run, facts, now)
        await self._apply(run, decision)
        await self._write(run, decision, now)
        self.sessions.desire(run, decision.desired)
        if decision.wake_at is not None:
            self.wake(run.key, (decision.wake_at - now).total_seconds())

    def _decide(self, run: Run, facts: Facts, now: datetime) -> Decision:
        return decide(run.spec, run.status, facts, now, generation=run.generation, run_id=run.run_id)

    async def _gather(self, run: Run) -> Facts:
        """Everything that is known; what an index can't prove is asked live."""
        if run.status.fsm_state == State.TERM:
            return Facts(pod=self._cached_pod(run))
        seen = self._cached_pod(run)
        if seen.situation is PodSituation.UNKNOWN and run.status.pod_uid is not None:
            seen = await self._live_pod(run)
        facts = Facts(pod=seen, session=self.sessions.facts(run))
        if facts.session is not None and facts.session.late_seconds > 0 and seen.node_name is not None:
            facts = replace(facts, node_ready=await self._node_ready(seen.node_name))
        return facts

    def _cached_pod(self, run: Run) -> PodFacts:
        body = self.cache.pod(run.uid, run.pod_name(run.next_attempt))
        return observe_pod(run, body) if body is not None else PodFacts()

    async def _live_pod(self, run: Run) -> PodFacts:
        body = await self.kube.get(_pod_path(run, run.pod_name(run.next_attempt)))
        if body is None or body["metadata"]["uid"] != run.status.pod_uid:
            return PodFacts(situation=PodSituation.GONE)
        self.cache.put_pod(body)
        return observe_pod(run, body)

    async def _node_ready(self, name: str) -> bool | None:
        node = await self.kube.get(f"api/v1/nodes/{name}")
        if node is None:
            return False
        conditions = (node.get("status") or {}).get("conditions") or []
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    async def _create_pod(self, run: Run, facts: Facts) -> Facts:
        """Claim and pod of the next attempt. What the API server refuses becomes a fact."""
        source, fault = await self._source(run)
        if fault:
            return replace(facts, config_error=fault)
        try:
            await self._ensure_claim(run)
            body = pod.build(run, self.settings, source)
            created = await self.kube.create(f"api/v1/namespaces/{run.namespace}/pods", body)
        except BadPodConfig as error:
            return replace(facts, config_error=str(error))
        except KubeError as error:
            if error.status == 409 and error.reason == "AlreadyExists":
                return replace(facts, pod=await self._taken(run))
            refusal = _refusal(error)
            if refusal is None:
                raise
            return replace(facts, refusal=refusal)
        self.cache.put_pod(created)
        return replace(facts, pod=observe_pod(run, created))

    async def _taken(self, run: Run) -> PodFacts:
        """A pod of the name exists: ours from before a crash, or somebody else's."""
        body = await self.kube.get(_pod_path(run, run.pod_name(run.next_attempt)))
        if body is None:
            raise KubeError(409, "Conflict", "the pod vanished while it was looked at")
        self.cache.put_pod(body)
        return observe_pod(run, body)

    async def _ensure_claim(self, run: Run) -> None:
        body = claim.build(run, self.settings)
        if body is None or run.status.attempt > 0:
            return
        try:
            await self.kube.create(f"api/v1/namespaces/{run.namespace}/persistentvolumeclaims", body)
        except KubeError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _source(self, run: Run) -> tuple[Run | None, str]:
        """The run that this one starts from, or the sentence that says why it can't."""
        named = run.spec.from_
        if named is None or named.run is None:
            return None, ""
        body = self.cache.run((run.namespace, named.run)) or await self.kube.get(_run_path(run, named.run))
        if body is None:
            return None, f"from.run names {named.run}, and there is no such run in this namespace"
        source = Run.parse(body)
        if run.spec.mode != Mode.INTERACTIVE and source.spec.env_id != run.spec.env_id:
            return None, f"{named.run} was trained on {source.spec.env_id}, not on {run.spec.env_id}"
        if source.spec.algo != run.spec.algo:
            return None, f"{named.run} was trained with {source.spec.algo}, not with {run.spec.algo}"
        return source, ""

    async def _apply(self, run: Run, decision: Decision) -> None:
        for effect in decision.effects:
            if isinstance(effect, DeletePod):
                name = run.pod_name(run.next_attempt)
                await self.kube.delete(_pod_path(run, name), uid=effect.uid)
            elif isinstance(effect, CleanUp):
                for body in self.cache.pods(run.uid):
                    if "deletionTimestamp" not in body["metadata"]:
                        await self.kube.delete(_pod_path(run, body["metadata"]["name"]), uid=body["metadata"]["uid"])

    async def _write(self, run: Run, decision: Decision, now: datetime) -> None:
        """One status write if something changed, then what depends on it."""
        status = decision.status
        if status.pod_uid is not None and run.status.pod_uid is None:
            status = status.model_copy(update={"pod_name": run.pod_name(status.attempt)})
        before, after = run.status.dump(), status.dump()
        changed = {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        if changed and set(changed) <= set(PROGRESS_FIELDS) and not self.budget.allow(run.key, now):
            changed = {}
        if changed:
            written = await self.kube.patch_status(run.namespace, run.name, run.resource_version, changed)
            self.cache.put_run(written)
            await self._announce(run, run.status, decision)
        if status.session is not None:
            self.sessions.written(run, status.session.last_event)

    async def _announce(self, run: Run, before: Status, decision: Decision) -> None:
        after = decision.status
        if before.fsm_state != after.fsm_state:
            moved = f"{before.fsm_state or 'new'} -> {after.fsm_state}"
            where = {"run": f"{run.namespace}/{run.name}", "attempt": after.attempt, "reason": after.reason}
            log.info("%s", moved, extra=where)
        moment = self.clock().isoformat(timespec="microseconds").replace("+00:00", "Z")
        for number, event in enumerate(decision.events):
            body = {
                "metadata": {
                    "name": f"{run.name[:200]}.{int(self.clock().timestamp() * 1e6):x}{number}",
                    "namespace": run.namespace,
                },
                "involvedObject": {
                    "apiVersion": f"{GROUP}/{VERSION}",
                    "kind": KIND,
                    "name": run.name,
                    "namespace": run.namespace,
                    "uid": run.uid,
                    "resourceVersion": run.resource_version,
                },
                "type": "Warning" if event.warning else "Normal",
                "reason": event.reason,
                "message": event.message[:1024],
                "eventTime": moment,
                "reportingComponent": "cleanrl-operator",
                "reportingInstance": self.settings.operator_class or "default",
                "action": event.reason,
            }
            try:
                await self.kube.event(run.namespace, body)
            except KubeError as error:  # an Event is a courtesy: the status already holds the truth
                log.warning("event not posted: %s", error, extra={"run": f"{run.namespace}/{run.name}"})


def _refusal(error: KubeError) -> Refusal | None:
    """What a refused pod means; None when it is no refusal but a failure to ask."""
    message = str(error)
    if error.status == 403 and "exceeded quota" in message:
        return Refusal(RefusalKind.QUOTA, message)
    if error.status == 403 and "being terminated" in message:
        return Refusal(RefusalKind.NAMESPACE, message)
    if error.status in (400, 403, 422):
        return Refusal(RefusalKind.POLICY, message)
    return None


def _run_path(run: Run, name: str | None = None) -> str:
    return f"apis/{GROUP}/{VERSION}/namespaces/{run.namespace}/cleanrlruns/{name or run.name}"


def _pod_path(run: Run, name: str) -> str:
    return f"api/v1/namespaces/{run.namespace}/pods/{name}"

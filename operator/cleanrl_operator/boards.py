"""TensorBoards that outlive their run's pod: Service, Deployment and route of `serve: always`.

A Deployment exists only once a run rests (suspended or over), and gives way before a pod is created that needs the same claim,
unless many nodes may mount that. Nothing of this ever holds a run up: what the API server refuses becomes the reason in
`status.analytics.tensorboard`, and what fails in passing is tried again.

Deployments are not watched. Each is looked at once after a start of the operator, and then until it answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cleanrl_operator.api.status import Status, TensorBoardStatus
from cleanrl_operator.cache import Key
from cleanrl_operator.desired import tensorboard as desired
from cleanrl_operator.holders import Claim, Holders
from cleanrl_operator.kube import Kube, KubeError, Object
from cleanrl_operator.policies import tensorboard as policy
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

log = logging.getLogger(__name__)
FIRST_LOOK, LAST_LOOK = 2.0, 60.0
"""Seconds between two looks at a Deployment that does not answer yet, at first and at most."""
COLLECTIONS = {
    "Service": ("api/v1", "services"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "Ingress": ("apis/networking.k8s.io/v1", "ingresses"),
    "HTTPRoute": ("apis/gateway.networking.k8s.io/v1", "httproutes"),
}
TRIED_AGAIN = frozenset({"Refused", "NameTaken", "NotOffered"})


class Taken(Exception):
    """An object of the name exists and is not the run's."""


@dataclass
class Boards:
    """All TensorBoards of one operator."""

    kube: Kube
    wake: Callable[[Key, float], None]
    _users: Holders = field(default_factory=Holders)
    """Runs whose pods hold a claim, or want to."""
    _servers: Holders = field(default_factory=Holders)
    """Runs whose Deployment holds a claim, as far as this process knows."""
    _served: dict[Key, Run] = field(default_factory=dict)
    _for_many: dict[Claim, bool] = field(default_factory=dict)
    _answers: set[Key] = field(default_factory=set)
    _looks: dict[Key, int] = field(default_factory=dict)

    # -- who uses which claim

    def note(self, run: Run, status: Status) -> None:
        """Remember whether the run's pod needs its claims in this status."""
        if not policy.needs_claim(status):
            self._use(run.key, frozenset())
        elif run.key not in self._users and not run.spec.dry_run:
            self._use(run.key, frozenset({_claim(run)}))

    async def make_way(self, run: Run, pod: Object) -> None:
        """Scale TensorBoards down that would keep this pod of the run from its claims. Before it is created."""
        mounted = [
            volume["persistentVolumeClaim"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume
        ]
        claims = frozenset((run.namespace, str(claim["claimName"])) for claim in mounted)
        self._use(run.key, claims)
        for claim in claims:
            for server in list(self._servers.of(claim)):
                if not await self._is_for_many(claim) and server in self._served:
                    await self._ask_to_leave(self._served[server])

    def forget(self, key: Key) -> None:
        """The run is gone; the garbage collector takes what belonged to it."""
        self._use(key, frozenset())
        self._retire(key)
        self._looks.pop(key, None)

    def _use(self, key: Key, claims: frozenset[Claim]) -> None:
        """The run's pod holds exactly these claims from now on; TensorBoards on those that change hear of it."""
        for claim in self._users.hold(key, claims):
            for server in self._servers.of(claim):
                if server != key:
                    self.wake(server, 0.0)
            self._forget_claim(claim)

    def _retire(self, key: Key) -> None:
        """The run has no Deployment on its claim any more."""
        for claim in self._servers.hold(key, frozenset()):
            self._forget_claim(claim)
        self._served.pop(key, None)
        self._answers.discard(key)

    def _forget_claim(self, claim: Claim) -> None:
        if not self._users.of(claim) and not self._servers.of(claim):
            self._for_many.pop(claim, None)

    # -- one run's TensorBoard

    async def look_after(
        self, run: Run, status: Status, settings: Settings, *, sidecar_ready: bool, over: bool
    ) -> TensorBoardStatus:
        """Make what should be there, remove what should not, and say what the status should say.

        `over`: the time to live after the end has passed.
        """
        known = run.status.analytics.tensorboard if run.status.analytics is not None else None
        if known is not None and known.reason == policy.REMOVED:
            return known
        try:
            if over:
                await self._remove(run, settings)
                return policy.removed()
            if known is None or known.reason in TRIED_AGAIN:
                await self._ensure(desired.service(run, settings))
                if (route := desired.route(run, settings)) is not None:
                    await self._ensure(route)
            return await self._serve(run, status, settings, sidecar_ready)
        except Taken as error:
            return policy.without("NameTaken", str(error))
        except KubeError as error:
            if not error.transient:
                return policy.without("Refused", str(error))
            log.warning("TensorBoard has to wait: %s", error)
            self.wake(run.key, error.retry_after or FIRST_LOOK)
            return known or policy.without(policy.NOT_YET, "The API server did not answer.")

    async def _serve(self, run: Run, status: Status, settings: Settings, sidecar_ready: bool) -> TensorBoardStatus:
        answer = TensorBoardStatus(url=desired.url(run, settings))
        if policy.has_pod(status):
            return answer if sidecar_ready else policy.without(policy.NOT_YET, "TensorBoard starts with the pod.")
        if not policy.rests(status):
            return policy.without(policy.NOT_YET, "TensorBoard starts with the next attempt's pod.")
        claim = _claim(run)
        self._servers.hold(run.key, frozenset({claim}))  # it hears when a pod needs the claim, and when it is free
        self._served[run.key] = run
        if self._users.of(claim) and not await self._is_for_many(claim):
            await self._scale_down(run)
            return policy.without(
                "ClaimInUse", f"Claim {run.claim_name} is in use by a run; TensorBoard is back after it."
            )
        if run.key in self._answers:
            return answer
        found = await self._ensure(desired.deployment(run, settings))
        if found["spec"].get("replicas") == 0:
            path = f"{_collection('Deployment', run.namespace)}/{desired.name_of(run)}"
            found = await self.kube.merge(path, {"spec": {"replicas": 1}})
        if (found.get("status") or {}).get("availableReplicas"):
            self._answers.add(run.key)
            self._looks.pop(run.key, None)
            return answer
        looks = self._looks[run.key] = self._looks.get(run.key, 0) + 1
        self.wake(run.key, min(FIRST_LOOK * 1.5 ** (looks - 1), LAST_LOOK))
        return policy.without(policy.NOT_YET, "TensorBoard is starting.")

    async def _is_for_many(self, claim: Claim) -> bool:
        """Whether pods on several nodes may mount the claim at once."""
        if claim not in self._for_many:
            body = await self.kube.get(f"api/v1/namespaces/{claim[0]}/persistentvolumeclaims/{claim[1]}")
            if body is None:
                return False
            self._for_many[claim] = "ReadWriteMany" in (body["spec"].get("accessModes") or [])
        return self._for_many[claim]

    async def _ask_to_leave(self, run: Run) -> None:
        """Scale down for another run's sake. A refusal is no word on that run's pod, and must not be taken for one."""
        try:
            await self._scale_down(run)
        except KubeError as error:
            if error.transient:
                raise
            log.warning("the TensorBoard of %s keeps its claim, which may hold up other pods: %s", run.name, error)

    async def _scale_down(self, run: Run) -> None:
        """Take the run's Deployment off its claim, if there is one."""
        self._answers.discard(run.key)
        path = f"{_collection('Deployment', run.namespace)}/{desired.name_of(run)}"
        found = await self.kube.get(path)
        if found is not None and _is_ours(run.uid, found) and found["spec"].get("replicas") != 0:
            await self.kube.merge(path, {"spec": {"replicas": 0}})

    async def _ensure(self, body: Object) -> Object:
        """The object as it exists. Raises Taken when it is somebody else's."""
        kind, metadata = body["kind"], body["metadata"]
        collection = _collection(kind, metadata["namespace"])
        found = await self.kube.get(f"{collection}/{metadata['name']}")
        if found is None:
            return await self.kube.create(collection, body)
        if not _is_ours(metadata["ownerReferences"][0]["uid"], found):
            raise Taken(f"A {kind} called {metadata['name']} exists and is not this run's.")
        return found

    async def _remove(self, run: Run, settings: Settings) -> None:
        for body in (desired.route(run, settings), desired.deployment(run, settings), desired.service(run, settings)):
            if body is None:
                continue
            path = f"{_collection(body['kind'], run.namespace)}/{desired.name_of(run)}"
            found = await self.kube.get(path)
            if found is not None and _is_ours(run.uid, found):
                await self.kube.delete(path, uid=found["metadata"]["uid"])
        self._retire(run.key)


def _claim(run: Run) -> Claim:
    return run.namespace, run.claim_name


def _collection(kind: str, namespace: str) -> str:
    group, plural = COLLECTIONS[kind]
    return f"{group}/namespaces/{namespace}/{plural}"


def _is_ours(run_uid: str, body: Any) -> bool:
    return any(owner.get("uid") == run_uid for owner in body["metadata"].get("ownerReferences") or [])

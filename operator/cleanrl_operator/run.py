"""One `CleanRLRun` as it was read: identity, spec and status, and the names that follow from them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from ulid import ULID

from cleanrl_operator import nesting
from cleanrl_operator.api import GROUP, KIND, VERSION
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Status

RUN_LABEL = f"{GROUP}/run"
RUN_UID_LABEL = f"{GROUP}/run-uid"
CLASS_LABEL = f"{GROUP}/operator-class"
ATTEMPT_LABEL = f"{GROUP}/attempt"
CONFIG_ANNOTATION = f"{GROUP}/config"
DRY_RUN_ANNOTATION = f"{GROUP}/dry-run"
MANAGED_BY = "cleanrl-operator"


class UnreadableRun(Exception):
    """A run that the models can't read, for example written under an older CRD. The message names the fields."""


def class_of(body: Mapping[str, Any]) -> str:
    """The class of the installation that looks after this run; empty for the one without a class."""
    return str((body.get("spec") or {}).get("operatorClass") or "")


@dataclass(frozen=True)
class Run:
    """A run at one resource version."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created: datetime
    deleting: bool
    labels: Mapping[str, str]
    spec: Spec
    status: Status

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Run:
        """Read the object as the API server gives it. Raises UnreadableRun."""
        metadata = body["metadata"]
        if nesting.is_too_deep(body.get("spec")):
            raise UnreadableRun(f"spec: nested more than {nesting.MOST_LEVELS} levels deep")
        try:
            spec = Spec.model_validate(body.get("spec") or {})
            status = Status.model_validate(body.get("status") or {})
            annotated = (metadata.get("annotations") or {}).get(DRY_RUN_ANNOTATION) == "true"
            # An annotation can be edited at any time: what the run was accepted as counts, else its end would be told wrongly.
            if annotated if status.dry_run is None else status.dry_run:
                spec = spec.model_copy(update={"dry_run": True})
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:10])
            raise UnreadableRun(faults) from None
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            resource_version=metadata["resourceVersion"],
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            deleting="deletionTimestamp" in metadata,
            labels=metadata.get("labels") or {},
            spec=spec,
            status=status,
        )

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def run_id(self) -> str:
        """A ULID made of the creation time and the UID, so that no crash can lose or change it."""
        moment = int(self.created.timestamp() * 1000).to_bytes(6, "big")
        return str(ULID.from_bytes(moment + hashlib.sha256(self.uid.encode()).digest()[:10]))

    @property
    def next_attempt(self) -> int:
        """The attempt whose pod is live, or the one that would be created next."""
        return self.status.attempt if self.status.pod_uid is not None else self.status.attempt + 1

    def pod_name(self, attempt: int) -> str:
        """The pod's name: readable, and unguessable to be taken by chance since it carries a hash of the UID."""
        digest = hashlib.sha256(self.uid.encode()).hexdigest()[:8]
        return f"{self.name[:40].rstrip('-.')}-{digest}-{attempt}"

    @property
    def claim_name(self) -> str:
        """The claim that the run writes to."""
        storage = self.spec.artifacts.storage
        return (
            storage.claim_name or f"{self.name[:40].rstrip('-.')}-{hashlib.sha256(self.uid.encode()).hexdigest()[:8]}"
        )

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirement sets that the run asks for."""
        return tuple(str(name) for name in self.spec.requirements or ())

    @property
    def folder(self) -> str:
        """The run's folder on the claim."""
        return f"runs/{self.run_id}"

    def owner_reference(self, *, controller: bool = True) -> dict[str, Any]:
        """What makes the garbage collector remove a child with the run."""
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": controller,
            "blockOwnerDeletion": False,
        }

    def child_labels(self) -> dict[str, str]:
        """Labels of every object that belongs to the run."""
        return {
            "app.kubernetes.io/managed-by": MANAGED_BY,
            "app.kubernetes.io/part-of": MANAGED_BY,
            RUN_LABEL: self.name,
            RUN_UID_LABEL: self.uid,
        } | ({CLASS_LABEL: self.spec.operator_class} if self.spec.operator_class else {})

"""The claim of a run that has none of its own choosing."""

from __future__ import annotations

from typing import Any

from cleanrl_operator.api.spec import AccessMode, DeletionPolicy
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings


def build(run: Run, settings: Settings) -> dict[str, Any] | None:
    """The claim, or None when the run uses one that exists, or is a dry run and leaves nothing behind.

    Only `deletionPolicy: Delete` ties it to the run.
    """
    storage = run.spec.artifacts.storage
    if storage.claim_name is not None or run.spec.dry_run:
        return None
    spec: dict[str, Any] = {
        "accessModes": [str(mode) for mode in storage.access_modes or [AccessMode.READ_WRITE_ONCE]],
        "resources": {"requests": {"storage": storage.size or settings.default_claim_size}},
    }
    if storage.storage_class_name is not None:
        spec["storageClassName"] = storage.storage_class_name
    metadata: dict[str, Any] = {"name": run.claim_name, "namespace": run.namespace, "labels": run.child_labels()}
    if storage.deletion_policy == DeletionPolicy.DELETE:
        metadata["ownerReferences"] = [run.owner_reference()]
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}

"""What every pod of ours has in common: no rights, a read-only root, and the user's wishes about where it runs."""

from __future__ import annotations

from typing import Any

from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

RUN_FOLDER = "/run-data"
SCRATCH = "/tmp"  # noqa: S108 - an emptyDir of the pod's own
CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PLACEMENT = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "imagePullSecrets",
)
"""What the user says about scheduling. Security, volumes of the run and the restart policy are not the user's."""


def pod_spec(run: Run, settings: Settings) -> dict[str, Any]:
    """A pod's spec under the restricted profile, without containers and volumes."""
    template = run.spec.pod_template
    wishes = template.dump() if template is not None else {}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": (template and template.service_account_name) or settings.service_account,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user_id,
            "runAsGroup": settings.user_id,
            "fsGroup": settings.user_id,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    } | {field: wishes[field] for field in PLACEMENT if field in wishes}

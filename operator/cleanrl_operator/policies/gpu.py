"""Optional GPUs: after a while without one the run goes on with the CPU, and says so."""

from __future__ import annotations

from datetime import datetime, timedelta

from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Status
from cleanrl_operator.facts import PodFacts, PodSituation


def fallback_at(spec: Spec, status: Status, pod: PodFacts) -> datetime | None:
    """When the pod stops waiting for its GPU; None when it has none to wait for, must have it, or has given up before."""
    gpus = spec.resources.gpus
    waiting = pod.situation is PodSituation.PENDING and bool(pod.unschedulable) and pod.since is not None
    if gpus.requested == 0 or gpus.mandatory or status.gpu_fallback or not waiting:
        return None
    assert pod.since is not None
    return pod.since + timedelta(seconds=gpus.fallback_after_seconds)


def gpus_held(spec: Spec, status: Status) -> int:
    """How many GPUs the pod of this attempt asks for."""
    return 0 if status.gpu_fallback else spec.resources.gpus.requested

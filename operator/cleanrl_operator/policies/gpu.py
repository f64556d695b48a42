"""GPUs: after a while without an optional one the run goes on with the CPU, and says so; one that is not used is told."""

from __future__ import annotations

from datetime import datetime, timedelta

from cleanrl_operator.api.spec import Mode, Spec
from cleanrl_operator.api.status import Status
from cleanrl_operator.facts import PodFacts
from cleanrl_protocol.algorithms import leaves_gpu_idle

NO_NODES = "no nodes available"
"""How the scheduler begins its sentence where no node is there at all: then no GPU is there either."""


def may_do_without(spec: Spec, status: Status, said: str) -> bool:
    """Whether it is a GPU that the run waits for, one that is not mandatory and was not given up before. `said` is why it
    waits, in the scheduler's words or the quota's."""
    gpus = spec.resources.gpus
    wanted = gpus.resource_name in said or said.startswith(NO_NODES)
    return gpus.requested > 0 and not gpus.mandatory and not status.gpu_fallback and wanted


def fallback_at(spec: Spec, status: Status) -> datetime | None:
    """When a run stops waiting for a GPU that it can do without; None when it waits for none."""
    since = status.gpu_awaited_since
    return None if since is None else since + timedelta(seconds=spec.resources.gpus.fallback_after_seconds)


def is_short(spec: Spec, status: Status, pod: PodFacts) -> bool:
    """Whether it is GPUs that the pod waits for."""
    return gpus_held(spec, status) > 0 and f"Insufficient {spec.resources.gpus.resource_name}" in pod.unschedulable


def waiting(spec: Spec, pod: PodFacts, fallback: datetime | None) -> str:
    """The sentence for a pod that waits for GPUs, with what comes next."""
    gpus = spec.resources.gpus
    then = (
        "it starts when they are free."
        if fallback is None
        else f"from {fallback:%H:%M:%S} UTC it goes on with the CPU instead."
    )
    return f"No node has {gpus.requested} {gpus.resource_name} free; {then} The scheduler: {pod.unschedulable}"


def gpus_held(spec: Spec, status: Status) -> int:
    """How many GPUs the pod of this attempt asks for."""
    return 0 if status.gpu_fallback else spec.resources.gpus.requested


def unused(spec: Spec, status: Status) -> str:
    """The sentence for a GPU that is held and does nothing; empty when there is none."""
    if gpus_held(spec, status) == 0 or spec.mode == Mode.SCRIPT:
        return ""
    network = spec.algo_params.dump().get("network")
    if not leaves_gpu_idle(spec.algo, spec.env_id, network):
        return ""
    return (
        f"{spec.algo} on {spec.env_id} computes on the CPU, so the GPU that the run asks for stays idle: "
        "set resources.gpus.requested to 0 to leave it to others."
    )

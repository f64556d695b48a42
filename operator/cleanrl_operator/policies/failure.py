"""What an end that nobody asked for was, and the sentence for it."""

from __future__ import annotations

from cleanrl_operator.facts import EndReason, WorkerEnd
from cleanrl_protocol.limits import DISK_FULL

BY_SIGNAL = (137, 143)
"""Exit codes of a container that was killed or asked to end."""
BY_CLUSTER = {
    EndReason.EVICTED: "The cluster evicted the pod: its node was drained, or is short of memory or disk.",
    EndReason.SCRATCH: "The pod wrote more into /tmp and other scratch space than its limit allows, and was evicted for that.",
    EndReason.PREEMPTED: "The pod made room for one that goes before it.",
    EndReason.NODE_LOST: "The pod's node went away.",
}


def classify(
    end: WorkerEnd, disrupted: EndReason | None, silent: bool = False, memory: str = "", *, of_a_run: bool = False
) -> tuple[EndReason, str]:
    """The kubelet's word comes before the worker's record, and that before the exit code.

    `silent`: the worker's heartbeats had stopped before. A kill by its liveness probe is then the second witness. `memory`:
    what it was allowed. `of_a_run`: it was to start from another run's checkpoint, which that may have replaced meanwhile.
    """
    said = end.message
    if EndReason.OOM_KILLED in (end.kubelet_reason, end.reason):
        limit = f" of {memory}" if memory else ""
        return EndReason.OOM_KILLED, (
            f"The worker was killed because it used more than its memory{limit}: raise resources.memory, which can be "
            "edited while the run is suspended, or start a run with a smaller buffer-size or num-envs."
        )
    if disrupted is not None:
        told = "" if end.outcome in ("canceled", "suspended") or not said else f" {said}"
        return disrupted, BY_CLUSTER.get(disrupted, f"The pod was ended by the cluster ({disrupted}).") + told
    if end.reason in (EndReason.DEPENDENCIES, EndReason.IMAGE, EndReason.REJECTED):
        return EndReason(end.reason), said
    if end.reason == DISK_FULL:
        return EndReason.CLAIM_FULL, (
            f"The run's claim is full; the last checkpoint stands. Enlarge the claim, or delete what is not needed on it "
            f"(lower checkpoint.keep for the next run). The worker said: {said}"
        )
    if silent and end.outcome is None and end.exit_code in BY_SIGNAL:
        return EndReason.SILENCE, "The worker fell silent and its liveness probe ended it."
    if end.outcome is None and end.exit_code == 0:
        return EndReason.NO_RECORD, "The worker ended without a record of what it did."
    if end.reason == EndReason.NO_CHECKPOINT and of_a_run:
        return (
            EndReason.NO_CHECKPOINT,
            f"The checkpoint to start from was gone when the pod started. The worker said: {said}",
        )
    if end.reason == "BadConfig" or end.exit_code == 2:
        return EndReason.BAD_CONFIG, said or "The worker refused its configuration."
    if end.reason.startswith("NaN") or end.exit_code == 3:
        return EndReason.NAN, said or "Training diverged: a loss or a return was not a finite number."
    if end.outcome in {"canceled", "suspended"}:
        return EndReason.POD_LOST, (
            "Somebody deleted the pod; the worker saved a checkpoint before it left."
            if end.checkpoint_path and end.checkpoint_step >= end.step
            else "Somebody deleted the pod; what the worker had saved is on the claim."
        )
    if end.reason == EndReason.PHASE:
        return EndReason.PHASE, said
    return EndReason.EXIT_CODE, said or f"The worker ended with exit code {end.exit_code}."

"""What an end that nobody asked for was, and the sentence for it."""

from __future__ import annotations

from cleanrl_operator.facts import EndReason, WorkerEnd

BY_SIGNAL = (137, 143)
"""Exit codes of a container that was killed or asked to end."""


def classify(end: WorkerEnd, disrupted: EndReason | None, silent: bool = False) -> tuple[EndReason, str]:
    """The kubelet's word comes before the worker's record, and that before the exit code.

    `silent`: the worker's heartbeats had stopped before. A kill by its liveness probe is then the second witness.
    """
    said = end.message
    if end.kubelet_reason == "OOMKilled":
        return EndReason.OOM_KILLED, "The worker ran out of memory: raise resources.memory, or lower the buffer size."
    if disrupted is not None:
        return disrupted, said or f"The pod was ended by the cluster ({disrupted})."
    if end.reason == EndReason.DEPENDENCIES:
        return EndReason.DEPENDENCIES, said
    if silent and end.outcome is None and end.exit_code in BY_SIGNAL:
        return EndReason.SILENCE, "The worker fell silent and its liveness probe ended it."
    if end.outcome is None and end.exit_code == 0:
        return EndReason.NO_RECORD, "The worker ended without a record of what it did."
    if end.reason == "BadConfig" or end.exit_code == 2:
        return EndReason.BAD_CONFIG, said or "The worker refused its configuration."
    if end.reason.startswith("NaN") or end.exit_code == 3:
        return EndReason.NAN, said or "Training diverged: a loss or a return was not a finite number."
    if end.outcome in {"canceled", "suspended"}:
        return EndReason.POD_LOST, "The pod was stopped by somebody else; what it saved is on the claim."
    return EndReason.EXIT_CODE, said or f"The worker ended with exit code {end.exit_code}."

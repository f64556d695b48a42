"""What a status says about TensorBoard: an address that answers, or a reason why there is none. Never a broken link."""

from __future__ import annotations

from cleanrl_operator.api.status import State, Status, TensorBoardStatus

REMOVED = "Removed"
NOT_YET = "NotAvailableYet"
WITH_SIDECAR = (State.HSHK, State.RDY, State.EXEC, State.PAUSE)


def has_pod(status: Status) -> bool:
    """Whether a pod of the run is there to serve, or about to."""
    return status.pod_uid is not None and status.fsm_state != State.TERM


def rests(status: Status) -> bool:
    """Whether the run has no pod and wants none: suspended, or over."""
    return not has_pod(status) and status.fsm_state in (State.PAUSE, State.TERM)


def needs_claim(status: Status) -> bool:
    """Whether the run's pod holds the claim, or wants to."""
    return status.fsm_state is not None and not rests(status)


def disabled() -> TensorBoardStatus:
    """The run wants none."""
    return without("Disabled", "artifacts.tensorboard.enabled is false.")


def not_offered() -> TensorBoardStatus:
    """The run asks for more than the installation gives."""
    return without("NotOffered", "This installation does not serve TensorBoard beyond the run's own pod.")


def beside_worker(status: Status, pod_name: str, port: int) -> TensorBoardStatus:
    """For `serve: whileRunning`: how to reach the sidecar, while there is one."""
    if has_pod(status) and status.fsm_state in WITH_SIDECAR:
        return TensorBoardStatus(port_forward=f"pod/{pod_name} {port}:{port}")
    if rests(status) or status.fsm_state == State.FAULT:
        told = "TensorBoard was served by the run's pod; what it showed is on the claim, and"
        return without("NoPod", f"{told} examples/tensorboard-all-runs.yaml serves it again.")
    return without(NOT_YET, "TensorBoard starts with the pod.")


def removed() -> TensorBoardStatus:
    """ttlSecondsAfterFinished has passed."""
    return without(REMOVED, "Removed after ttlSecondsAfterFinished; what it showed is on the claim.")


def without(reason: str, message: str) -> TensorBoardStatus:
    """No address, and why."""
    return TensorBoardStatus(reason=reason, message=message[:1024])

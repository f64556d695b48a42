"""Conditions for GitOps tools and `kubectl wait`, derived from the state alone."""

from __future__ import annotations

from datetime import datetime

from cleanrl_operator.api.status import Condition, ConditionStatus, Outcome, State, Status

CHECKPOINT_FAILED = "CheckpointFailed"
STARTING = (State.INIT, State.HSHK, State.RDY, State.FAULT)


def truths(status: Status) -> dict[str, bool]:
    """Which conditions hold in this status. A condition that is not named here is absent."""
    state = status.fsm_state
    if state in STARTING:
        return {"Ready": False, "Reconciling": True}
    if state == State.EXEC:
        return {"Ready": True}
    if state == State.PAUSE:
        return {"Ready": True, "Suspended": True}
    if status.outcome == Outcome.COMPLETED:
        return {"Ready": True, "Complete": True}
    return {"Ready": False, "Stalled": True, "Failed": True}


def message_of(status: Status, kind: str) -> str:
    """What a condition of the status says; empty where it does not hold."""
    return next((each.message for each in status.conditions or [] if each.type == kind and each.status == "True"), "")


def conditions(
    status: Status, extra: dict[str, tuple[bool, str, str]], generation: int, now: datetime
) -> list[Condition]:
    """The list for this status. `lastTransitionTime` moves only when a condition's truth does.

    `extra` holds further conditions by type, as (truth, reason, message), for example a late heartbeat.
    """
    reason = status.reason or str(status.fsm_state)
    message = status.message or ""
    wanted = {name: (truth, reason, message) for name, truth in truths(status).items()} | extra
    before = {condition.type: condition for condition in status.conditions or []}
    result = []
    for name, (truth, why, text) in wanted.items():
        value = ConditionStatus.TRUE if truth else ConditionStatus.FALSE
        old = before.get(name)
        since = old.last_transition_time if old is not None and old.status == value else now
        result.append(
            Condition(
                type=name,
                status=value,
                observed_generation=generation,
                last_transition_time=since,
                reason=why,
                message=text,
            )
        )
    return result

"""Why a run should stop now, if it should: cancel before the wall clock before suspend."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Status
from cleanrl_operator.policies.deadline import wallclock_over_at

GRACE = timedelta(seconds=120)
"""How long a worker that was asked over its session may take to checkpoint before its pod is deleted."""


class Intent(Enum):
    """What a stop is for."""

    CANCEL = "Canceling"
    DEADLINE = "DeadlineExceeded"
    SUSPEND = "Suspending"


def intent(spec: Spec, status: Status, now: datetime) -> Intent | None:
    """What spec and clock ask for, or None."""
    if spec.cancel:
        return Intent.CANCEL
    over = wallclock_over_at(spec, status, now)
    if over is not None and over <= now:
        return Intent.DEADLINE
    if spec.suspend:
        return Intent.SUSPEND
    return None


def purpose(spec: Spec, status: Status, now: datetime) -> Intent | None:
    """What the worker's stop is for. A stop that was asked for and then withdrawn is carried through like a suspend, since
    the worker may have obeyed already; the run goes on with its next attempt."""
    asked = intent(spec, status, now)
    if asked is None and status.stop_requested_at is not None and status.pod_uid is not None:
        return Intent.SUSPEND
    return asked

"""Time limits: the wall clock of training, and how long a pod may wait to start."""

from __future__ import annotations

from datetime import datetime, timedelta

from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Status


def wallclock_used(status: Status, now: datetime) -> timedelta:
    """Time counted so far: earlier stretches, and the current one if the clock runs."""
    used = timedelta(seconds=status.wallclock_seconds)
    if status.wallclock_since is not None:
        used += max(now - status.wallclock_since, timedelta())
    return used


def with_stretch_from(status: Status, since: datetime, now: datetime) -> Status:
    """The status if its current stretch really began then, as the clock shows it now. When the clock was set meanwhile, the
    stretch is closed, as long as it really was, and a new one begins: so the correction is kept."""
    if since == status.wallclock_since:
        return status
    moment = max([now, *(step.at for step in (status.transitions or [])[-1:])])
    used = wallclock_used(status.model_copy(update={"wallclock_since": since}), now)
    return status.model_copy(
        update={"wallclock_seconds": round(used.total_seconds(), 3), "wallclock_since": moment},
    )


def wallclock_over_at(spec: Spec, status: Status, now: datetime) -> datetime | None:
    """When the limit is, or was, reached if the clock goes on as it does now; None without a limit or a running clock."""
    if spec.max_wallclock_minutes is None:
        return None
    left = timedelta(minutes=spec.max_wallclock_minutes) - wallclock_used(status, now)
    if left > timedelta() and status.wallclock_since is None:
        return None
    return now + left


def over(spec: Spec) -> str:
    """The sentence for a run whose time is over."""
    limit = f"maxWallclockMinutes ({spec.max_wallclock_minutes})" if spec.max_wallclock_minutes else "wall clock limit"
    return f"The run's {limit} is over; a run with mode resume and from.run goes on from its last checkpoint."


def pending_over_at(spec: Spec, since: datetime | None) -> datetime | None:
    """When a pod that has waited since then has waited too long; None when it may wait for ever."""
    if spec.pending_deadline_seconds == 0 or since is None:
        return None
    return since + timedelta(seconds=spec.pending_deadline_seconds)

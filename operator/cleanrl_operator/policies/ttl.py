"""What is removed after the end, and when. The run itself and its data are never removed."""

from __future__ import annotations

from datetime import datetime, timedelta

from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Status


def cleanup_at(spec: Spec, status: Status) -> datetime | None:
    """When pod, Service and TensorBoard of a finished run go; None when they stay."""
    if spec.ttl_seconds_after_finished is None or status.finished_at is None:
        return None
    return status.finished_at + timedelta(seconds=spec.ttl_seconds_after_finished)

"""What a judgement leads to: the next status, effects on the cluster, Events, and what the worker should do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import State, Status
from cleanrl_operator.policies import stopping


@dataclass(frozen=True)
class CreatePod:
    """POST the pod of this attempt. On success its UID comes back as a fact, on refusal the refusal does."""

    attempt: int


@dataclass(frozen=True)
class DeletePod:
    """Delete exactly this pod, with its own grace period."""

    uid: str


@dataclass(frozen=True)
class CleanUp:
    """Remove what is left of a finished run in the cluster; never the run itself or its data."""


Effect = CreatePod | DeletePod | CleanUp


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event, emitted after the status write that it speaks of."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Desired:
    """What the worker should do; sent down its session."""

    pause: bool = False
    stop: bool = False
    stop_reason: str = ""
    """cancel, suspend or deadline, when stop is set."""

    @classmethod
    def of(cls, spec: Spec, status: Status, now: datetime) -> Desired:
        """What spec and status ask of the worker of the current attempt."""
        live = status.pod_uid is not None and status.fsm_state != State.TERM
        if not live or status.stop_requested_at is None:
            return cls(pause=spec.pause)
        purpose = stopping.purpose(spec, status, now)
        return cls(pause=spec.pause, stop=True, stop_reason=purpose.name.lower() if purpose else "")


@dataclass(frozen=True)
class Decision:
    """The result of one judgement."""

    status: Status
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    desired: Desired = Desired()
    wake_at: datetime | None = None
    """When time alone will change the answer."""

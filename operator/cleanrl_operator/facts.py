"""What the operator knows of a run at one moment: plain values, made by `observe`, judged by `fsm`.

A fact is what an object or a session says, never a conclusion. Absence from an index is `PodSituation.UNKNOWN`; that a pod
is really gone (`GONE`) needs the live answer of the API server.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum

from cleanrl_operator.api.status import SourceStatus
from cleanrl_protocol import limits


class PodSituation(Enum):
    """Where the pod of the current attempt stands."""

    UNKNOWN = "not seen yet, or not looked up"
    GONE = "the API server says that no pod of this UID exists"
    FOREIGN = "a pod of this name exists and is not ours"
    GATED = "held by a scheduling gate"
    PENDING = "accepted, its worker container has not started"
    IMAGE_ERROR = "its image can't be pulled, or nothing in it can be started"
    RUNNING = "its worker container runs"
    ENDED = "its worker container has ended"


class EndReason(StrEnum):
    """How the kubelet, or the pod itself, explains an end. The retry policy's table is keyed by it."""

    COMPLETED = "Completed"
    NO_RECORD = "NoHandshake"
    OOM_KILLED = "OOMKilled"
    EVICTED = "Evicted"
    SCRATCH = "ScratchExceeded"
    REJECTED = "NodeRejected"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    POD_LOST = "PodLost"
    IMAGE = "ImageError"
    BAD_CONFIG = "BadConfig"
    NO_CHECKPOINT = limits.NO_CHECKPOINT
    NAN = "NaN"
    DEPENDENCIES = "DependencyInstallFailed"
    SILENCE = "HeartbeatLost"
    EXIT_CODE = "ExitCode"
    PHASE = "PhaseFailed"
    QUOTA = "QuotaExceeded"
    REFUSED = "PolicyRefused"
    NAME_TAKEN = "NameTaken"
    NO_GPU = "NoGPU"
    CLAIM_LOST = "ClaimLost"
    CLAIM_FULL = "ClaimFull"


@dataclass(frozen=True)
class WorkerEnd:
    """The end of a worker container: what the kubelet saw, and the record that the worker left, if it could."""

    exit_code: int
    kubelet_reason: str = ""
    ran_at: datetime | None = None
    """When the container started; None when it never did."""
    finished_at: datetime | None = None
    outcome: str | None = None
    """The record's outcome: completed, failed, canceled, deadline_exceeded or suspended; None without a valid record."""
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    """From the record: when run_started was emitted, if it ever was."""
    registered_at: datetime | None = None
    last_event: int = 0
    step: int = 0
    checkpoint_path: str | None = None
    checkpoint_step: int = 0
    checkpoint_sha256: str | None = None
    manifest_digest: str | None = None
    wandb_url: str | None = None


@dataclass(frozen=True)
class PodFacts:
    """The pod of the current attempt."""

    situation: PodSituation = PodSituation.UNKNOWN
    uid: str | None = None
    node_name: str | None = None
    since: datetime | None = None
    """When the situation began, as the objects tell it: creation, container start, first pull error, deletion; None where
    nobody saw the pod go."""
    deleting: bool = False
    disrupted: EndReason | None = None
    """Evicted, Preempted, NodeLost or ScratchExceeded, when the pod or its node says so."""
    unschedulable: str = ""
    """The scheduler's own sentence, when it found no place."""
    message: str = ""
    end: WorkerEnd | None = None
    tensorboard_ready: bool = False
    """Whether the TensorBoard beside the worker answers."""


@dataclass(frozen=True)
class SessionFacts:
    """What the worker of the current attempt has said through the gateway."""

    registered_at: datetime | None = None
    worker_id: str = ""
    supports_pause: bool = False
    supports_checkpoint: bool = False
    protocol: str = ""
    started_at: datetime | None = None
    """The first run_started."""
    paused: bool = False
    """The worker has confirmed that it stopped stepping."""
    last_event: int = 0
    log_epoch: int = 0
    late_seconds: float = 0.0
    """How late the next heartbeat is, counted only while the gateway could have heard it; 0 when it is not late."""
    step: int = 0
    total: int = 0
    """The step at which the worker will be done; 0 when it has not said. A resumed run has its source's steps behind it."""
    steps_per_second: float | None = None
    episodic_return: float | None = None
    stage: str | None = None
    """What the worker is in the middle of: a curriculum's stage, a script's phase, an evaluation's batch."""
    stages_done: float = 0.0
    """The share of those that are over."""
    wandb_url: str | None = None
    summary: str = ""
    """What a dry run found that would run."""
    checkpoint_path: str | None = None
    checkpoint_step: int = 0
    checkpoint_sha256: str | None = None
    checkpoint_at: datetime | None = None
    checkpoint_failure: str = ""
    """Why the last checkpoint could not be written; empty when it could."""


class RefusalKind(Enum):
    """Why the API server would not take the pod."""

    QUOTA = "a quota is exhausted: waiting may help"
    NOT_YET = (
        "what the pod needs, or who judges it, is not there yet, or our rights are not known yet: waiting may help"
    )
    POLICY = "a policy refuses the pod: waiting does not help"
    NAMESPACE = "the namespace is going away: nothing helps, and nothing needs to be said"


@dataclass(frozen=True)
class Refusal:
    """The API server's answer to the last attempt to create the pod."""

    kind: RefusalKind
    message: str
    retry_seconds: float = 30.0
    """How long to wait before it is asked again, where waiting may help."""
    since: datetime | None = None
    """When the run began to wait for its pod; None when that is now."""


@dataclass(frozen=True)
class Facts:
    """Everything that is known of a run at one moment."""

    pod: PodFacts = PodFacts()
    session: SessionFacts | None = None
    unheard_seconds: float = 0.0
    """How late a worker is that had registered with an operator before this one and has not come back; 0 while there is a
    session."""
    refusal: Refusal | None = None
    node_ready: bool | None = None
    """None when the node is not known or not looked at."""
    claim_uid: str | None = None
    """The claim that the run's data is on, when it was looked up."""
    claim_lost: str = ""
    """Why the claim that the run's data was on is not there any more; empty while it is."""
    predecessor: str = ""
    """A pod of an earlier attempt that may still write: no new one before it has ended."""
    source: SourceStatus | None = None
    """What the pod was given of the run that `from.run` names."""
    source_pending: str = ""
    """Why the run that this one starts from has nothing to start from yet; empty when it has, or there is none."""
    config_error: str = ""
    """Why the spec can't be turned into a pod: a missing source run, an environment that does not match."""

"""The status of a `CleanRLRun`: what is true of the run, written by the operator alone."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from cleanrl_operator.api.model import Model

Text = Annotated[str, Field(max_length=1024)]
Digest = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")]

MAX_TRANSITIONS = 20
MAX_STAGE = 128


class State(StrEnum):
    """The states of a run."""

    INIT = "INIT"
    HSHK = "HSHK"
    RDY = "RDY"
    EXEC = "EXEC"
    PAUSE = "PAUSE"
    FAULT = "FAULT"
    TERM = "TERM"


class Outcome(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    DEADLINE_EXCEEDED = "deadline_exceeded"


class ConditionStatus(StrEnum):
    """A condition's truth."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """One condition, as the Kubernetes API conventions define it."""

    type: Annotated[str, Field(max_length=316)] = Field(description="Name of the condition.")
    status: ConditionStatus = Field(description="True, False or Unknown.")
    observed_generation: int | None = Field(default=None, description="The generation it was judged for.")
    last_transition_time: datetime = Field(description="When its status last changed.")
    reason: Annotated[str, Field(max_length=1024)] = Field(description="Why, in one word.")
    message: Annotated[str, Field(max_length=32768)] = Field(description="Why, for a person.")


class Transition(Model):
    """One step of the state machine."""

    from_: State | None = Field(default=None, alias="from", description="The state before; none at creation.")
    to: State = Field(description="The state after.")
    at: datetime = Field(description="When.")
    attempt: int = Field(default=0, description="The attempt it belongs to.")
    reason: Text = Field(description="Why, in one word.")


class SessionStatus(Model):
    """The worker's session with the operator."""

    worker_id: Text | None = Field(default=None, description="The worker's own name.")
    registered_at: datetime | None = Field(default=None, description="When the worker of this attempt registered.")
    last_event: int = Field(default=0, description="Number of the last event that this status holds.")
    log_epoch: int = Field(default=0, description="Which event log those numbers belong to.")
    protocol: Text | None = Field(default=None, description="The protocol version that was agreed on.")
    supports_pause: bool | None = Field(default=None, description="Whether the worker can pause.")
    supports_checkpoint: bool | None = Field(default=None, description="Whether the worker can checkpoint.")


class ProgressStatus(Model):
    """How far the run is; sampled, not exact."""

    step: int = Field(default=0, description="Environment steps done; of an evaluation, episodes.")
    percent: float = Field(
        default=0,
        description="Share of the steps asked for, of an evaluation's episodes, or, of a script that does not say how many "
        "steps it takes, of its phases; 100 for a run that completed.",
    )
    steps_per_second: float | None = Field(default=None, description="Steps per second, lately.")
    eta_seconds: int | None = Field(default=None, description="Estimated time to the end.")
    episodic_return: float | None = Field(default=None, description="Smoothed return of finished episodes.")
    stage: Annotated[str, Field(max_length=MAX_STAGE)] | None = Field(
        default=None, description="The stage of a curriculum, the phase of a script, or the batch of an evaluation."
    )
    updated_at: datetime | None = Field(default=None, description="When this was sampled.")


class CheckpointStatus(Model):
    """The newest checkpoint that is known to be whole."""

    path: Text = Field(description="Its path below the run's folder.")
    step: int = Field(description="The step it was taken at.")
    time: datetime = Field(description="When.")
    sha256: Digest | None = Field(default=None, description="Digest of its manifest.")
    attempt: int = Field(default=0, description="The attempt that wrote it.")


class SourceStatus(Model):
    """What the run started from: enough to start from it again when the run it came from is gone."""

    run_uid: Annotated[str, Field(max_length=64)] = Field(alias="runUID", description="UID of the run that from names.")
    claim_name: Text = Field(description="The claim that holds its folder.")
    path: Text = Field(description="Its folder on that claim.")
    checkpoint: Text = Field(description="Path of the checkpoint below that folder.")
    step: int = Field(default=0, description="The step it was taken at.")
    sha256: Digest = Field(description="Digest of the checkpoint's manifest, as that run's status vouched for it.")


class TensorBoardStatus(Model):
    """Where TensorBoard answers, or why it does not."""

    url: Text | None = Field(default=None, description="Its address: outside the cluster if there is one, else inside.")
    port_forward: Text | None = Field(
        default=None, description="What follows kubectl port-forward to reach it at localhost, while the pod runs."
    )
    reason: Text | None = Field(default=None, description="Why there is no address, in one word.")
    message: Text | None = Field(default=None, description="Why there is no address, for a person.")


class AnalyticsStatus(Model):
    """Where the run's analytics are, or why they are not there."""

    manifest_digest: Digest | None = Field(default=None, description="sha256 of analytics.json.")
    claim_name: Text | None = Field(default=None, description="The claim that holds them.")
    path: Text | None = Field(default=None, description="The run's folder on the claim.")
    tensorboard: TensorBoardStatus | None = Field(default=None, description="TensorBoard.")
    wandb_url: Text | None = Field(default=None, description="Where the tracked run is.")
    reason: Text | None = Field(default=None, description="Why something is not available, in one word.")
    message: Text | None = Field(default=None, description="Why something is not available, for a person.")


class Status(Model):
    """What is true of the run."""

    fsm_state: State | None = Field(default=None, description="The state of the run's state machine.")
    outcome: Outcome | None = Field(default=None, description="How it ended; set in TERM only.")
    reason: Text | None = Field(default=None, description="Why it is in this state, in one word.")
    message: Annotated[str, Field(max_length=4096)] | None = Field(
        default=None, description="Why it is in this state, for a person."
    )
    observed_generation: int | None = Field(
        default=None, description="The generation of spec that this status speaks of."
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=16,
        description="Ready, Reconciling, Stalled, Suspended, Complete, Failed and notices such as GPUUnused or HeartbeatLate.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    transitions: list[Transition] | None = Field(
        default=None, max_length=MAX_TRANSITIONS, description="The last steps of the state machine, oldest first."
    )
    run_id: Annotated[str, Field(max_length=26)] | None = Field(default=None, description="The run's ULID.")
    attempt: int = Field(default=0, description="How many pods this run has had.")
    retries: int = Field(default=0, description="Failures since the last progress.")
    failed_at_step: int = Field(
        default=0, description="The furthest step of a failure; progress beyond it refills retries."
    )
    retry_at: datetime | None = Field(default=None, description="When the next attempt starts, in FAULT.")
    pod_name: Text | None = Field(default=None, description="The pod of this attempt.")
    pod_uid: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, alias="podUID", description="Its UID; only that pod may speak for the run."
    )
    node_name: Text | None = Field(default=None, description="The node it runs on.")
    claim_uid: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, alias="claimUID", description="UID of the claim that holds its data; another one would be empty."
    )
    source: SourceStatus | None = Field(
        default=None, description="What the last attempt was given of the run that from.run names."
    )
    session: SessionStatus | None = Field(default=None, description="The worker's session.")
    started_at: datetime | None = Field(default=None, description="When the run was accepted.")
    exec_started_at: datetime | None = Field(default=None, description="When it first reached EXEC.")
    finished_at: datetime | None = Field(default=None, description="When it reached TERM.")
    wallclock_seconds: float = Field(default=0, description="Time counted against maxWallclockMinutes so far.")
    wallclock_since: datetime | None = Field(default=None, description="Since when the clock runs, if it does.")
    stop_requested_at: datetime | None = Field(
        default=None, description="When the worker was asked to checkpoint and stop, if it was."
    )
    progress: ProgressStatus | None = Field(default=None, description="How far it is.")
    checkpoint: CheckpointStatus | None = Field(default=None, description="The newest checkpoint.")
    analytics: AnalyticsStatus | None = Field(default=None, description="Where its analytics are.")
    dry_run: bool | None = Field(
        default=None, description="Whether it was accepted as a dry run; the annotation says nothing afterwards."
    )
    gpu_awaited_since: datetime | None = Field(
        default=None, description="Since when it waits for a GPU that it can do without."
    )
    gpu_fallback: bool | None = Field(default=None, description="true when it runs on the CPU for want of a GPU.")
    gpu_seconds: float = Field(default=0, description="GPUs times seconds they were held.")

"""The spec of a `CleanRLRun`: everything a user may ask for, with its bounds, defaults and rules.

Field descriptions are what `kubectl explain` shows. Each field is immutable unless its name is in `MUTABLE` or, while the
run is suspended, in `MUTABLE_WHILE_SUSPENDED`; the rules for that are generated from the model, so a new field is
guarded from the day it is added.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cleanrl_operator.api.model import ANYTHING, Model, Quantity, Rule
from cleanrl_operator.api.podtemplate import PodTemplate
from cleanrl_protocol.algorithms import ALGORITHMS, REQUIREMENT_SETS

Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
EnvironmentId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:-]*$")]
RunPath = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_./=+-]*$")]

ALGORITHM_PATTERN = r"^(cleanrl|plugin)\\.[A-Za-z0-9_]+$"
RequirementSet = StrEnum("RequirementSet", {name: name for name in REQUIREMENT_SETS})  # type: ignore[misc]

MUTABLE = frozenset(
    {
        "suspend",
        "pause",
        "cancel",
        "ttlSecondsAfterFinished",
        "maxWallclockMinutes",
        "pendingDeadlineSeconds",
        "retry",
    }
)
MUTABLE_WHILE_SUSPENDED = frozenset({"image", "resources", "podTemplate"})


class Mode(StrEnum):
    """What the worker does with the algorithm."""

    TRAIN = "train"
    CURRICULUM = "curriculum"
    RESUME = "resume"
    POLICY_EVAL = "policyEval"
    INTERACTIVE = "interactive"
    SCRIPT = "script"


class FreeForm(Model):
    """A map whose keys belong to the worker's contract, not to this schema."""

    model_config = Model.model_config | {"extra": "allow"}
    schema_extra: ClassVar[dict[str, Any]] = ANYTHING


class AlgoParams(FreeForm):
    """Flags of the algorithm by name, with dashes or underscores, for example `learning-rate: 2.5e-4`."""


class Extras(FreeForm):
    """The worker contract's extras, passed through as they are. Secrets are refused, by a rule of the spec."""


class CurriculumStage(Model):
    """One environment of a curriculum and what ends its stage; the first condition that holds does."""

    env_id: EnvironmentId = Field(description="The environment of this stage.")
    steps: int | None = Field(default=None, ge=1, le=10**12, description="Ends the stage after this many steps.")
    episodes: int | None = Field(default=None, ge=1, le=10**9, description="Ends the stage after this many episodes.")
    episode_return: float | None = Field(
        default=None, description="Ends the stage when the mean episodic return reaches this."
    )


class CurriculumPreset(StrEnum):
    """The curricula that the worker ships."""

    BABYAI_GOTO = "babyai-goto"
    BABYAI_DOORKEY = "babyai-doorkey"


class Curriculum(Model):
    """A sequence of environments, by name or spelt out."""

    preset: CurriculumPreset | None = Field(default=None, description="A curriculum that the worker ships.")
    schedule: list[CurriculumStage] | None = Field(
        default=None, min_length=1, max_length=64, description="The stages in order; the last one has no end."
    )

    rules = (Rule("has(self.preset) != has(self.schedule)", "name either a preset or a schedule of stages, not both"),)


class Source(Model):
    """Where the policy or the training state comes from."""

    run: Name | None = Field(default=None, description="An earlier run in the same namespace.")
    path: RunPath | None = Field(
        default=None,
        description="A checkpoint, a model file or a run's folder on the claim that artifacts.storage.claimName names, as the "
        "path from the claim's root, for example runs/ID.",
    )

    rules = (
        Rule("has(self.run) != has(self.path)", "name either an earlier run or a path on this run's claim, not both"),
        Rule(
            "!has(self.path) || !self.path.contains('..')",
            "a path stays inside the claim: write it without '..'",
            ".path",
        ),
    )


class Evaluation(Model):
    """How a policy is judged in mode policyEval."""

    episodes: int = Field(default=50, ge=1, le=1_000_000, description="Episodes of a batch.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount of the discounted return.")
    capture_video: bool = Field(default=False, description="Record the first episodes as video.")
    repeat: bool = Field(default=False, description="Go on with further batches until the run is canceled.")
    max_episode_steps: int | None = Field(
        default=None, ge=1, le=10**9, description="Cuts an episode after this many steps."
    )
    max_episode_seconds: int | None = Field(
        default=None, ge=1, le=86_400, description="Cuts an episode after this time."
    )


class ConfigMapReference(Model):
    """A ConfigMap of the same namespace."""

    name: Name = Field(description="Name of the ConfigMap.")


class Script(Model):
    """A training script of several phases."""

    config_map_ref: ConfigMapReference | None = Field(default=None, description="The ConfigMap that holds the script.")
    key: str = Field(
        default="script.sh", min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Its key there."
    )
    path: Annotated[str, Field(min_length=2, max_length=512, pattern=r"^/[A-Za-z0-9_./-]+$")] | None = Field(
        default=None, description="A script that is in the image already, by its full path."
    )

    rules = (
        Rule(
            "has(self.configMapRef) != has(self.path)",
            "name either a ConfigMap that holds the script or a path in the image, not both",
        ),
        Rule(
            "!has(self.path) || !self.path.contains('..')",
            "write the script's path without '..'",
            ".path",
        ),
    )


class Cpus(Model):
    """CPU of the worker container."""

    requested: Quantity | int = Field(
        default=1,
        description="CPUs requested, for example 2 or 500m; torch takes as many threads, rounded up.",
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "x-kubernetes-validations": [
                {
                    "rule": "type(self) == int ? self >= 1 && self <= 1024 "
                    ": self.matches('^[0-9]+([.][0-9]+)?m?$') && size(self) <= 16",
                    "message": "write a number of CPUs such as 2, or thousandths such as 500m",
                }
            ],
        },
    )


class Gpus(Model):
    """GPUs of the worker container."""

    requested: int = Field(default=0, ge=0, le=64, description="GPUs requested; 0 trains on the CPU.")
    mandatory: bool = Field(
        default=False,
        description="true waits for a GPU for as long as it takes; false falls back to the CPU after fallbackAfterSeconds.",
    )
    resource_name: str = Field(
        default="nvidia.com/gpu",
        min_length=3,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="The extended resource that stands for a GPU on this cluster.",
    )
    fallback_after_seconds: int = Field(
        default=300, ge=0, le=604_800, description="How long an optional GPU is waited for."
    )

    rules = (
        Rule(
            "!self.mandatory || self.requested > 0",
            "mandatory asks for a GPU: set requested to 1 or more",
            ".requested",
        ),
    )


class Resources(Model):
    """What the worker container gets."""

    cpus: Cpus = Field(default_factory=Cpus, description="CPU request and limit.")
    memory: Quantity = Field(default="2Gi", description="Memory request and limit.")
    gpus: Gpus = Field(default_factory=Gpus, description="GPU request.")


class AccessMode(StrEnum):
    """How the claim may be mounted."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"
    READ_WRITE_MANY = "ReadWriteMany"


class DeletionPolicy(StrEnum):
    """What becomes of the claim when the run is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Storage(Model):
    """The claim that run data lands on: one of its own by default, or a shared one by name."""

    size: Quantity | None = Field(default=None, description="Size of the run's own claim; 5Gi when unset.")
    storage_class_name: Name | None = Field(
        default=None, description="Its storage class; the cluster's default when unset."
    )
    access_modes: list[AccessMode] | None = Field(
        default=None, min_length=1, max_length=3, description="Its access modes; ReadWriteOnce when unset."
    )
    claim_name: Name | None = Field(default=None, description="A claim that exists already and may be shared by runs.")
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy.RETAIN, description="Whether the run's own claim goes when the run is deleted."
    )

    rules = (
        Rule(
            "!has(self.claimName) || (!has(self.size) && !has(self.storageClassName) && !has(self.accessModes))",
            "claimName names a claim that exists: leave size, storageClassName and accessModes out",
            ".claimName",
        ),
        Rule(
            "!has(self.claimName) || self.deletionPolicy != 'Delete'",
            "a claim given by claimName is never deleted with a run: leave deletionPolicy at Retain",
            ".deletionPolicy",
        ),
    )


class Serve(StrEnum):
    """How long TensorBoard is served."""

    WHILE_RUNNING = "whileRunning"
    ALWAYS = "always"


class TensorBoard(Model):
    """The TensorBoard of the run."""

    enabled: bool = Field(default=True, description="Write TensorBoard logs and serve them beside the worker.")
    serve: Serve = Field(
        default=Serve.WHILE_RUNNING,
        description="whileRunning serves beside the worker, for kubectl port-forward; always adds a Service, and a small "
        "Deployment while the run has no pod. status.analytics.tensorboard says where it answers.",
    )

    rules = (
        Rule(
            "self.enabled || self.serve != 'always'",
            "serve: always needs TensorBoard logs: set artifacts.tensorboard.enabled to true, or leave serve out",
            ".serve",
        ),
    )


class SecretKeyReference(Model):
    """One key of a Secret in the same namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: str = Field(
        default="api-key", min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$", description="Its key there."
    )


class Proxy(Model):
    """Proxies for Weights & Biases only."""

    http: str | None = Field(default=None, max_length=2048, pattern=r"^https?://[^@\s]+$", description="For http.")
    https: str | None = Field(default=None, max_length=2048, pattern=r"^https?://[^@\s]+$", description="For https.")
    use_vpn: bool = Field(default=False, description="Take the proxies that the image calls its VPN's.")


class WandB(Model):
    """Weights & Biases: online with a key, else offline with the command that uploads later."""

    enabled: bool = Field(default=False, description="Track the run.")
    project: str | None = Field(default=None, min_length=1, max_length=128, description="Project; cleanRL when unset.")
    entity: str | None = Field(default=None, min_length=1, max_length=128, description="Team or user.")
    group: str | None = Field(default=None, min_length=1, max_length=128, description="Group of runs it belongs to.")
    tags: list[Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^,]+$")]] | None = Field(
        default=None, max_length=20, description="Tags to find it by."
    )
    base_url: str | None = Field(
        default=None,
        max_length=2048,
        pattern=r"^https?://[^@\s/?#]+(/[^@\s?#]*)?$",
        description="Address of a W&B server of your own, without user or query; W&B's own service when unset.",
    )
    api_key_secret_ref: SecretKeyReference | None = Field(default=None, description="Where the API key is.")
    proxy: Proxy | None = Field(default=None, description="Proxies for W&B only.")

    rules = (
        Rule(
            "self.enabled || !has(self.apiKeySecretRef)",
            "a key is given and tracking is off: set artifacts.wandb.enabled to true, or leave the key out",
            ".enabled",
        ),
    )


class Artifacts(Model):
    """What a run leaves behind, and where."""

    storage: Storage = Field(default_factory=Storage, description="The claim.")
    tensorboard: TensorBoard = Field(default_factory=TensorBoard, description="TensorBoard.")
    wandb: WandB = Field(default_factory=WandB, description="Weights & Biases.")
    capture_video: bool = Field(default=False, description="Record videos of the first environment.")

    rules = (
        Rule(
            "self.tensorboard.serve != 'always' || !has(self.storage.accessModes) || "
            "!self.storage.accessModes.exists(m, m == 'ReadWriteOncePod')",
            "serve: always needs a second pod on the claim: take ReadWriteOnce or ReadWriteMany instead of ReadWriteOncePod",
            ".tensorboard.serve",
        ),
    )


class VideoMode(StrEnum):
    """Which environments send frames."""

    SINGLE = "single"
    GRID = "grid"
    OFF = "off"


class FastLane(Model):
    """Live frames of the training environments. Metrics are always there."""

    video_mode: VideoMode = Field(
        default=VideoMode.SINGLE, description="One environment, a grid of them, or no frames."
    )
    slot: int = Field(default=0, ge=0, le=4096, description="The environment shown in mode single.")
    grid_limit: int = Field(default=4, ge=1, le=64, description="How many environments a grid shows.")
    interval_ms: int = Field(default=100, ge=0, le=60_000, description="Least time between two frames.")
    max_dim: int = Field(default=256, ge=16, le=2048, description="Frames are scaled down to this many pixels a side.")


class Checkpoint(Model):
    """When the full state of training is saved."""

    every_steps: int = Field(
        default=0,
        ge=0,
        le=10**12,
        description="After this many steps, but not within 30 s of the last; 0 saves by time only.",
    )
    every_seconds: int = Field(default=300, ge=30, le=86_400, description="After this much time.")
    keep: int = Field(default=3, ge=1, le=100, description="How many are kept, newest first.")


class Retry(Model):
    """What a failure costs."""

    limit: int = Field(
        default=3, ge=0, le=100, description="Failures in a row before the run ends; progress refills it."
    )
    backoff_seconds: int = Field(
        default=10, ge=1, le=3600, description="Wait before the first retry; doubles each time, up to 10 minutes."
    )


class Spec(Model):
    """What to train, on what, and within which limits."""

    algo: str = Field(
        min_length=1,
        max_length=128,
        description="A name of the registry, cleanrl.<name> of a mounted upstream checkout, or plugin.<name>.",
    )
    env_id: EnvironmentId = Field(description="The environment's id, for example CartPole-v1.")
    total_timesteps: int | None = Field(
        default=None, ge=1, le=10**12, description="Environment steps to train for; in mode resume, steps to add."
    )
    seed: int = Field(default=1, ge=0, le=2**31 - 1, description="Seed of every generator.")
    mode: Mode = Field(default=Mode.TRAIN, description="train, curriculum, resume, policyEval, interactive or script.")
    dry_run: bool = Field(
        default=False,
        description="Resolve and check everything in a pod, train nothing, and end with what would run in status.message. "
        "The annotation mosaic.dev/dry-run with the value true does the same, if the run has it from the beginning.",
    )
    algo_params: AlgoParams = Field(default_factory=AlgoParams, description="Flags of the algorithm by name.")
    extras: Extras = Field(default_factory=Extras, description="The worker contract's extras.")
    curriculum: Curriculum | None = Field(default=None, description="The environments of mode curriculum.")
    from_: Source | None = Field(
        default=None, alias="from", description="The run or file that resume, policyEval and interactive start from."
    )
    evaluation: Evaluation | None = Field(default=None, description="How mode policyEval judges.")
    script: Script | None = Field(default=None, description="The script of mode script.")
    requirements: list[RequirementSet] | None = Field(
        default=None,
        max_length=16,
        description="Requirement sets that the run needs beyond base. They choose the image; where no image has them all, "
        "they are installed before training if the installation has a wheel cache or an index for that.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    resources: Resources = Field(default_factory=Resources, description="CPU, memory and GPUs.")
    artifacts: Artifacts = Field(default_factory=Artifacts, description="Claim, TensorBoard, W&B and videos.")
    fastlane: FastLane = Field(default_factory=FastLane, description="Live frames.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="When the state is saved.")
    suspend: bool = Field(default=False, description="Checkpoint, then free the pod and its GPU, until lifted.")
    pause: bool = Field(default=False, description="Stop stepping and keep the pod, until lifted.")
    cancel: bool = Field(default=False, description="End the run now: checkpoint, then TERM. It can't be taken back.")
    max_wallclock_minutes: int | None = Field(
        default=None,
        ge=1,
        le=525_600,
        description="Time from the first EXEC, over all attempts; pause counts, suspend and the queue do not.",
    )
    pending_deadline_seconds: int = Field(
        default=0, ge=0, le=2_592_000, description="How long a pod may wait to start; 0 waits for ever."
    )
    retry: Retry = Field(default_factory=Retry, description="What a failure costs.")
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=315_360_000,
        description="Removes pod, Service and TensorBoard this long after the end; never the run or its data.",
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        pattern=r"^\S+$",
        description="The worker image; when unset, the chart's choice by requirements. Nothing is installed into it.",
    )
    pod_template: PodTemplate | None = Field(default=None, description="Where and how the pod is scheduled.")
    operator_class: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="The installation that handles this run, where a cluster has several.",
    )

    rules = (
        Rule(
            f"self.algo in [{', '.join(repr(name) for name in ALGORITHMS)}] || self.algo.matches('{ALGORITHM_PATTERN}')",
            "this is no algorithm of the registry: write one of its names, such as ppo or dqn, or cleanrl.<name> for an "
            "upstream checkout, or plugin.<name>",
            ".algo",
        ),
        Rule(
            "has(self.totalTimesteps) || self.mode in ['policyEval', 'interactive', 'script']",
            "how long should it train? Set totalTimesteps",
            ".totalTimesteps",
        ),
        Rule(
            "(self.mode == 'curriculum') == has(self.curriculum)",
            "mode: curriculum and the field curriculum go together: set both or neither",
            ".curriculum",
        ),
        Rule(
            "(self.mode == 'script') == has(self.script)",
            "mode: script and the field script go together: set both or neither",
            ".script",
        ),
        Rule(
            "(self.mode in ['resume', 'policyEval', 'interactive']) == has(self.from)",
            "modes resume, policyEval and interactive start from something, and the others from nothing: set from.run or "
            "from.path for those three only",
            ".from",
        ),
        Rule(
            "self.mode == 'policyEval' || !has(self.evaluation)",
            "evaluation belongs to mode: policyEval",
            ".evaluation",
        ),
        Rule(
            "dyn(self).extras.?wandb_api_key.orValue(null) == null",
            "a key does not belong in a manifest: put it into a Secret and name that in artifacts.wandb.apiKeySecretRef",
            ".extras",
        ),
        Rule(
            "!oldSelf.cancel || self.cancel",
            "a canceled run does not come back: create a new one, with from.run to go on from its checkpoint",
            ".cancel",
        ),
    )

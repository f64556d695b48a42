"""What a user may say about the pod: a typed allow-list, because creating a run must not grant more than creating a pod."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cleanrl_operator.api.model import ANYTHING, Model, Quantity, Rule

Label = Annotated[str, Field(max_length=63)]
Text = Annotated[str, Field(min_length=1, max_length=253)]
OWN_PREFIX = "mosaic.dev/"
RESERVED_PATHS = (
    "/run-data",
    "/source",
    "/scripts",
    "/requirements",
    "/wheels",
    "/etc/cleanrl",
    "/var/run",
    "/run",
    "/proc",
    "/sys",
    "/dev",
)
"""Folders of the worker that are the run's or the system's own."""


class Operator(StrEnum):
    """How a toleration compares."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class Toleration(Model):
    """A taint that the pod tolerates."""

    key: Text | None = Field(default=None, description="The taint's key; all keys when unset.")
    operator: Operator | None = Field(default=None, description="Exists or Equal.")
    value: Label | None = Field(default=None, description="The taint's value.")
    effect: Text | None = Field(default=None, description="NoSchedule, PreferNoSchedule or NoExecute.")
    toleration_seconds: int | None = Field(default=None, description="How long a NoExecute taint is tolerated.")


class Affinity(Model):
    """The pod's affinity, as in a Pod; the API server checks it when the pod is created."""

    model_config = Model.model_config | {"extra": "allow"}
    schema_extra: ClassVar[dict[str, Any]] = ANYTHING


class LocalReference(Model):
    """An object of the same namespace."""

    name: Text = Field(description="Its name.")


class EmptyDir(Model):
    """Scratch space that goes with the pod."""

    size_limit: Quantity | None = Field(default=None, description="The most it may hold.")
    medium: str | None = Field(default=None, max_length=16, pattern=r"^(Memory)?$", description="Memory, or the disk.")


class ClaimVolume(Model):
    """A claim of the same namespace."""

    claim_name: Text = Field(description="Its name.")
    read_only: bool = Field(default=True, description="Mounted read-only unless false.")


class CsiVolume(Model):
    """An inline volume of a driver that the chart allows."""

    driver: Text = Field(description="The driver's name.")
    read_only: bool = Field(default=True, description="Mounted read-only unless false.")
    volume_attributes: dict[Text, Annotated[str, Field(max_length=1024)]] | None = Field(
        default=None, max_length=32, description="What the driver wants to know."
    )


class Volume(Model):
    """One volume of a harmless kind."""

    name: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")] = Field(
        description="Its name in the pod."
    )
    empty_dir: EmptyDir | None = Field(default=None, description="Scratch space.")
    persistent_volume_claim: ClaimVolume | None = Field(default=None, description="A claim.")
    config_map: LocalReference | None = Field(default=None, description="A ConfigMap.")
    csi: CsiVolume | None = Field(default=None, description="An inline CSI volume.")
    mount_path: Annotated[str, Field(min_length=2, max_length=512, pattern=r"^/[A-Za-z0-9_./-]+$")] = Field(
        description="Where the worker sees it."
    )
    sub_path: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9_.][A-Za-z0-9_./-]*$")] | None = (
        Field(default=None, description="The part of the volume that is mounted.")
    )

    rules = (
        Rule(
            "[has(self.emptyDir), has(self.persistentVolumeClaim), has(self.configMap), has(self.csi)]"
            ".filter(given, given).size() == 1",
            "a volume has exactly one kind: emptyDir, persistentVolumeClaim, configMap or csi",
        ),
        Rule(
            "!self.mountPath.contains('..') && (!has(self.subPath) || !self.subPath.contains('..')) && "
            "!self.mountPath.contains('//') && !self.mountPath.contains('/./') && !self.mountPath.endsWith('/.')",
            "write paths without '..', '//' and '/.', as they are",
        ),
        Rule(
            f"![{', '.join(repr(path) for path in RESERVED_PATHS)}].exists(taken, "
            "self.mountPath == taken || self.mountPath.startsWith(taken + '/')) && !(self.mountPath in ['/tmp', '/tmp/'])",
            "this path belongs to the system or to the run: mount the volume elsewhere, for example below /mnt",
            ".mountPath",
        ),
    )


class PodTemplate(Model):
    """Where and how the pod is scheduled, and what else it mounts."""

    node_selector: dict[Text, Label] | None = Field(default=None, max_length=32, description="Labels of the node.")
    tolerations: list[Toleration] | None = Field(default=None, max_length=32, description="Taints that are tolerated.")
    affinity: Affinity | None = Field(default=None, description="As in a Pod.")
    labels: dict[Text, Label] | None = Field(default=None, max_length=32, description="Further labels of the pod.")
    annotations: dict[Text, Annotated[str, Field(max_length=4096)]] | None = Field(
        default=None, max_length=32, description="Further annotations of the pod."
    )
    priority_class_name: Text | None = Field(default=None, description="The pod's priority class.")
    runtime_class_name: Text | None = Field(default=None, description="The pod's runtime class.")
    scheduler_name: Text | None = Field(default=None, description="The scheduler that places the pod.")
    service_account_name: Text | None = Field(default=None, description="The pod's service account.")
    image_pull_secrets: list[LocalReference] | None = Field(
        default=None, max_length=8, description="Secrets that the image is pulled with."
    )
    volumes: list[Volume] | None = Field(default=None, max_length=16, description="Further volumes.")

    rules = (
        Rule(
            f"!has(self.labels) || !self.labels.exists(key, key.startsWith('{OWN_PREFIX}'))",
            f"labels that begin with {OWN_PREFIX} are the operator's own: choose another prefix",
            ".labels",
        ),
        Rule(
            f"!has(self.annotations) || !self.annotations.exists(key, key.startsWith('{OWN_PREFIX}'))",
            f"annotations that begin with {OWN_PREFIX} are the operator's own: choose another prefix",
            ".annotations",
        ),
        Rule(
            "!has(self.volumes) || self.volumes.all(v, "
            "self.volumes.filter(w, w.name == v.name || w.mountPath == v.mountPath).size() == 1)",
            "two volumes have one name, or one mountPath",
            ".volumes",
        ),
    )

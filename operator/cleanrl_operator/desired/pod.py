"""The pod of one attempt: worker, TensorBoard sidecar, claim, config, token. Restricted in every respect."""

from __future__ import annotations

from typing import Any

from cleanrl_operator.desired import workerconfig
from cleanrl_operator.policies.gpu import gpus_held
from cleanrl_operator.run import ATTEMPT_LABEL, CONFIG_ANNOTATION, Run
from cleanrl_operator.settings import Settings
from cleanrl_protocol.podconfig import PodConfig, encode

RUN_FOLDER = "/run-data"
SOURCE_FOLDER = "/source"
CONFIG_FILE = "/etc/cleanrl/config"
TOKEN_FOLDER = "/var/run/secrets/cleanrl"  # noqa: S105 - a folder's name
TOKEN_AUDIENCE = "cleanrl-gateway"  # noqa: S105 - an audience's name
TOKEN_SECONDS = 3600
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def build(run: Run, settings: Settings, source: Run | None = None) -> dict[str, Any]:
    """The pod for the run's next attempt. `source` is the run that `from.run` names."""
    attempt = run.next_attempt
    template = run.spec.pod_template
    image = settings.image_for(run.spec.image, tuple(str(name) for name in run.spec.requirements or ()))
    labels = {**(template.labels if template and template.labels else {}), **run.child_labels()}
    labels |= {ATTEMPT_LABEL: str(attempt), "app.kubernetes.io/name": "cleanrl-worker"}
    if QUEUE_LABEL in run.labels:
        labels[QUEUE_LABEL] = run.labels[QUEUE_LABEL]
    config = PodConfig(
        run_id=run.run_id,
        attempt=attempt,
        worker_config=workerconfig.build(run, source_path(source)),
        gateway_target=settings.gateway_target or None,
        gateway_ca=list(settings.gateway_ca),
    )
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": (template and template.service_account_name) or settings.service_account,
        "terminationGracePeriodSeconds": settings.grace_seconds + 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user_id,
            "runAsGroup": settings.user_id,
            "fsGroup": settings.user_id,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_worker(run, settings, image, attempt, source)],
        "volumes": _volumes(run, settings, source),
    }
    if run.spec.artifacts.tensorboard.enabled:
        spec["initContainers"] = [_tensorboard(run, settings, image)]
    if template is not None:
        _place(spec, template.dump())
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": run.pod_name(attempt),
            "namespace": run.namespace,
            "labels": labels,
            "annotations": {
                **(template.annotations if template and template.annotations else {}),
                CONFIG_ANNOTATION: encode(config),
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(settings.metrics_port),
            },
            "ownerReferences": [run.owner_reference()],
        },
        "spec": spec,
    }


def source_path(source: Run | None) -> str:
    """Where the worker finds what the source run left: the checkpoint that its status vouches for, else its folder."""
    if source is None or source.status.checkpoint is None:
        return SOURCE_FOLDER
    return f"{SOURCE_FOLDER}/{source.status.checkpoint.path}"


def _worker(run: Run, settings: Settings, image: str, attempt: int, source: Run | None) -> dict[str, Any]:
    checkpoint = run.spec.checkpoint
    environment = {
        "CLEANRL_POD_CONFIG": CONFIG_FILE,
        "CLEANRL_RUN_ID": run.run_id,
        "CLEANRL_RUN_DIR": RUN_FOLDER,
        "MOSAIC_RUN_DIR": RUN_FOLDER,
        "CLEANRL_ATTEMPT": str(attempt),
        "CLEANRL_CONTINUE": "1",
        "CLEANRL_RECORD_PATH": "/dev/termination-log",
        "CLEANRL_TOKEN_FILE": f"{TOKEN_FOLDER}/token",
        "CLEANRL_METRICS_PORT": str(settings.metrics_port),
        "CLEANRL_METRICS_HOST": "0.0.0.0",  # noqa: S104 - the pod's own address; frames stay on loopback
        "CLEANRL_GRACE_SECONDS": str(settings.grace_seconds),
        "CLEANRL_CHECKPOINT_EVERY_STEPS": str(checkpoint.every_steps),
        "CLEANRL_CHECKPOINT_EVERY_SECONDS": str(checkpoint.every_seconds),
        "CLEANRL_CHECKPOINT_KEEP": str(checkpoint.keep),
        "CLEANRL_FASTLANE_INTERVAL_MS": str(run.spec.fastlane.interval_ms),
        "CLEANRL_FASTLANE_MAX_DIM": str(run.spec.fastlane.max_dim),
        "CLEANRL_IMAGE": image,
        "WANDB_RUN_ID": run.run_id,
        "WANDB_RESUME": "allow",
        "HOME": "/tmp",  # noqa: S108 - an emptyDir of the pod's own
    }
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in environment.items()]
    secret = run.spec.artifacts.wandb.api_key_secret_ref
    if secret is not None:
        reference = {"name": secret.name, "key": secret.key}
        env.append({"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": reference}})
    return {
        "name": "worker",
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "cleanrl_worker.pod"],
        "env": env,
        "resources": _resources(run),
        "ports": [{"name": "metrics", "containerPort": settings.metrics_port}],
        "securityContext": CONFINED,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "metrics"},
            "initialDelaySeconds": 60,
            "periodSeconds": 20,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "workingDir": RUN_FOLDER,
        "volumeMounts": _mounts(run, source),
    }


def _tensorboard(run: Run, settings: Settings, image: str) -> dict[str, Any]:
    """A native sidecar: it starts before the worker and outlives it."""
    command = ["python", "-m", "cleanrl_worker.sidecar", "--logdir", f"{RUN_FOLDER}/tensorboard", "--load_fast=false"]
    return {
        "name": "tensorboard",
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "restartPolicy": "Always",
        "command": [*command, "--host", "127.0.0.1", "--port", str(settings.tensorboard_port)],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - an emptyDir of the pod's own
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": CONFINED,
        "volumeMounts": [
            {"name": "run-data", "mountPath": RUN_FOLDER, "subPath": run.folder, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
        ],
    }


def _resources(run: Run) -> dict[str, Any]:
    asked = run.spec.resources
    amounts = {"cpu": str(asked.cpus.requested), "memory": asked.memory}
    gpus = gpus_held(run.spec, run.status)
    if gpus:
        amounts[asked.gpus.resource_name] = str(gpus)
    return {"requests": amounts, "limits": amounts}


def _volumes(run: Run, settings: Settings, source: Run | None) -> list[dict[str, Any]]:
    token = {"audience": TOKEN_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    annotation = {"fieldPath": f"metadata.annotations['{CONFIG_ANNOTATION}']"}
    volumes: list[dict[str, Any]] = [
        {"name": "run-data", "persistentVolumeClaim": {"claimName": run.claim_name}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "config", "downwardAPI": {"items": [{"path": "config", "fieldRef": annotation}]}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
    ]
    if source is not None and source.claim_name != run.claim_name:
        claim = {"claimName": source.claim_name, "readOnly": True}
        volumes.append({"name": "source", "persistentVolumeClaim": claim})
    template = run.spec.pod_template
    for volume in (template.volumes if template else None) or []:
        given = volume.dump()
        given["name"] = f"user-{volume.name}"
        for key in ("mountPath", "subPath"):
            given.pop(key, None)
        volumes.append(given)
    return volumes


def _mounts(run: Run, source: Run | None) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "run-data", "mountPath": RUN_FOLDER, "subPath": run.folder},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - an emptyDir of the pod's own
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
        {"name": "config", "mountPath": "/etc/cleanrl", "readOnly": True},
        {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
    ]
    if source is not None:
        name = "run-data" if source.claim_name == run.claim_name else "source"
        mounts.append({"name": name, "mountPath": SOURCE_FOLDER, "subPath": source.folder, "readOnly": True})
    template = run.spec.pod_template
    for volume in (template.volumes if template else None) or []:
        mount: dict[str, Any] = {"name": f"user-{volume.name}", "mountPath": volume.mount_path}
        if volume.sub_path is not None:
            mount["subPath"] = volume.sub_path
        if volume.config_map is not None or (
            volume.persistent_volume_claim and volume.persistent_volume_claim.read_only
        ):
            mount["readOnly"] = True
        mounts.append(mount)
    return mounts


def _place(spec: dict[str, Any], template: dict[str, Any]) -> None:
    """What the user says about scheduling. Security, volumes of the run and the restart policy are not the user's."""
    for field in (
        "nodeSelector",
        "tolerations",
        "affinity",
        "priorityClassName",
        "runtimeClassName",
        "schedulerName",
        "imagePullSecrets",
    ):
        if field in template:
            spec[field] = template[field]

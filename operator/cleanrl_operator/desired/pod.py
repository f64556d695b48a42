"""The pod of one attempt: worker, sidecar, claim, config, token. Restricted in every respect.

A dry run's pod has scratch space in the place of the claim, and no sidecar: it leaves nothing behind but its record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cleanrl_operator.api.spec import Mode
from cleanrl_operator.api.status import SourceStatus
from cleanrl_operator.desired import confined, requirements, sidecar, tensorboard, workerconfig
from cleanrl_operator.policies.gpu import gpus_held
from cleanrl_operator.run import ATTEMPT_LABEL, CONFIG_ANNOTATION, Run
from cleanrl_operator.settings import Settings
from cleanrl_protocol import podconfig

RUN_FOLDER = confined.RUN_FOLDER
SOURCE_FOLDER = "/source"
SCRIPT_FOLDER = "/scripts"
CONFIG_FILE = "/etc/cleanrl/config"
TOKEN_FOLDER = "/var/run/secrets/cleanrl"  # noqa: S105 - a folder's name
TOKEN_AUDIENCE = "cleanrl-gateway"  # noqa: S105 - an audience's name
TOKEN_SECONDS = 3600
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def build(run: Run, settings: Settings, source: SourceStatus | None = None) -> dict[str, Any]:
    """The pod for the run's next attempt. `source` is what it starts from of the run that `from.run` names.

    Raises BadPodConfig where the spec has something in it that can't travel.
    """
    attempt = run.next_attempt
    template = run.spec.pod_template
    image = settings.image_for(run.spec.image, run.requirements)
    installed = settings.to_install(run.spec.image, run.requirements)
    labels = {**(template.labels if template and template.labels else {}), **run.child_labels()}
    labels |= {ATTEMPT_LABEL: str(attempt), "app.kubernetes.io/name": "cleanrl-worker"}
    if QUEUE_LABEL in run.labels:
        labels[QUEUE_LABEL] = run.labels[QUEUE_LABEL]
    if tensorboard.is_served(run, settings):
        labels[tensorboard.SERVED_LABEL] = run.uid
    config = podconfig.make(
        run_id=run.run_id,
        attempt=attempt,
        worker_config=workerconfig.build(run, source, SOURCE_FOLDER, SCRIPT_FOLDER),
        gateway_target=settings.gateway_target or None,
        gateway_ca=list(settings.gateway_ca),
    )
    spec: dict[str, Any] = confined.pod_spec(run, settings) | {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": settings.grace_seconds + 30,
        "containers": [_worker(run, settings, image, attempt, source)],
        "volumes": _volumes(run, settings, source),
    }
    first = [requirements.container(run, settings, image, installed)] if installed else []
    if not run.spec.dry_run:
        first.append(sidecar.build(run, settings, image))
    if first:
        spec["initContainers"] = first
    if installed:
        worker = spec["containers"][0]
        worker["env"].append({"name": "PYTHONPATH", "value": requirements.PYTHON_PATH})
        worker["volumeMounts"].append(requirements.mount())
        spec["volumes"] += requirements.volumes(settings)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": run.pod_name(attempt),
            "namespace": run.namespace,
            "labels": labels,
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(settings.metrics_port),
                **(template.annotations if template and template.annotations else {}),
                CONFIG_ANNOTATION: podconfig.encode(config),
            },
            "ownerReferences": [run.owner_reference()],
        },
        "spec": spec,
    }


def _worker(run: Run, settings: Settings, image: str, attempt: int, source: SourceStatus | None) -> dict[str, Any]:
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
        "CLEANRL_METRICS_HOST": "::",  # the pod's own address, of whatever family; frames stay on loopback
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
    if run.spec.artifacts.wandb.base_url is not None:
        environment["WANDB_BASE_URL"] = run.spec.artifacts.wandb.base_url.rstrip("/")
    env: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in environment.items()]
    # torch counts the node's cores, not the pod's: more threads than the limit allows stop each other for most of the time.
    own_limit = {"resource": "limits.cpu", "divisor": "1"}  # in whole CPUs, rounded up
    env.append({"name": "OMP_NUM_THREADS", "valueFrom": {"resourceFieldRef": own_limit}})
    secret = run.spec.artifacts.wandb.api_key_secret_ref
    if secret is not None:
        reference = {"name": secret.name, "key": secret.key}
        env.append({"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": reference}})
    worker: dict[str, Any] = {
        "name": "worker",
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "cleanrl_worker.pod"],
        "env": env,
        "resources": _resources(run),
        "ports": [{"name": "metrics", "containerPort": settings.metrics_port}],
        "securityContext": confined.CONTAINER,
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
    if run.spec.mode == Mode.INTERACTIVE:  # `kubectl attach -i` may come, go and come again
        worker |= {"stdin": True, "stdinOnce": False}
    return worker


def _resources(run: Run) -> dict[str, Any]:
    asked = run.spec.resources
    amounts = {"cpu": str(asked.cpus.requested), "memory": asked.memory}
    gpus = gpus_held(run.spec, run.status)
    if gpus:
        amounts[asked.gpus.resource_name] = str(gpus)
    return {"requests": amounts, "limits": amounts}


def _volumes(run: Run, settings: Settings, source: SourceStatus | None) -> list[dict[str, Any]]:
    token = {"audience": TOKEN_AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    annotation = {"fieldPath": f"metadata.annotations['{CONFIG_ANNOTATION}']"}
    volumes: list[dict[str, Any]] = [
        {"name": "run-data"}
        | ({"emptyDir": {}} if run.spec.dry_run else {"persistentVolumeClaim": {"claimName": run.claim_name}}),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "config", "downwardAPI": {"items": [{"path": "config", "fieldRef": annotation}]}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
    ]
    if _script(run) is not None:
        volumes.append({"name": "script", "configMap": _script(run)})
    origin = _origin(run, source)
    if origin is not None and not _shares_claim(run, origin):
        claim = {"claimName": origin.claim, "readOnly": True}
        volumes.append({"name": "source", "persistentVolumeClaim": claim})
    template = run.spec.pod_template
    for volume in (template.volumes if template else None) or []:
        given = volume.dump()
        given["name"] = f"user-{volume.name}"
        for key in ("mountPath", "subPath"):
            given.pop(key, None)
        volumes.append(given)
    return volumes


def _mounts(run: Run, source: SourceStatus | None) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "run-data", "mountPath": RUN_FOLDER, "subPath": run.folder},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - an emptyDir of the pod's own
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
        {"name": "config", "mountPath": "/etc/cleanrl", "readOnly": True},
        {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
    ]
    if _script(run) is not None:
        mounts.append({"name": "script", "mountPath": SCRIPT_FOLDER, "readOnly": True})
    origin = _origin(run, source)
    if origin is not None:
        name = "run-data" if _shares_claim(run, origin) else "source"
        part = {"subPath": origin.folder} if origin.folder else {}
        mounts.append({"name": name, "mountPath": SOURCE_FOLDER, "readOnly": True} | part)
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


class _Origin(NamedTuple):
    """What is mounted for the run to start from: a folder of a claim, or with no folder all of it."""

    claim: str
    folder: str


def _origin(run: Run, source: SourceStatus | None) -> _Origin | None:
    """The folder of the run that `from.run` names. A path of `from.path` may lead anywhere on the run's claim; of a dry run
    without one of somebody else's making there is none."""
    if source is not None:
        return _Origin(source.claim_name, source.path)
    has_path = run.spec.from_ is not None and run.spec.from_.path is not None
    has_claim = run.spec.artifacts.storage.claim_name is not None or not run.spec.dry_run
    return _Origin(run.claim_name, "") if has_path and has_claim else None


def _shares_claim(run: Run, origin: _Origin) -> bool:
    return origin.claim == run.claim_name and not run.spec.dry_run


def _script(run: Run) -> dict[str, Any] | None:
    """The script's ConfigMap as a volume; None when the run has no script, or it is in the image."""
    script = run.spec.script
    if script is None or script.config_map_ref is None:
        return None
    item = {"key": script.key, "path": script.key}
    return {"name": script.config_map_ref.name, "items": [item], "defaultMode": 0o444}

"""TensorBoard: its container and, for `serve: always`, Service, Deployment and route.

The Service finds both, the worker's pod while there is one and the Deployment's afterwards, by one label, so that its address
stays the same. The Deployment's pods do not carry the label by which the operator finds a run's pods: they are none of them.
"""

from __future__ import annotations

import hashlib
from typing import Any

from cleanrl_operator.api import GROUP
from cleanrl_operator.api.spec import Serve
from cleanrl_operator.desired import confined
from cleanrl_operator.desired.workerconfig import TENSORBOARD_FOLDER
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

TENSORBOARD = "tensorboard"
"""Name of the container."""
SERVED_LABEL = f"{GROUP}/tensorboard-of"
RESOURCES = {"requests": {"cpu": "150m", "memory": "256Mi"}, "limits": {"cpu": "500m", "memory": "1Gi"}}
"""Its start takes 0.4 s of CPU time. On a full node, where nobody gets more than was requested, that has to be over soon after
the worker has loaded its libraries; later it uses next to nothing. A quota that counts limits wants them of each container."""
INGRESS, HTTP_ROUTE = "Ingress", "HTTPRoute"


def wants_service(run: Run) -> bool:
    """Whether the run asks for a TensorBoard that others can reach."""
    board = run.spec.artifacts.tensorboard
    return board.enabled and board.serve == Serve.ALWAYS and not run.spec.dry_run


def is_served(run: Run, settings: Settings) -> bool:
    """Whether it gets one from this installation."""
    return wants_service(run) and settings.tensorboard_always


def name_of(run: Run) -> str:
    """The name of Service, Deployment and route: a DNS label whatever the run is called."""
    digest = hashlib.sha256(run.uid.encode()).hexdigest()[:8]
    return f"tb-{run.name.replace('.', '-')[:40].rstrip('-')}-{digest}"


def base_path(run: Run, settings: Settings) -> str:
    """The path below which a served TensorBoard answers."""
    return f"{settings.tensorboard_base_path.rstrip('/')}/{run.namespace}/{run.name}"


def url(run: Run, settings: Settings) -> str:
    """Its address: outside the cluster if the installation has a route for it, else inside."""
    if settings.tensorboard_route:
        return f"{settings.tensorboard_scheme}://{settings.tensorboard_host}{base_path(run, settings)}/"
    host = f"{name_of(run)}.{run.namespace}.svc:{settings.tensorboard_port}"
    return f"http://{host}{base_path(run, settings)}/"


def container(run: Run, settings: Settings, image: str) -> dict[str, Any]:
    """TensorBoard over the run's folder, which it can only read. On loopback, unless it is to be served."""
    logs = ["--logdir", f"{confined.RUN_FOLDER}/{TENSORBOARD_FOLDER}"]
    port = ["--port", str(settings.tensorboard_port)]
    built: dict[str, Any] = {
        "name": TENSORBOARD,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "cleanrl_worker.sidecar", *logs, "--host", "127.0.0.1", *port],
        "env": [{"name": "HOME", "value": confined.SCRATCH}],
        "resources": RESOURCES,
        "securityContext": confined.CONTAINER,
        "volumeMounts": [
            {"name": "run-data", "mountPath": confined.RUN_FOLDER, "subPath": run.folder, "readOnly": True},
            {"name": "tmp", "mountPath": confined.SCRATCH},
        ],
    }
    if is_served(run, settings):
        path = base_path(run, settings)
        built["command"] = ["python", "-m", "cleanrl_worker.sidecar", *logs, "--bind_all", *port, "--path_prefix", path]
        built["ports"] = [{"name": TENSORBOARD, "containerPort": settings.tensorboard_port}]
        built["readinessProbe"] = {
            "httpGet": {"path": f"{path}/", "port": TENSORBOARD},
            "periodSeconds": 3,
            "timeoutSeconds": 3,
        }
    return built


def service(run: Run, settings: Settings) -> dict[str, Any]:
    """One address for the sidecar and the Deployment."""
    port = {"name": "http", "port": settings.tensorboard_port, "targetPort": TENSORBOARD, "appProtocol": "http"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(run),
        "spec": {"selector": {SERVED_LABEL: run.uid}, "ports": [port]},
    }


def deployment(run: Run, settings: Settings) -> dict[str, Any]:
    """TensorBoard without a worker, on the same claim."""
    image = settings.image_for(run.spec.image, run.requirements)
    labels = {
        "app.kubernetes.io/name": "cleanrl-tensorboard",
        SERVED_LABEL: run.uid,
    }  # none of those of a run's own pods
    spec = confined.pod_spec(run, settings) | {
        "containers": [container(run, settings, image)],
        "terminationGracePeriodSeconds": 5,
        "volumes": [
            {"name": "run-data", "persistentVolumeClaim": {"claimName": run.claim_name}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(run),
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 0,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def route(run: Run, settings: Settings) -> dict[str, Any] | None:
    """What leads from outside to the Service; None where the installation has no such thing."""
    path, backend = base_path(run, settings), name_of(run)
    if settings.tensorboard_route == INGRESS:
        target = {"service": {"name": backend, "port": {"name": "http"}}}
        rule = {
            "host": settings.tensorboard_host,
            "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": target}]},
        }
        spec: dict[str, Any] = {"rules": [rule]}
        if settings.tensorboard_ingress_class:
            spec["ingressClassName"] = settings.tensorboard_ingress_class
        return {
            "apiVersion": "networking.k8s.io/v1", "kind": INGRESS, "metadata": _metadata(run), "spec": spec,
        }  # fmt: skip
    if settings.tensorboard_route == HTTP_ROUTE:
        namespace, _, gateway = settings.tensorboard_gateway.rpartition("/")
        parent = {"name": gateway} | ({"namespace": namespace} if namespace else {})
        matches = [{"path": {"type": "PathPrefix", "value": path}}]
        backends = [{"name": backend, "port": settings.tensorboard_port}]
        return {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": HTTP_ROUTE,
            "metadata": _metadata(run),
            "spec": {
                "parentRefs": [parent],
                "hostnames": [settings.tensorboard_host],
                "rules": [{"matches": matches, "backendRefs": backends}],
            },
        }
    return None


def _metadata(run: Run) -> dict[str, Any]:
    return {
        "name": name_of(run),
        "namespace": run.namespace,
        "labels": run.child_labels(),
        "ownerReferences": [run.owner_reference()],
    }

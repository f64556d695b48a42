"""The native sidecar of a worker's pod: it starts before the worker, outlives it, and ends what a killed worker could not.

With TensorBoard it serves that as well. Without, it only waits, and costs next to nothing.
"""

from __future__ import annotations

from typing import Any

from cleanrl_operator.desired import confined, tensorboard
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

FINISHER = "finisher"
"""Name of the container that serves no TensorBoard."""
NAMES = (tensorboard.TENSORBOARD, FINISHER)
FINISHED_FOLDER, RUNS_FOLDER, INDEX_FOLDER = "/analytics/run", "/analytics/runs", "/analytics/index"
RESOURCES = {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}}
"""Of one without TensorBoard: 24 MiB while it waits, more for a moment when it reads the manifests of many runs."""


def build(run: Run, settings: Settings, image: str) -> dict[str, Any]:
    """The container. What TensorBoard reads it only reads.

    Beside that the sidecar may write into the run's own folder, to finish the manifest of a worker that was killed, and into
    the claim's index, which it makes out of all runs' manifests.
    """
    if run.spec.artifacts.tensorboard.enabled:
        built = tensorboard.container(run, settings, image)
        ours = ["--"]
    else:
        built = _finisher(settings, image)
        ours = ["--without-tensorboard"]
    ours = [
        *("--run-dir", FINISHED_FOLDER),
        *("--runs-dir", RUNS_FOLDER, "--index-dir", INDEX_FOLDER),
        *("--message-path", "/dev/termination-log"),
        *ours,
    ]
    program, rest = built["command"][:3], built["command"][3:]
    return built | {
        "command": [*program, *ours, *rest],
        "restartPolicy": "Always",
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            *built["volumeMounts"],
            {"name": "run-data", "mountPath": FINISHED_FOLDER, "subPath": run.folder},
            {"name": "run-data", "mountPath": RUNS_FOLDER, "subPath": "runs", "readOnly": True},
            {"name": "run-data", "mountPath": INDEX_FOLDER, "subPath": "index"},
        ],
    }


def _finisher(settings: Settings, image: str) -> dict[str, Any]:
    return {
        "name": FINISHER,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "cleanrl_worker.sidecar"],
        "env": [{"name": "HOME", "value": confined.SCRATCH}],
        "resources": RESOURCES,
        "securityContext": confined.CONTAINER,
        "volumeMounts": [{"name": "tmp", "mountPath": confined.SCRATCH}],
    }

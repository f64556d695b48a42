"""The init container that installs requirement sets which no image of the installation holds.

It puts what is missing, and nothing that the image has already, below a folder of the pod's own that the worker's Python then
looks into. With a wheel cache alone nothing but the cache is asked.
"""

from __future__ import annotations

from typing import Any

from cleanrl_operator.desired import confined
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

REQUIREMENTS = "requirements"
"""Name of the init container and of the folder's volume."""
FOLDER = "/requirements"
WHEELS = "/wheels"
PYTHON_PATH = f"{FOLDER}/site-packages"


def container(run: Run, settings: Settings, image: str, sets: tuple[str, ...]) -> dict[str, Any]:
    """Installs these sets, or ends with the installer's last words as its termination message."""
    command = ["python", "-m", "cleanrl_worker.tools.install_for_pod", "--set", ",".join(sets), "--prefix", FOLDER]
    mounts: list[dict[str, Any]] = [
        {"name": REQUIREMENTS, "mountPath": FOLDER},
        {"name": "tmp", "mountPath": confined.SCRATCH},
    ]
    if settings.wheel_cache_claim:
        command += ["--wheels", WHEELS]
        mounts.append({"name": "wheels", "mountPath": WHEELS, "readOnly": True})
    if settings.package_index:
        command += ["--index-url", settings.package_index]
    return {
        "name": REQUIREMENTS,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": command,
        "env": [{"name": "HOME", "value": confined.SCRATCH}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": run.spec.resources.memory},
        },
        "securityContext": confined.CONTAINER,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def volumes(settings: Settings) -> list[dict[str, Any]]:
    """What the init container needs of the pod."""
    found: list[dict[str, Any]] = [{"name": REQUIREMENTS, "emptyDir": {}}]
    if settings.wheel_cache_claim:
        claim = {"claimName": settings.wheel_cache_claim, "readOnly": True}
        found.append({"name": "wheels", "persistentVolumeClaim": claim})
    return found


def mount() -> dict[str, Any]:
    """Where the worker finds what was installed."""
    return {"name": REQUIREMENTS, "mountPath": FOLDER, "readOnly": True}

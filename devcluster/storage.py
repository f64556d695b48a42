"""Volumes for claims: folders that any user may write, and small file systems that are really full when they are full.

`devcluster` (the default class) makes a folder. `devcluster-limited` mounts a file system in memory that has exactly the
requested size, so that writing past it fails with "no space left on device", as on a real disk. Both are `local`
volumes bound to the node that the scheduler chose.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devcluster.api import Api, ApiError, Object

PROVISIONER = "devcluster.local/folder"
DEFAULT_CLASS = "devcluster"
LIMITED_CLASS = "devcluster-limited"
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
_SELECTED = "volume.kubernetes.io/selected-node"
_MADE_BY = "pv.kubernetes.io/provisioned-by"
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def classes() -> list[Object]:
    """The two storage classes."""
    return [_class(DEFAULT_CLASS, default=True), _class(LIMITED_CLASS, default=False)]


def quantity(text: str) -> int:
    """A Kubernetes quantity of bytes as a number, rounded down."""
    number = text.rstrip("kKMGTi")
    unit = text[len(number) :]
    if unit not in _UNITS:
        raise ValueError(f"{text!r} is no size")
    return int(float(number) * _UNITS[unit])


def wants_volume(claim: Object) -> bool:
    """Whether a claim waits for us: of our class, unbound, and with its node chosen."""
    spec = claim["spec"]
    return (
        spec.get("storageClassName") in {DEFAULT_CLASS, LIMITED_CLASS}
        and not spec.get("volumeName")
        and "deletionTimestamp" not in claim["metadata"]
        and _SELECTED in claim["metadata"].get("annotations", {})
    )


def is_released(volume: Object) -> bool:
    """Whether a volume of ours has lost its claim and is to be removed."""
    return (
        _is_ours(volume)
        and volume.get("status", {}).get("phase") in {"Released", "Failed"}
        and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        and "deletionTimestamp" not in volume["metadata"]
    )


def volume_for(claim: Object, folder: Path) -> Object:
    """The volume that satisfies a claim."""
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name(claim), "annotations": {_MADE_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec["storageClassName"],
            "volumeMode": "Filesystem",
            "local": {"path": str(folder)},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {
                                    "key": "kubernetes.io/hostname",
                                    "operator": "In",
                                    "values": [metadata["annotations"][_SELECTED]],
                                }
                            ]
                        }
                    ]
                }
            },
        },
    }


def volume_name(claim: Object) -> str:
    """One name for each claim for ever, so that a provisioner that was killed half-way finds its own work."""
    return f"pvc-{claim['metadata']['uid']}"


class Provisioner:
    """Brings folders, file systems and volume objects in line with the claims."""

    def __init__(self, api: Api, folder: Path) -> None:
        self._api = api
        self._folder = folder

    def reconcile(self) -> list[str]:
        """One pass over all claims and volumes; what could not be done, as sentences. The next pass tries again."""
        problems = []
        work: list[tuple[Callable[[Object], None], Object]] = []
        for volume in self._api.get(VOLUMES)["items"]:
            if is_released(volume):
                work.append((self._remove, volume))
            elif _is_ours(volume):
                work.append((self._mount_again, volume))
        work += [(self._make, claim) for claim in self._api.get(CLAIMS)["items"] if wants_volume(claim)]
        for action, target in work:
            try:
                action(target)
            except (OSError, ValueError, ApiError) as error:
                problems.append(f"{target['metadata'].get('namespace', '')}/{target['metadata']['name']}: {error}")
        return problems

    def _make(self, claim: Object) -> None:
        if claim["spec"].get("volumeMode", "Filesystem") != "Filesystem":
            raise ValueError("block volumes can't be made here: ask for volumeMode Filesystem")
        folder = self._folder / volume_name(claim)
        folder.mkdir(parents=True, exist_ok=True)
        if claim["spec"]["storageClassName"] == LIMITED_CLASS:
            _mount(folder, claim["spec"]["resources"]["requests"]["storage"])
        folder.chmod(0o777)  # whatever user a pod runs as may write
        self._api.create(VOLUMES, volume_for(claim, folder))

    def _mount_again(self, volume: Object) -> None:
        """A limited volume loses its file system, and what was in it, when the node's last process ends."""
        folder = Path(volume["spec"]["local"]["path"])
        if volume["spec"].get("storageClassName") == LIMITED_CLASS and folder.is_dir() and not folder.is_mount():
            _mount(folder, volume["spec"]["capacity"]["storage"])

    def _remove(self, volume: Object) -> None:
        folder = Path(volume["spec"]["local"]["path"])
        if folder.parent != self._folder:
            return  # somebody edited the object: only our own folders are ever removed
        if folder.is_mount():
            _run("umount", "--lazy", str(folder))
        if folder.is_dir():
            shutil.rmtree(folder)
        self._api.delete(f"{VOLUMES}/{volume['metadata']['name']}")


def _is_ours(volume: Object) -> bool:
    return volume["metadata"].get("annotations", {}).get(_MADE_BY) == PROVISIONER and "local" in volume["spec"]


def _mount(folder: Path, size: str) -> None:
    if folder.is_mount():
        return
    if os.geteuid() != 0:
        raise ValueError("volumes of limited size need root")
    options = f"size={quantity(size)},mode=0777"
    _run("mount", "-t", "tmpfs", "-o", options, "devcluster", str(folder))


def _run(*command: str) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise OSError(f"{command[0]} failed: {answer.stderr.strip()}")


def _class(name: str, *, default: bool) -> dict[str, Any]:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }

"""Which claims get a volume, which volumes are removed, and what a volume looks like."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from devcluster import storage

CLAIM: dict[str, Any] = {
    "metadata": {
        "name": "data",
        "namespace": "team",
        "uid": "1-2-3",
        "annotations": {"volume.kubernetes.io/selected-node": "node-a"},
    },
    "spec": {
        "storageClassName": "devcluster",
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "5Gi"}},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    claim = copy.deepcopy(CLAIM)
    *parents, last = path.split(".")
    inner = claim
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return claim


@pytest.mark.parametrize(
    ("text", "size"),
    [("100", 100), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 3 * 2**29), ("2G", 2 * 10**9), ("1Ti", 2**40)],
)
def test_sizes_are_read_as_kubernetes_writes_them(text: str, size: int) -> None:
    assert storage.quantity(text) == size


@pytest.mark.parametrize("text", ["", "5Zi", "five", "1iG"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        storage.quantity(text)


def test_a_claim_whose_node_is_chosen_wants_a_volume() -> None:
    assert storage.wants_volume(CLAIM)


@pytest.mark.parametrize(
    "claim",
    [
        changed("spec.storageClassName", "somebody-else"),
        changed("spec.volumeName", "bound-already"),
        changed("metadata.annotations", {}),
        changed("metadata.deletionTimestamp", "now"),
    ],
)
def test_other_claims_are_left_alone(claim: dict[str, Any]) -> None:
    assert not storage.wants_volume(claim)


def test_a_volume_serves_exactly_its_claim_on_its_node() -> None:
    volume = storage.volume_for(CLAIM, Path("/volumes/pvc-1-2-3"))
    assert volume["metadata"]["name"] == "pvc-1-2-3"
    assert volume["spec"]["claimRef"]["uid"] == "1-2-3"
    assert volume["spec"]["accessModes"] == ["ReadWriteMany"]
    assert volume["spec"]["capacity"] == {"storage": "5Gi"}
    term = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]
    assert term["values"] == ["node-a"]


@pytest.mark.parametrize(("phase", "removed"), [("Bound", False), ("Available", False), ("Released", True)])
def test_only_released_volumes_are_removed(phase: str, removed: bool) -> None:
    volume = {**storage.volume_for(CLAIM, Path("/volumes/x")), "status": {"phase": phase}}
    assert storage.is_released(volume) is removed


def test_released_volumes_of_others_and_retained_ones_stay() -> None:
    ours = {**storage.volume_for(CLAIM, Path("/volumes/x")), "status": {"phase": "Released"}}
    retained = copy.deepcopy(ours)
    retained["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    foreign = copy.deepcopy(ours)
    foreign["metadata"]["annotations"] = {}
    assert not storage.is_released(retained)
    assert not storage.is_released(foreign)

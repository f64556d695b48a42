"""State goes to disk and comes back the same, and a hostile file can only be refused."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleanrl_worker.training import tree


def there_and_back(value: Any, folder: Path) -> Any:
    snapshot = tree.freeze(value)
    tree.write_arrays(snapshot, folder / "arrays.bin")
    return tree.thaw(tree.dump_skeleton(snapshot.skeleton), folder / "arrays.bin", lambda key: snapshot.chunks[key])  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [True, None, "text", 0.1, float("inf")], "c": (1, (2, "x"))},
        {1: "int keys", "$": "the tag itself as a key"},
        2**100,
        -(2**64),
        b"\x00\xff",
        [],
        {},
    ],
)
def test_plain_data_is_unchanged(value: Any, tmp_path: Path) -> None:
    assert there_and_back(value, tmp_path) == value


def test_generator_states_are_unchanged(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    copy = np.random.default_rng()
    copy.bit_generator.state = there_and_back(dict(rng.bit_generator.state), tmp_path)
    assert copy.random(5).tolist() == rng.random(5).tolist()


@pytest.mark.parametrize("dtype", sorted(tree.DTYPES))
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_arrays_are_unchanged(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    back = there_and_back([array, array.T], tmp_path)
    assert back[0].dtype == array.dtype
    assert back[0].shape == shape
    np.testing.assert_array_equal(back[0], array)
    np.testing.assert_array_equal(back[1], array.T)


def test_tensors_scalars_and_state_dicts_come_back_as_what_they_were(tmp_path: Path) -> None:
    value = {"t": torch.arange(3.0), "s": np.float64(2.5), "o": OrderedDict(x=torch.ones(2))}
    back = there_and_back(value, tmp_path)
    assert torch.equal(back["t"], value["t"])
    assert torch.equal(back["o"]["x"], torch.ones(2))
    assert isinstance(back["s"], np.float64)
    assert back["s"] == 2.5


def test_a_snapshot_does_not_change_with_its_source() -> None:
    array = np.zeros(3)
    snapshot = tree.freeze({"a": array})
    array[:] = 7
    assert snapshot.arrays[0].tolist() == [0, 0, 0]


def test_what_is_not_plain_is_refused_by_its_path() -> None:
    with pytest.raises(TypeError, match="/a/0: a object"):
        tree.freeze({"a": [object()]})
    with pytest.raises(TypeError, match="complex128"):
        tree.freeze({"a": np.zeros(2, complex)})
    with pytest.raises(TypeError, match="object"):
        tree.freeze(np.array([None]))


@pytest.mark.parametrize(
    "skeleton",
    [
        {"$": "array", "dtype": "float32", "shape": [10**9], "at": 0},
        {"$": "array", "dtype": "float32", "shape": [1], "at": 10**6},
        {"$": "array", "dtype": "float32", "shape": [-1], "at": 0},
        {"$": "array", "dtype": "float32", "shape": [1], "at": -8},
        {"$": "array", "dtype": "object", "shape": [1], "at": 0},
        {"$": "array", "dtype": "float32"},
        {"$": "code", "run": "import os"},
        {"$": "int", "hex": "zz"},
        {"$": "chunk", "key": "missing"},
    ],
)
def test_a_hostile_skeleton_is_refused(skeleton: Any, tmp_path: Path) -> None:
    (tmp_path / "arrays.bin").write_bytes(bytes(64))

    def no_chunk(key: str) -> np.ndarray:
        raise KeyError(key)

    with pytest.raises(tree.BadTree):
        tree.thaw(json.dumps(skeleton).encode(), tmp_path / "arrays.bin", no_chunk)
    with pytest.raises(tree.BadTree):
        tree.thaw(b"{cut short", tmp_path / "arrays.bin", no_chunk)

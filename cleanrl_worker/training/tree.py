"""Nested plain data with arrays in it, to a file and back, without pickle.

A tree is made of dicts, lists, tuples, None, bools, numbers, strings, bytes, NumPy arrays and torch tensors. It becomes a
JSON skeleton, in which every array is a reference, and one file with the arrays' bytes one after the other. Reading never
executes anything, checks every length against the file, and accepts only plain numeric types, so that a checkpoint from a
stranger can be wrong but not dangerous.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ALIGN = 64
DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
TAG = "$"
"""A JSON object with this key is not a dict but one of the other kinds."""


class BadTree(ValueError):
    """The files do not describe a tree: cut short, changed, or never ours."""


@dataclass(eq=False)
class Chunk:
    """A part of the tree that is kept in a file of its own, written once and shared by many checkpoints.

    `key` names the content: the same key must always mean the same bytes. `array` is only called, to take a copy, when
    no file with that key exists yet. A loaded tree has the plain array in the chunk's place.
    """

    key: str
    array: Callable[[], np.ndarray]


@dataclass(eq=False)
class Snapshot:
    """A tree frozen at one moment: every array copied, so that another thread can write it while training goes on."""

    skeleton: Any = None
    arrays: list[np.ndarray] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    chunks: dict[str, np.ndarray | None] = field(default_factory=dict)
    """Chunks by key; None for those whose file exists already."""
    size: int = 0


def freeze(tree: Any, known_chunks: Iterable[str] = ()) -> Snapshot:
    """Copy `tree` into a snapshot. Raises TypeError, with the path of the offender, for what can't be kept."""
    snapshot = Snapshot()
    known = frozenset(known_chunks)
    snapshot.skeleton = _freeze(tree, snapshot, known, "")
    return snapshot


def _freeze(node: Any, out: Snapshot, known: frozenset[str], path: str) -> Any:
    if node is None or (isinstance(node, bool | str | float) and type(node) in (bool, str, float)):
        return node
    if type(node) is int:
        return node if -(2**53) < node < 2**53 else {TAG: "int", "hex": hex(node)}
    if isinstance(node, np.ndarray | np.generic):
        return _array(np.asarray(node), out, path, kind="scalar" if isinstance(node, np.generic) else "array")
    if type(node) is dict:
        if all(type(key) is str and key != TAG for key in node):
            return {key: _freeze(value, out, known, f"{path}/{key}") for key, value in node.items()}
        pairs = [
            [_freeze(key, out, known, path), _freeze(value, out, known, f"{path}/{key}")] for key, value in node.items()
        ]
        return {TAG: "dict", "pairs": pairs}
    if type(node) is list:
        return [_freeze(value, out, known, f"{path}/{i}") for i, value in enumerate(node)]
    if isinstance(node, tuple):
        return {TAG: "tuple", "items": [_freeze(value, out, known, f"{path}/{i}") for i, value in enumerate(node)]}
    if isinstance(node, bytes | bytearray):
        return _array(np.frombuffer(node, np.uint8), out, path, kind="bytes")
    if isinstance(node, Chunk):
        if node.key in known:
            out.chunks[node.key] = None
        elif out.chunks.get(node.key) is None:
            out.chunks[node.key] = np.array(node.array(), order="C", copy=True)
        return {TAG: "chunk", "key": node.key}
    if _is_tensor(node):
        return _array(node.detach().cpu().numpy(), out, path, kind="tensor")
    if type(node).__name__ == "OrderedDict":  # torch's state_dict
        return _freeze(dict(node), out, known, path)
    raise TypeError(
        f"{path or '/'}: a {type(node).__name__} can't be kept in a checkpoint; turn it into plain data or arrays."
    )


def _array(array: np.ndarray, out: Snapshot, path: str, kind: str) -> dict[str, Any]:
    if array.dtype.name not in DTYPES:
        raise TypeError(
            f"{path or '/'}: arrays of {array.dtype} can't be kept in a checkpoint; use one of {sorted(DTYPES)}."
        )
    copy = np.array(array, order="C", copy=True)
    out.arrays.append(copy)
    out.offsets.append(out.size)
    out.size += -(-copy.nbytes // ALIGN) * ALIGN
    return {TAG: kind, "dtype": copy.dtype.name, "shape": list(copy.shape), "at": out.offsets[-1]}


def _is_tensor(node: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(node, torch.Tensor)


def write_arrays(snapshot: Snapshot, path: Path) -> None:
    """Write the bytes of all arrays, each at its aligned offset, and make them durable."""
    with path.open("wb") as file:
        for array, offset in zip(snapshot.arrays, snapshot.offsets, strict=True):
            file.seek(offset)
            file.write(array.reshape(-1).view(np.uint8).data if array.nbytes else b"")
        file.truncate(snapshot.size)
        flush(file)


def flush(file: Any) -> None:
    import os

    file.flush()
    os.fsync(file.fileno())


def dump_skeleton(skeleton: Any) -> bytes:
    return json.dumps(skeleton, separators=(",", ":")).encode()


def thaw(skeleton: bytes, arrays: Path, chunk: Callable[[str], np.ndarray]) -> Any:
    """Rebuild the tree. `chunk` returns the array of a key. Raises BadTree for anything that does not add up."""
    try:
        root = json.loads(skeleton)
        data = np.fromfile(arrays, np.uint8)
        return _thaw(root, data, chunk)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError, OSError) as error:
        raise BadTree(f"{arrays.parent}: {error}") from error


def _thaw(node: Any, data: np.ndarray, chunk: Callable[[str], np.ndarray]) -> Any:
    if isinstance(node, list):
        return [_thaw(value, data, chunk) for value in node]
    if not isinstance(node, dict):
        return node
    kind = node.get(TAG)
    if kind is None:
        return {key: _thaw(value, data, chunk) for key, value in node.items()}
    if kind == "int":
        return int(node["hex"], 16)
    if kind == "dict":
        return {_thaw(key, data, chunk): _thaw(value, data, chunk) for key, value in node["pairs"]}
    if kind == "tuple":
        return tuple(_thaw(value, data, chunk) for value in node["items"])
    if kind == "chunk":
        return chunk(str(node["key"]))
    array = _read(node, data)
    if kind == "array":
        return array
    if kind == "scalar":
        return array[()]
    if kind == "bytes":
        return array.tobytes()
    if kind == "tensor":
        import torch

        return torch.from_numpy(array)
    raise BadTree(f"unknown kind {kind!r}")


def _read(node: dict[str, Any], data: np.ndarray) -> np.ndarray:
    if node["dtype"] not in DTYPES:
        raise BadTree(f"arrays of {node['dtype']!r} are not accepted")
    dtype = np.dtype(node["dtype"])
    shape = tuple(int(n) for n in node["shape"])
    start = int(node["at"])
    count = 1
    for n in shape:
        count *= n
    length = count * dtype.itemsize
    if min(shape, default=0) < 0 or start < 0 or start + length > data.size:
        raise BadTree("an array reaches beyond the end of the file")
    array: np.ndarray = data[start : start + length].copy().view(dtype).reshape(shape)
    return array

"""Checkpoints on disk: whole or absent, verified when read, the last few kept.

    checkpoints/
      step-000000102400/       one checkpoint; a second one of the same step is called step-000000102400.2
        state.json             the skeleton of the state (see tree.py)
        arrays.bin             the bytes of its arrays
        manifest.json          written last: step, reason, sha256 and size of the files and of the chunks it needs
      chunks/                  parts of large buffers, written once, shared by the checkpoints that name them

The training thread only copies the state. One background thread writes, hashes, makes durable and renames; a folder with its
final name is complete. `sha256` of a checkpoint is that of its manifest, which covers everything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_protocol.limits import DISK_FULL
from cleanrl_worker.analytics import MANIFEST
from cleanrl_worker.plainfile import open_plain
from cleanrl_worker.runfolder import reason_of
from cleanrl_worker.training import tree
from cleanrl_worker.training.tree import BadTree, Chunk

__all__ = ["BadCheckpoint", "CheckpointStore", "Chunk", "Loaded", "Saved", "find", "load_checkpoint", "newest_valid"]

VERSION = 1
NAME = re.compile(r"step-(\d{1,18})(?:\.(\d{1,6}))?")
MAX_MANIFEST_BYTES = 64 * 2**20
"""A manifest names each chunk of a replay buffer once: kilobytes."""
UNUSABLE = "unusable"
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


class BadCheckpoint(Exception):
    """A checkpoint that can't be used, with the reason."""


@dataclass(frozen=True)
class Saved:
    """One checkpoint that is safely on disk."""

    path: Path
    step: int
    sha256: str
    bytes: int
    seconds: float
    reason: str


@dataclass(frozen=True)
class Loaded:
    """One checkpoint that was read and verified."""

    path: Path
    step: int
    sha256: str
    meta: dict[str, Any]
    state: Any
    chunk_keys: frozenset[str]


class CheckpointStore:
    """Writes checkpoints into one folder. Owned by one process at a time."""

    def __init__(
        self,
        root: Path,
        keep: int = 3,
        on_saved: Callable[[Saved], None] = lambda _: None,
        on_error: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.root = root
        self.keep = max(1, keep)
        self.on_saved = on_saved
        self.on_error = on_error
        self.last: Saved | None = None
        """The newest checkpoint this process wrote."""
        self.refusal: OSError | None = None
        """Why the last one that was asked for is not on disk; None when it is."""
        self._chunks: set[str] = set()
        self._thread: threading.Thread | None = None
        if root.is_dir():
            for leftover in root.glob(".tmp-*"):
                shutil.rmtree(leftover, ignore_errors=True)

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def adopt(self, loaded: Loaded) -> None:
        """Go on after `loaded`, if it lies in this store: its chunks need not be written again, and checkpoints that are
        newer (all of them refused, or we would have loaded them) are put aside."""
        if loaded.path.parent.resolve() != self.root.resolve():
            return
        self._chunks = set(loaded.chunk_keys)
        for path in list_checkpoints(self.root):
            if _order(path) > _order(loaded.path):
                path.rename(_free(self.root / f"corrupt-{path.name}"))

    def put_aside(self) -> Path | None:
        """Move what is there, none of which can be used, into a folder of its own and return that; None when it was empty.

        The run begins at step 0 again: by their numbers its checkpoints would be the oldest, and dropped as they come.
        """
        if not list_checkpoints(self.root):
            return None
        entries = [path for path in self.root.iterdir() if not path.name.startswith(UNUSABLE)]
        shelf = _free(self.root / UNUSABLE)
        shelf.mkdir()
        for path in entries:
            path.rename(shelf / path.name)
        return shelf

    def save(self, step: int, state: Any, meta: dict[str, Any], reason: str, wait: bool = False) -> None:
        """Copy `state` now, write it in the background. With `wait`, return when it is on disk (or has failed)."""
        self.wait()
        snapshot = tree.freeze(state, self._chunks)
        self._thread = threading.Thread(
            target=self._write_or_report, args=(step, snapshot, meta, reason), name="checkpoint-writer"
        )
        self._thread.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write_or_report(self, step: int, snapshot: tree.Snapshot, meta: dict[str, Any], reason: str) -> None:
        try:
            self.last = self._write(step, snapshot, meta, reason)
        except OSError as error:
            self.refusal = error
            full = reason_of(error) == DISK_FULL
            remedy = "Free space on the volume." if full else "See that the folder can be written."
            self.on_error(f"The checkpoint at step {step} could not be written: {error}. {remedy}")
            return
        self.refusal = None
        self.on_saved(self.last)

    def _write(self, step: int, snapshot: tree.Snapshot, meta: dict[str, Any], reason: str) -> Saved:
        began = time.monotonic()
        final = _free(self.root / f"step-{step:012d}")
        temporary = self.root / f".tmp-{final.name}"
        try:
            temporary.mkdir(parents=True)
            chunks = {key: self._write_chunk(key, array) for key, array in snapshot.chunks.items()}
            (temporary / "state.json").write_bytes(tree.dump_skeleton(snapshot.skeleton))
            tree.write_arrays(snapshot, temporary / "arrays.bin")
            files = {name: _digest(temporary / name) for name in ("state.json", "arrays.bin")}
            manifest = {
                "version": VERSION,
                "step": step,
                "reason": reason,
                "saved_at": time.time(),
                "meta": meta,
                "files": files,
                "chunks": chunks,
            }
            encoded = json.dumps(manifest, indent=1, sort_keys=True).encode()
            with (temporary / "manifest.json").open("wb") as file:
                file.write(encoded)
                tree.flush(file)
            temporary.rename(final)
            _sync_folder(self.root)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._chunks = set(chunks)
        self._prune()
        size = sum(entry["bytes"] for entry in (*files.values(), *chunks.values())) + len(encoded)
        digest = hashlib.sha256(encoded).hexdigest()
        return Saved(final, step, digest, size, time.monotonic() - began, reason)

    def _write_chunk(self, key: str, array: np.ndarray | None) -> dict[str, Any]:
        if not KEY.fullmatch(key):
            raise ValueError(f"{key!r} can't name a chunk")
        path = self.root / "chunks" / f"{key}.bin"
        description = path.with_suffix(".json")
        if array is None:
            entry: dict[str, Any] = json.loads(description.read_bytes())
            return entry
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(array.reshape(-1).view(np.uint8).data if array.nbytes else b"")
            tree.flush(file)
        entry = {**_digest(temporary), "dtype": array.dtype.name, "shape": list(array.shape)}
        description.write_text(json.dumps(entry))
        temporary.rename(path)
        return entry

    def _prune(self) -> None:
        """Drop all but the newest checkpoints, what was put aside, and chunks that no kept checkpoint names."""
        kept = list_checkpoints(self.root)
        for path in (*kept[: -self.keep], *self.root.glob("corrupt-*")):
            shutil.rmtree(path, ignore_errors=True)
        named: set[str] = set()
        for path in kept[-self.keep :]:
            with contextlib.suppress(BadCheckpoint):  # damaged since, or put there by somebody: it needs no chunks
                named.update(_read_manifest(path)[0]["chunks"])
        for path in (self.root / "chunks").glob("*"):
            if path.stem not in named:
                path.unlink(missing_ok=True)


def list_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoint folders, oldest first."""
    return sorted((path for path in root.glob("step-*") if NAME.fullmatch(path.name)), key=_order)


def newest_valid(root: Path, note: Callable[[str], None] = lambda _: None) -> Loaded | None:
    """The newest checkpoint that can be trusted. Each one that is passed over is told to `note`."""
    for path in reversed(list_checkpoints(root)):
        try:
            return load_checkpoint(path)
        except BadCheckpoint as error:
            note(f"{error} Falling back to the checkpoint before it.")
    return None


def find(path: Path, sha256: str | None = None, note: Callable[[str], None] = lambda _: None) -> Loaded | Path:
    """What a user means by a path: a checkpoint, or the path of a model file that holds weights only.

    `path` is a model file, a checkpoint's folder or a file in it, a folder of checkpoints, a run's folder or its manifest. Of
    several checkpoints the newest valid one counts, or the one with the digest `sha256`. Raises BadCheckpoint when there is
    none, or when what is there has another digest.
    """
    if not path.exists():
        raise BadCheckpoint(f"{path} does not exist.")
    path = run_of(path)
    if path.is_file() and path.name not in ("manifest.json", "state.json", "arrays.bin"):
        _expect(path, file_sha256(path), sha256)
        return path
    if path.is_file() or (path / "manifest.json").exists():
        folder = path if path.is_dir() else path.parent
        if sha256 is not None:  # before anything in it is believed
            _expect(folder, _manifest_sha256(folder), sha256)
        return load_checkpoint(folder)
    root = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    if sha256 is not None:
        for folder in reversed(list_checkpoints(root)):
            if _manifest_sha256(folder) == sha256.lower():
                return load_checkpoint(folder)
        raise BadCheckpoint(f"{path} holds no checkpoint with the sha256 {sha256}: it was changed or removed.")
    loaded = newest_valid(root, note)
    models = sorted(path.glob("runs/*/*.cleanrl_model"), key=lambda model: model.stat().st_mtime)
    if loaded is None and not models:
        raise BadCheckpoint(f"{path} holds no usable checkpoint.")
    return loaded or models[-1]


def run_of(path: Path) -> Path:
    """A run's manifest stands for its folder; any other path for itself."""
    return path.parent if path.name == MANIFEST and path.is_file() else path


def mismatch(loaded: Loaded, algo: str, env_id: str) -> str | None:
    """Why the checkpoint is not one for this algorithm and environment, with the remedy; None when it is."""
    made_by, made_on, stages = (loaded.meta.get(name) for name in ("algo", "env_id", "stages"))
    if algo != made_by:
        return f"The checkpoint {loaded.path} is of {made_by}, not of {algo}: use it with --algo {made_by}."
    if env_id not in (made_on, *(stages if isinstance(stages, list) else [])):
        return (
            f"The checkpoint {loaded.path} was made on {made_on}, not on {env_id}: use it with --env-id {made_on}, or take "
            "only its weights to another environment, with the model file that --save-model writes."
        )
    return None


def _manifest_sha256(folder: Path) -> str:
    try:
        return str(_digest(folder / "manifest.json")["sha256"])
    except OSError as error:
        raise BadCheckpoint(f"{folder} has no readable manifest: {error.strerror or error}.") from error


def _expect(path: Path, found: str, wanted: str | None) -> None:
    if wanted is not None and found != wanted.lower():
        raise BadCheckpoint(
            f"{path} is not the expected checkpoint: its sha256 is {found}, not {wanted}. It was changed or replaced."
        )


def load_checkpoint(path: Path) -> Loaded:
    """Read and verify one checkpoint, given its folder or a file in it. Raises BadCheckpoint."""
    folder = path if path.is_dir() else path.parent
    manifest, encoded = _read_manifest(folder)
    for name, entry in manifest["files"].items():
        if name not in ("state.json", "arrays.bin"):
            raise BadCheckpoint(f"{folder} names an unknown file {name!r}.")
        _verify(folder / name, entry)
    chunks = manifest["chunks"]

    def chunk(key: str) -> np.ndarray:
        entry = chunks[key]
        if not KEY.fullmatch(key) or entry["dtype"] not in tree.DTYPES:
            raise BadTree(f"{key!r} does not name a chunk")
        file = folder.parent / "chunks" / f"{key}.bin"
        _verify(file, entry)
        # mapped, not read: a large buffer copies it to where it belongs and never holds all of it twice
        empty = not file.stat().st_size  # which can't be mapped
        stored = np.fromfile(file, entry["dtype"]) if empty else np.memmap(file, entry["dtype"], mode="r")
        return stored.reshape(entry["shape"])

    try:
        state = tree.thaw((folder / "state.json").read_bytes(), folder / "arrays.bin", chunk)
    except (BadTree, OSError) as error:
        raise BadCheckpoint(f"{folder} can't be read: {error}.") from error
    digest = hashlib.sha256(encoded).hexdigest()
    return Loaded(folder, manifest["step"], digest, manifest["meta"], state, frozenset(chunks))


def saved_facts(saved: Saved, relative_to: Path) -> dict[str, Any]:
    """The checkpoint as the supervisor is told about it, with its path relative to the run's folder where possible."""
    return {**asdict(saved), "path": relative(saved.path, relative_to)}


def relative(path: Path, base: Path) -> str:
    resolved, base = path.resolve(), base.resolve()
    return str(resolved.relative_to(base)) if resolved.is_relative_to(base) else str(resolved)


def _read_manifest(folder: Path) -> tuple[dict[str, Any], bytes]:
    try:
        with open_plain(folder / "manifest.json") as file:
            encoded = file.read(MAX_MANIFEST_BYTES)
        manifest = json.loads(encoded)
        if manifest["version"] != VERSION:
            raise BadCheckpoint(f"{folder} has version {manifest['version']}, this program reads version {VERSION}.")
        whole = isinstance(manifest["step"], int) and all(
            isinstance(manifest[k], dict) for k in ("meta", "files", "chunks")
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadCheckpoint(f"{folder} has no readable manifest: {error}.") from error
    if not whole or set(manifest["files"]) != {"state.json", "arrays.bin"}:
        raise BadCheckpoint(f"{folder} has a manifest with parts missing.")
    return manifest, encoded


def _verify(path: Path, entry: Any) -> None:
    try:
        intact = _digest(path)["sha256"] == entry["sha256"]
    except (OSError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"{path} can't be read: {error}.") from error
    if not intact:
        raise BadCheckpoint(f"{path} is damaged: its sha256 is not the one in the manifest.")


def file_sha256(path: Path) -> str:
    """Of a file that the user names: it may be a link."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(path: Path) -> dict[str, Any]:
    """Of a file in a checkpoint, which is never a link or a pipe."""
    with open_plain(path) as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": os.fstat(file.fileno()).st_size}


def _order(path: Path) -> tuple[int, int]:
    match = NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, 0)


def _free(path: Path) -> Path:
    candidate, n = path, 1
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}.{n}")
    return candidate


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

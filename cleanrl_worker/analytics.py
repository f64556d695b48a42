"""The run's manifest, `analytics.json`: what the run left behind and where, found on disk.

`write_manifest` is called at every lifecycle event and at the end, whatever the end was; `refresh_manifest` does it
for a worker that could not, and `finalise` judges whether there was one. A reader sees the old file or the new one,
never half of one. Paths are relative to the run's folder; symbolic links are not followed; the scan and every list in
the file are bounded. `rebuild_index` makes one `index.json` over a folder of runs.

    python -m cleanrl_worker.analytics <run folder>          write its manifest again from what is on disk
    python -m cleanrl_worker.analytics --finalise <folder>   the same, if its worker died without doing so
    python -m cleanrl_worker.analytics --index <folder>      write the index of the runs in that folder
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import glob
import hashlib
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanrl_worker import wandb_mode
from cleanrl_worker.plainfile import open_plain
from cleanrl_worker.runfolder import FolderInUse, RunFolder, RunFolderError
from cleanrl_worker.telemetry import seconds_of

MANIFEST = "analytics.json"
INDEX = "index.json"
VERSION = 1
MAX_ENTRIES = 20_000
"""Directory entries looked at in one scan. A run that has more gets a manifest that says `"truncated": true`."""
MAX_DEPTH = 10
MAX_LISTED = 200
"""Files named in one list; the newest are kept, and the count is always the true one."""
MAX_MANIFEST_BYTES = 4 * 1024 * 1024
MAX_INDEXED = 20_000
MAX_INDEXED_TEXT = 256
LOST = "WorkerLost"
MAX_CHECKPOINT_MANIFEST_BYTES = 64 * 1024 * 1024
_VIDEO_SUFFIXES = frozenset({".mp4", ".gif", ".webm"})
_CHECKPOINT = re.compile(r"step-(\d{1,18})(?:\.(\d{1,6}))?")


@dataclass(frozen=True)
class _File:
    path: str
    size: int
    modified: float

    def entry(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": self.size}


@dataclass
class _Found:
    """What a scan saw."""

    events: list[_File] = field(default_factory=list)
    models: list[_File] = field(default_factory=list)
    videos: list[_File] = field(default_factory=list)
    logs: list[_File] = field(default_factory=list)
    databases: list[_File] = field(default_factory=list)
    checkpoints: list[Path] = field(default_factory=list)
    wandb_runs: list[str] = field(default_factory=list)
    truncated: bool = False


def write_manifest(
    run_dir: Path,
    config: Mapping[str, Any],
    *,
    outcome: str | None = None,
    reason: str | None = None,
    message: str | None = None,
    times: Mapping[str, float] | None = None,
    requirements: Sequence[str] = (),
    reproducibility: Mapping[str, Any] | None = None,
    wandb: Mapping[str, Any] | None = None,
) -> str:
    """Write `analytics.json` and return its sha256. Raises OSError when the folder does not take it.

    `config` is the resolved config, already redacted: `run_id algo env_id seed total_timesteps worker_id extras`.
    `outcome` is None while the run goes on. `times` maps names (`started`, `training_started`, `finished`, ...) to
    seconds since 1970. `wandb` is the plan's `manifest()` (see wandb_mode).
    """
    facts: dict[str, Any] = {
        "run_id": config.get("run_id") or run_dir.name,
        "worker_id": config.get("worker_id"),
        "algo": config.get("algo"),
        "env_id": config.get("env_id"),
        "seed": config.get("seed"),
        "total_timesteps": config.get("total_timesteps"),
        "outcome": outcome,
        "reason": reason,
        "message": message,
        "times": dict(times or {}),
        "requirements": list(requirements),
        "reproducibility": dict(reproducibility or {}),
    }
    return _write(run_dir, facts, _extras(config), dict(wandb or {}))


def finalise(run_dir: Path) -> str | None:
    """Write the manifest's end for a worker that could not: killed, or out of memory. Returns the new sha256.

    None, and nothing is touched, when the worker did it itself, never started, or is still at it. What it came to is in
    its event log; a log that just stops means that the worker was lost. Raises OSError when the folder does not take it.
    """
    folder = RunFolder(run_dir)
    try:
        lock = folder.take()
    except FolderInUse:
        return None
    except RunFolderError as error:
        raise OSError(str(error)) from error
    try:
        history = folder.history()
        known = read_json(run_dir / MANIFEST) or {}
        if history.starts == 0 or (history.outcome is not None and known.get("outcome") == history.outcome):
            return None
        if history.outcome is not None:  # it died, or its disk was full, between its last event and its last manifest
            told = _mapping(history.end.get("payload"))
            reason, message = (_text(told.get(name)) for name in ("reason", "message"))
            return refresh_manifest(
                run_dir, history.outcome, reason=reason, message=message, finished=seconds_of(history.end) or None
            )
        message = "The worker ended without a word: it was killed, or ran out of memory."
        return refresh_manifest(run_dir, "failed", reason=LOST, message=message, finished=time.time())
    except RunFolderError as error:
        raise OSError(str(error)) from error
    finally:
        os.close(lock)


def refresh_manifest(
    run_dir: Path,
    outcome: str | None = None,
    *,
    reason: str | None = None,
    message: str | None = None,
    finished: float | None = None,
) -> str:
    """Look at the disk again and keep what the last manifest said otherwise. For those who outlive the worker."""
    config = read_json(run_dir / "config.json") or {}
    known = read_json(run_dir / MANIFEST) or {}
    facts: dict[str, Any] = {
        name: known.get(name, config.get(name))
        for name in ("worker_id", "algo", "env_id", "seed", "total_timesteps", "reason", "message")
    }
    facts["run_id"] = known.get("run_id") or config.get("run_id") or run_dir.name
    facts["outcome"] = outcome or known.get("outcome")
    facts["reason"] = reason or facts["reason"]
    facts["message"] = message or facts["message"]
    facts["times"] = {**_mapping(known.get("times")), **({"finished": finished} if finished is not None else {})}
    facts["requirements"] = known.get("requirements") if isinstance(known.get("requirements"), list) else []
    facts["reproducibility"] = _mapping(known.get("reproducibility"))
    wandb = _mapping(_mapping(known.get("artifacts")).get("wandb"))
    return _write(run_dir, facts, _extras(config), wandb)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object of bounded size, or None when there is none. Absent fields are the reader's to expect."""
    try:
        with open_plain(path) as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
        value = json.loads(data) if len(data) <= MAX_MANIFEST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def rebuild_index(root: Path, into: Path | None = None) -> Path:
    """Write `index.json` over the runs in `root` (folders with a manifest), newest first, and return its path.

    It goes into `root`, or into the folder `into`. Two who do it at once take turns, so the last one has seen everything.
    """
    folder = into or root
    lock = os.open(folder / f".{INDEX}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        runs = list(indexed(root))
        runs.sort(key=lambda run: (_seconds(run["started"]), run["path"]), reverse=True)
        _replace(folder / INDEX, {"version": VERSION, "runs": runs})
    finally:
        os.close(lock)
    return folder / INDEX


def indexed(root: Path) -> Iterator[dict[str, Any]]:
    """What a folder's runs say of themselves, one short entry each. Whatever is no run is passed over."""
    with os.scandir(root) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in names[-MAX_INDEXED:]:  # names of runs begin with their time: the newest
        path = root / name / MANIFEST
        manifest = read_json(path) if name.isprintable() else None
        if manifest is None:
            continue
        times = _mapping(manifest.get("times"))
        told = ("algo", "env_id", "seed", "total_timesteps", "outcome", "reason")
        yield {
            "run_id": _short(manifest.get("run_id")) or name,
            "path": name,
            **{key: _short(manifest.get(key)) for key in told},
            "started": _short(times.get("started")),
            "finished": _short(times.get("finished")),
            "tensorboard_dir": _inside(_short(manifest.get("tensorboard_dir"))),
            "manifest_sha256": _sha256(path),
        }


def _write(run_dir: Path, facts: dict[str, Any], extras: Mapping[str, Any], wandb: dict[str, Any]) -> str:
    found = _scan(run_dir)
    tensorboard_dir, events = _tensorboard(found, extras, str(facts["run_id"]))
    databases = [_inside(extras.get("optuna_db"))] + [file.path for file in found.databases]
    optuna = next((path for path in databases if path), None)
    checkpoints_dir = _inside(extras.get("checkpoints_dir")) or ("checkpoints" if found.checkpoints else None)
    notes = extras.get("notes")
    wandb = {**wandb, **wandb_mode.discovered(run_dir, sorted(found.wandb_runs)[-MAX_LISTED:], wandb, extras)}
    manifest = {
        "manifest_version": VERSION,
        "worker_type": "cleanrl",
        **facts,
        "tensorboard_dir": tensorboard_dir,
        "wandb_run_path": wandb["run_path"],
        "optuna_db_path": optuna,
        "checkpoints_dir": checkpoints_dir,
        "notes": _text(notes),
        "artifacts": {
            "tensorboard": {
                "enabled": tensorboard_dir is not None,
                "relative_path": tensorboard_dir,
                "event_files": len(events),
                "bytes": sum(file.size for file in events),
            },
            "wandb": wandb,
            "checkpoints": [entry for path in found.checkpoints if (entry := _checkpoint(run_dir, path))],
            "models": _listed(found.models, run_dir if facts["outcome"] else None),
            "videos": _listed(found.videos),
            "logs": _listed(found.logs),
        },
        "truncated": found.truncated,
    }
    return _replace(run_dir / MANIFEST, manifest)


def _scan(run_dir: Path) -> _Found:
    found = _Found()
    for path, entry in _walk(run_dir, found):
        name = entry.name
        if entry.is_dir(follow_symlinks=False):
            if _CHECKPOINT.fullmatch(name) and Path(path).parent.name == "checkpoints":
                found.checkpoints.append(run_dir / path)
            elif wandb_mode.RUN_FOLDER.fullmatch(name):
                found.wandb_runs.append(path)
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # deleted in the meantime
            continue
        file = _File(path, status.st_size, status.st_mtime)
        suffix = Path(name).suffix
        if ".tfevents." in name:
            found.events.append(file)
        elif suffix == ".cleanrl_model":
            found.models.append(file)
        elif suffix in _VIDEO_SUFFIXES:
            found.videos.append(file)
        elif path.startswith("logs/") or name == "events.jsonl":
            found.logs.append(file)
        elif suffix in (".db", ".sqlite3") and "optuna" in name:
            found.databases.append(file)
    found.checkpoints.sort(key=lambda path: tuple(int(part or 1) for part in _numbers(path)))
    return found


def _walk(run_dir: Path, found: _Found) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file and folder below, by relative path; not into links, hidden folders, checkpoints or W&B's runs."""
    budget = MAX_ENTRIES
    pending = [("", 0)]
    while pending:
        folder, depth = pending.pop()
        try:
            with os.scandir(run_dir / folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:  # vanished or not ours to read: the manifest names what can be read
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if budget <= 0:
                found.truncated = True
                return
            budget -= 1
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not path.isprintable():
                continue
            yield path, entry
            closed = _CHECKPOINT.fullmatch(entry.name) or wandb_mode.RUN_FOLDER.fullmatch(entry.name)
            if entry.is_dir(follow_symlinks=False) and not closed and entry.name != "chunks":
                if depth >= MAX_DEPTH:
                    found.truncated = True
                else:
                    pending.append((path, depth + 1))


def _numbers(path: Path) -> tuple[str, str | None]:
    match = _CHECKPOINT.fullmatch(path.name)
    assert match is not None
    return match[1], match[2]


def _checkpoint(run_dir: Path, path: Path) -> dict[str, Any] | None:
    """A checkpoint as its own manifest describes it; its sha256 is that of this manifest, which covers the rest."""
    try:
        with open_plain(path / "manifest.json") as file:
            data = file.read(MAX_CHECKPOINT_MANIFEST_BYTES)
        manifest = json.loads(data)
        parts = [*manifest["files"].values(), *manifest["chunks"].values()]
        return {
            "path": path.relative_to(run_dir).as_posix(),
            "step": int(manifest["step"]),
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data) + sum(int(part["bytes"]) for part in parts),
            "reason": _short(manifest.get("reason")),
            "saved_at": _short(manifest.get("saved_at")),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None  # pruned in the meantime, or damaged: not something to resume from


def _extras(config: Mapping[str, Any]) -> dict[str, Any]:
    """The run's extras. Where it writes no curves, what lies in a folder that is others' too is not its own."""
    extras = _mapping(config.get("extras"))
    return extras if config.get("tensorboard") is not False else {**extras, "tensorboard_dir": None}


def _tensorboard(found: _Found, extras: Mapping[str, Any], run_id: str) -> tuple[str | None, list[_File]]:
    """The folder to point TensorBoard at, and its event files.

    The configured one if anything is there, else where event files are; else one outside of the run's folder, by its
    absolute path: what is below the run's name there is the run's.
    """
    given = extras.get("tensorboard_dir")
    configured = _inside(given) or "tensorboard"
    paths = [Path(file.path) for file in found.events]
    if any(path.is_relative_to(configured) for path in paths):
        return configured, found.events
    if paths:
        return os.path.commonpath([path.parent for path in paths]) or ".", found.events
    if isinstance(given, str) and Path(given).is_absolute():
        root = Path(given)
        # Its whole name: another's may end with it.
        named = [*sorted(root.glob(f"*__{glob.escape(run_id)}")), root / f"{run_id}-eval"]
        own = [root] if run_id in root.parts else named
        if events := [file for folder in own for file in _scan(folder).events]:
            return given, events
    return None, []


def _inside(path: Any) -> str | None:
    """A configured path if it lies inside the run's folder."""
    if not isinstance(path, str) or not path or Path(path).is_absolute() or ".." in Path(path).parts:
        return None
    return Path(path).as_posix()


def _listed(files: list[_File], hash_in: Path | None = None) -> dict[str, Any]:
    newest = sorted(files, key=lambda file: (file.modified, file.path))[-MAX_LISTED:]
    entries = []
    for file in newest:
        entry = file.entry()
        if hash_in is not None:
            entry["sha256"] = _sha256(hash_in / file.path)
        entries.append(entry)
    return {"count": len(files), "files": entries}


def _sha256(path: Path) -> str | None:
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:  # replaced or deleted while we looked
        return None


def _replace(path: Path, content: Mapping[str, Any]) -> str:
    data = json.dumps(content, indent=2, sort_keys=True, default=str).encode() + b"\n"
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return hashlib.sha256(data).hexdigest()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _short(value: Any) -> str | int | float | None:
    """A value that another run's manifest may bring into the index: a short text or a finite number."""
    if isinstance(value, str):
        return value if len(value) <= MAX_INDEXED_TEXT and value.isprintable() else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m cleanrl_worker.analytics", description="Write a run's manifest again."
    )
    parser.add_argument("folder", type=Path, help="a run's folder, or with --index the folder that holds the runs")
    parser.add_argument("--index", action="store_true", help="write index.json over the runs in the folder")
    parser.add_argument("--finalise", action="store_true", help="end the manifest of a worker that was killed")
    parser.add_argument("--outcome", help="what the run ended with, if its manifest does not say")
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")
    try:
        if args.index:
            print(rebuild_index(args.folder))
        elif args.finalise:
            print(finalise(args.folder) or "there is nothing to finalise")
        else:
            print(refresh_manifest(args.folder, args.outcome))
    except OSError as error:
        print(f"{args.folder} can't be written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

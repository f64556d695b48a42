"""Programs kept in the user's cache folder, each with a record of what it must be.

    <cache>/devcluster/<program>/<version>-<os>-<arch>/<program>
    <cache>/devcluster/<program>/<version>-<os>-<arch>/record.json

A program is used only while its SHA-256 is the recorded one and nobody else may write to it. The whole file is read
each time: times and sizes are easily forged, and half a gigabyte takes well under a second. An entry appears in one
rename, so a killed build leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from devcluster.binaries.catalog import Program, architecture, system
from devcluster.binaries.errors import BinaryError

RECORD = "record.json"


def cache_root() -> Path:
    """Folder of everything devcluster keeps between clusters."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "devcluster"


@dataclass(frozen=True)
class Record:
    """What a cached program must be, written when it was made."""

    program: str
    version: str
    origin: str
    """`built` or `downloaded`."""
    inputs: str
    """Digest of what it was built from; empty for a download, whose published checksum was verified instead."""
    sha256: str

    def seal(self) -> str:
        """Digest over the record, so that an edited record is noticed as well as an edited program."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def entry(program: Program, version: str) -> Path:
    """The folder that holds, or will hold, this version of the program."""
    return cache_root() / program.name / f"{version}-{system()}-{architecture()}"


def place(program: Program, version: str) -> Path:
    """Where the program itself is, or will be."""
    return entry(program, version) / program.name


def fault(program: Program, version: str) -> str | None:
    """Why the cached program can't be used, or None when it can. 'absent' is the everyday reason."""
    folder = entry(program, version)
    path = place(program, version)
    if not path.exists() and not (folder / RECORD).exists():
        return "absent"
    try:
        for file in (folder, path, folder / RECORD):
            if (writable := _writable_by_others(file)) is not None:
                return writable
        record = _read_record(folder / RECORD)
        if record is None:
            return "its record was changed or damaged"
        if (record.program, record.version) != (program.name, version):
            return "its record belongs to another program"
        if record.origin == "built" and record.inputs != program.inputs():
            return "it was built from an earlier edition of its Go module"
        if sha256_of(path) != record.sha256:
            return "it is not the file that was put there: its checksum differs"
    except OSError as error:
        return f"it can't be read ({error.strerror})"
    return None


def install(program: Program, version: str, made: Path, *, origin: str) -> Path:
    """Move a newly made file into the cache, replacing what is there, and return its place.

    Call it with the module's lock held: what an installation that was killed has left is removed.
    """
    folder = entry(program, version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(".new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        target = staging / program.name
        shutil.move(made, target)
        target.chmod(0o755)
        inputs = program.inputs() if origin == "built" else ""
        record = Record(program.name, version, origin, inputs, sha256_of(target))
        (staging / RECORD).write_text(json.dumps({**asdict(record), "seal": record.seal()}, indent=2) + "\n")
        (staging / RECORD).chmod(0o644)
        staging.chmod(0o755)
        replaced = staging.with_name(f"{staging.name}-old")
        if folder.exists():
            folder.rename(replaced)
        staging.rename(folder)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise BinaryError(
            f"{folder} can't be written ({error.strerror}); free the disk or set XDG_CACHE_HOME"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return place(program, version)


@contextlib.contextmanager
def work_folder(name: str) -> Iterator[Path]:
    """A folder for one piece of work, on the cache's file system. Leftovers of killed work of that name go first.

    Call it with the lock of that name held.
    """
    parent = cache_root() / "work"
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def lock(name: str, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of that name, so that two processes never make the same thing at once. The kernel frees it."""
    path = cache_root() / "locks" / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BinaryError(
            f"{path.parent} can't be written ({error.strerror}); set XDG_CACHE_HOME to a folder of yours"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def demand_space(megabytes: int, purpose: str) -> None:
    """Stop before a large step when the disk could not hold it."""
    folder = cache_root()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free // 1_000_000
    if free < megabytes:
        raise BinaryError(
            f"{purpose} needs {megabytes} MB of disk under {folder}, and {free} MB are free; "
            "free some, or set XDG_CACHE_HOME to a larger disk"
        )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _writable_by_others(path: Path) -> str | None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{path.name} is a link"
    if status.st_uid not in {0, os.geteuid()}:
        return f"{path.name} belongs to another user"
    if status.st_mode & 0o022:
        return f"other users may write to {path.name}"
    return None


def _read_record(path: Path) -> Record | None:
    try:
        stored = json.loads(path.read_text())
        seal = stored.pop("seal")
        record = Record(**{key: str(value) for key, value in stored.items()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return record if record.seal() == seal else None

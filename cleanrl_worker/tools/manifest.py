"""What a run's folder holds, file by file: made by reading the folder, and read back from an archive, which may lie."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cleanrl_worker.tools.progress import Progress

MANIFEST_VERSION = 1
CHUNK = 2**20


class ArchiveError(RuntimeError):
    """The archive can't be made or can't be trusted. The message says what and where."""


@dataclass(frozen=True)
class Entry:
    """One file, folder or link of a run. `path` is relative to the run's folder, with `/` between its parts."""

    path: str
    kind: str
    """`file`, `folder` or `link`."""
    mode: int = 0o644
    mtime: int = 0
    size: int = 0
    sha256: str = ""
    target: str = ""


@dataclass(frozen=True)
class Manifest:
    run: str
    entries: tuple[Entry, ...]
    skipped: tuple[str, ...] = ()
    """Sockets, pipes and devices: nothing that an archive could hold."""

    @property
    def files(self) -> dict[str, Entry]:
        return {entry.path: entry for entry in self.entries if entry.kind == "file"}

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    def to_json(self) -> bytes:
        facts = {
            "version": MANIFEST_VERSION,
            "run": self.run,
            "files": len(self.files),
            "bytes": self.size,
            "entries": [{key: value for key, value in asdict(entry).items() if value != ""} for entry in self.entries],
            "skipped": list(self.skipped),
        }
        return json.dumps(facts, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Read a manifest that may be forged. Raises ArchiveError for paths that leave the run's folder."""
        try:
            facts = json.loads(text)
            if facts["version"] != MANIFEST_VERSION:
                raise ArchiveError(
                    f"the archive has manifest version {facts['version']!r}; this reads {MANIFEST_VERSION}"
                )
            entries = tuple(_checked(Entry(**item)) for item in facts["entries"])
            run = facts["run"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArchiveError(f"the archive's manifest is damaged ({error})") from None
        _safe_path(run)
        if "/" in run:
            raise ArchiveError(f"the archive's manifest has no usable run name: {run!r}")
        if len({entry.path for entry in entries}) != len(entries):
            raise ArchiveError("the archive's manifest names a path twice")
        folders = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents}
        for entry in entries:
            if entry.kind != "folder" and entry.path in folders:
                raise ArchiveError(f"the archive's manifest puts something below {entry.path!r}, which is no folder")
        return cls(run, entries)


def _checked(entry: Entry) -> Entry:
    texts = (entry.path, entry.kind, entry.sha256, entry.target)
    numbers = (entry.mode, entry.mtime, entry.size)
    if not all(isinstance(text, str) for text in texts) or not all(type(n) is int for n in numbers) or entry.size < 0:
        raise ValueError(f"an entry has values of the wrong kind: {entry.path!r}")
    if entry.kind not in {"file", "folder", "link"}:
        raise ValueError(f"unknown kind {entry.kind!r}")
    _safe_path(entry.path)
    return entry


def _safe_path(path: Any) -> None:
    if not isinstance(path, str) or path in {"", "."} or "\0" in path or path != str(PurePosixPath(path)):
        raise ArchiveError(f"the archive names an unusable path: {path!r}")
    if PurePosixPath(path).is_absolute() or any(part in {".", ".."} for part in PurePosixPath(path).parts):
        raise ArchiveError(f"the archive names a path outside of the run's folder: {path!r}")


def scan(run_dir: Path, progress: Progress | None = None) -> Manifest:
    """Read every file of the folder once and describe it. Links are not followed."""
    entries: list[Entry] = []
    skipped: list[str] = []
    for path in sorted(_walk(run_dir), key=lambda item: item.relative_to(run_dir).parts):
        relative = path.relative_to(run_dir).as_posix()
        facts = path.lstat()
        mode, mtime = stat.S_IMODE(facts.st_mode) & 0o777, int(facts.st_mtime)
        if stat.S_ISLNK(facts.st_mode):
            entries.append(Entry(relative, "link", 0o777, mtime, target=str(path.readlink())))
        elif stat.S_ISDIR(facts.st_mode):
            entries.append(Entry(relative, "folder", mode, mtime))
        elif stat.S_ISREG(facts.st_mode):
            digest = hashlib.sha256()
            with open_regular(path) as handle:
                _copy_exactly(handle, digest.update, facts.st_size, progress, relative)
            entries.append(Entry(relative, "file", mode, mtime, facts.st_size, digest.hexdigest()))
        else:
            skipped.append(relative)
    return Manifest(run_dir.name, tuple(entries), tuple(skipped))


def _walk(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as listing:
        for item in listing:
            path = Path(item.path)
            yield path
            if item.is_dir(follow_symlinks=False):
                yield from _walk(path)


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file and nothing else, also when somebody swaps it for a link meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArchiveError(f"{path} is no longer a regular file")
    return os.fdopen(descriptor, "rb")


def _copy_exactly(
    source: IO[bytes], write: Callable[[bytes], object], size: int, progress: Progress | None, name: str
) -> None:
    left = size
    while left:
        chunk = source.read(min(CHUNK, left))
        if not chunk:
            raise ArchiveError(f"{name} became shorter while it was read; is something still writing?")
        write(chunk)
        left -= len(chunk)
        if progress is not None:
            progress.advance(len(chunk))

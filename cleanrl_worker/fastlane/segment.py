"""The files behind FastLane's shared memory: their names, who may write them, and when they are removed.

A POSIX shared memory object is a file in /dev/shm, and we treat it as one: opened by path, written with `pwrite`, read
with `pread`. That keeps Python's resource tracker out of it (it would unlink a segment when a mere reader exits), and a
full or truncated segment is an error instead of a SIGBUS.

One process writes a segment, and holds an exclusive `flock` on it for as long as it lives. The kernel drops the lock
with the process, however it dies, so "stale" is a fact and not a guess: a segment of ours that can be locked has no
writer. Writers never unlink at exit; the supervisor does (`unlink_run`), and the next start sweeps what a killed
supervisor left (`unlink_stale`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path

SHM_DIR = Path(os.environ.get("CLEANRL_SHM_DIR") or "/dev/shm")  # noqa: S108 - POSIX shared memory, not a scratch file
"""Viewers look in /dev/shm. Another folder in memory serves where that one is missing or too small."""
PREFIX = "mosaic.fastlane."
METRICS_SUFFIX = ".metrics"
METRICS_MAGIC = b"FLMX"
_LONGEST_NAME = 255 - len(METRICS_SUFFIX)


class SegmentBusy(OSError):
    """Another live process writes this segment."""


def ring_name(run_id: str) -> str:
    """The frame ring's segment name. Slashes become underscores, as viewers expect; other oddities get a safe name."""
    name = PREFIX + run_id.replace("/", "_").replace("\0", "_")
    if name.endswith(METRICS_SUFFIX):  # would be the metrics segment of another run
        name += "_"
    encoded = os.fsencode(name)
    if len(encoded) > _LONGEST_NAME:
        digest = hashlib.sha256(encoded).hexdigest()[:16]
        name = encoded[: _LONGEST_NAME - 17].decode("utf-8", "ignore") + "." + digest
    return name


def metrics_name(run_id: str) -> str:
    return ring_name(run_id) + METRICS_SUFFIX


def open_for_writing(name: str) -> int:
    """Open or create a segment and take its writer's lock. Returns the descriptor; raises SegmentBusy or OSError."""
    while True:
        fd = os.open(SHM_DIR / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not _lock(fd):
                raise SegmentBusy(errno.EBUSY, "another process of this run already publishes", name)
        except OSError:
            os.close(fd)
            raise
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # a sweep unlinked it between our open and our lock: make a new one


def open_for_reading(name: str) -> int:
    """Open an existing segment. Takes no lock and leaves no trace, so a reader's exit changes nothing."""
    return os.open(SHM_DIR / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def reserve(fd: int, size: int) -> None:
    """Give the segment its final size, with memory behind every page; a full /dev/shm is an OSError, here and now."""
    os.ftruncate(fd, 0)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        os.ftruncate(fd, 0)  # keep nothing of a reservation that failed half way
        raise


def unlink(name: str) -> bool:
    """Remove a segment's name; whoever has it open keeps what they see. False when there was none."""
    try:
        (SHM_DIR / name).unlink()
    except FileNotFoundError:
        return False
    return True


def unlink_run(run_id: str) -> list[str]:
    """Remove both segments of a run whose processes have ended. Returns the names removed.

    One that is still written is another run's of the same name, in a folder of its own.
    """
    return [name for name in (ring_name(run_id), metrics_name(run_id)) if _abandoned(name, None) and unlink(name)]


def unlink_stale() -> list[str]:
    """Remove the segments of ours that no living process writes. Other programs' rings are left alone.

    A ring is known to be ours by the metrics segment beside it: publishers make that first and it is removed last.
    """
    removed: list[str] = []
    for path in sorted(SHM_DIR.glob(f"{PREFIX}*{METRICS_SUFFIX}")):
        ring = path.name.removesuffix(METRICS_SUFFIX)
        if _abandoned(path.name, METRICS_MAGIC) and _abandoned(ring, None):
            removed += [name for name in (ring, path.name) if unlink(name)]
    return removed


def _abandoned(name: str, magic: bytes | None) -> bool:
    """True when the segment is gone, or is ours by its magic (an empty one died in creation) and has no writer."""
    try:
        fd = os.open(SHM_DIR / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:  # another user's
        return False
    try:
        found = os.pread(fd, 4, 0)
        return (magic is None or found in (b"", b"\0\0\0\0", magic)) and _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""Writes the termination record where the kubelet looks for it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cleanrl_protocol.record import TerminationRecord, dump

DEFAULT_PATH = Path("/dev/termination-log")


def write_termination_record(path: Path, record: TerminationRecord) -> None:
    """Leave the record at `path`, whole or not at all where the file system allows it. Raises OSError.

    A temporary file is renamed over it. In a pod that can't be done: the path is a mount, in a folder that may not be
    writable. Such a file is written in place, with one write.
    """
    data = dump(record)
    try:
        _replace(path, data)
    except OSError:
        if not path.exists():
            raise
        _write_in_place(path, data)


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _write_in_place(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)

"""Looking for, and opening, what a stranger may have named or put on the claim."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def exists(path: Path | str) -> bool:
    """Whether something is there. Nothing is where we can't look: a name too long for a file, a folder closed to us."""
    return os.path.exists(path)  # noqa: PTH110 - pathlib raises there


def is_file(path: Path) -> bool:
    """Whether a file, or a link to one, is there; like `exists`."""
    return os.path.isfile(path)  # noqa: PTH113


def open_plain(path: Path) -> io.BufferedReader:
    """Open a file that a stranger may have put there: no link is followed, and no pipe or device is waited for.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(descriptor, "rb")

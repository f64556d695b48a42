"""Opening what a stranger may have put on the claim."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path


def open_plain(path: Path) -> io.BufferedReader:
    """Open a file that a stranger may have put there: no link is followed, and no pipe or device is waited for.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(descriptor, "rb")

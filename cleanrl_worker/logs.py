"""What the child prints: kept in files of bounded size, with the last lines at hand for a failure's message."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

DEFAULT_CAP = 16 * 1024 * 1024
DEFAULT_KEEP = 3
USEFUL_LINES = 20

_REMEMBERED_LINES = 400
_LONGEST_LINE = 4096
_NOISE = re.compile(
    r"^\s*$"
    r"|^\s*[\^~]+\s*$"  # the markers below a line of a traceback
    r"|^\s*\S*[0-9]+%\|.*\|"  # progress bars
    r"|(User|Deprecation|Future|PendingDeprecation|Runtime|Resource)Warning\b"
    r"|^\s*warnings\.warn\("
    r"|^\s*(gym\.)?logger\.(warn|deprecation)\("
    r"|XDG_RUNTIME_DIR is (invalid or )?not set"
    r"|^wandb:\s*($|.*(Tracking run|Run data is saved|View (run|project)|Syncing run|To enable cloud))"
)


class RotatingLog:
    """An append-only log file that is moved aside when it reaches `cap` bytes; the newest `keep` old ones stay.

    Moves happen between lines. The last lines are also remembered, so a failure can be explained without the disk.
    """

    def __init__(self, path: Path, cap: int = DEFAULT_CAP, keep: int = DEFAULT_KEEP) -> None:
        self.path = path
        self._cap = max(cap, 1)
        self._keep = keep
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()
        self._at_line_end = True
        self._line = b""
        self._tail: deque[bytes] = deque(maxlen=_REMEMBERED_LINES)

    def write(self, data: bytes) -> None:
        """Take some output as it comes. Raises OSError when the disk does not; the tail is kept all the same."""
        self._remember(data)
        if self._size >= self._cap:
            cut = 0 if self._at_line_end else data.find(b"\n") + 1
            # A line without end must not grow the file without end.
            if cut or self._at_line_end or self._size >= 2 * self._cap:
                self._append(data[:cut])
                self._rotate()
                data = data[cut:]
        self._append(data)

    def close(self) -> None:
        self._file.close()

    def tail(self) -> list[str]:
        """The last lines, oldest first, the unfinished one included."""
        return [line.decode(errors="replace") for line in (*self._tail, self._line) if line]

    def _append(self, data: bytes) -> None:
        if data:
            self._at_line_end = data.endswith(b"\n")
        while data:
            written = self._file.write(data) or 0
            self._size += written
            data = data[written:]

    def _rotate(self) -> None:
        self._file.close()
        oldest = self._aside(self._keep)
        oldest.unlink(missing_ok=True)
        for age in range(self._keep - 1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                self._aside(age).rename(self._aside(age + 1))
        if self._keep == 0:
            self.path.unlink(missing_ok=True)
        self._file = self.path.open("ab", buffering=0)
        self._size = self._file.tell()

    def _aside(self, age: int) -> Path:
        return self.path if age == 0 else self.path.with_name(f"{self.path.name}.{age}")

    def _remember(self, data: bytes) -> None:
        *lines, rest = (self._line + data).split(b"\n")
        self._tail.extend(line[-_LONGEST_LINE:] for line in lines[-_REMEMBERED_LINES:])
        self._line = rest[-_LONGEST_LINE:]


def useful_tail(lines: Iterable[str], count: int = USEFUL_LINES) -> list[str]:
    """The last lines that help to understand a failure: no blank ones, warnings, progress bars or banners.

    When nothing but noise was printed, the noise is better than nothing.
    """
    printed = [line.rpartition("\r")[2].rstrip() if "\r" in line.rstrip("\r") else line.rstrip() for line in lines]
    useful = [line for line in printed if not _NOISE.search(line)]
    return (useful or [line for line in printed if line.strip()])[-count:]

"""The run's event log: numbered JSON lines, in `events.jsonl` and on stdout.

The file is the truth. Each line is in it before anything else hears of the event; a line that could not be written
whole is taken back, and a torn last line (the machine died) is cut off by the next start, which goes on counting from
the last whole line. The copy on stdout is a courtesy: a reader that went away or stopped reading costs the run nothing.
"""

from __future__ import annotations

import errno
import json
import math
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TextIO

from cleanrl_protocol.limits import LAST_NUMBER
from cleanrl_worker.plainfile import open_plain

RUN_STARTED = "run_started"
TRAINING_STARTED = "training_started"
HEARTBEAT = "heartbeat"
SCALARS = "scalars"
STAGE_STARTED = "stage_started"
CHECKPOINT_SAVED = "checkpoint_saved"
CHECKPOINT_FAILED = "checkpoint_failed"
CHECKPOINT_LOADED = "checkpoint_loaded"
RUN_PAUSED = "run_paused"
RUN_RESUMED = "run_resumed"
WANDB_LINKED = "wandb_linked"
NOTE = "note"
RUN_COMPLETED = "run_completed"
RUN_FAILED = "run_failed"
RUN_CANCELLED = "run_cancelled"

FINAL_EVENTS = frozenset({RUN_COMPLETED, RUN_FAILED, RUN_CANCELLED})

MAX_LINE = 16 * 2**20
"""No event of ours is nearly as long; a longer line is passed over in pieces."""
_LONGEST_STDOUT_WAIT = 1.0
"""How long, in seconds, a slow reader of stdout is waited for before the line is left out for it."""


class EventLog:
    """Appends events to the file and copies them to `stream`. Safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        run_id: str,
        stream: TextIO | None = sys.stdout,
        *,
        clock: Callable[[], float] = time.time,
        quiet: frozenset[str] = frozenset(),
    ) -> None:
        """`quiet` names events that go to the file only. Raises OSError when the file can't be opened."""
        self.path = path
        self.run_id = run_id
        self._stream = stream
        self._quiet = quiet
        self._clock = clock
        self._lock = threading.Lock()
        self._patience = _LONGEST_STDOUT_WAIT
        self._unread = b""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._end, self.last_seq = _last_whole_line(self._fd)
        os.ftruncate(self._fd, self._end)

    def emit(self, event: str, **payload: Any) -> dict[str, Any]:
        """Number one event, write it and return it. Raises OSError when the file did not take it."""
        with self._lock:
            number = min(self.last_seq + 1, LAST_NUMBER)
            record = {
                "event": event,
                "payload": _finite(payload),
                "run_id": self.run_id,
                "seq": number,
                "timestamp": self._clock(),
            }
            line = encode(record)
            try:
                self._append(line)
            finally:
                self.last_seq = number  # also when the file is full: stdout has used the number
                if event not in self._quiet:
                    self._copy(line)
            return record

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _append(self, line: bytes) -> None:
        there = os.fstat(self._fd)
        if there.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the run's folder was removed while the run was on", str(self.path))
        if there.st_size < self._end:  # somebody has cut it: beyond its end there would be a hole of zeros
            self._end, _ = _last_whole_line(self._fd)
            os.ftruncate(self._fd, self._end)
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._fd, line[written:], self._end + written)
        except OSError:
            os.ftruncate(self._fd, self._end)
            raise
        self._end += len(line)

    def _copy(self, line: bytes) -> None:
        if self._stream is None:
            return
        try:
            self._unread = self._pour(self._stream, self._unread)
            if not self._unread:
                left = self._pour(self._stream, line)
                self._unread = left if len(left) < len(line) else b""
        except (OSError, ValueError):  # the reader closed the pipe, or the stream was closed in this process
            self._stream = None
            silence(sys.stdout)

    def _pour(self, stream: TextIO, text: bytes) -> bytes:
        """Write what the reader takes in time; what is left is returned, and has to come before anything else.

        In pieces: a pipe that has room at all takes one whole, a longer text would wait for a reader that has stopped.
        """
        until = time.monotonic() + self._patience
        for at in range(0, len(text), select.PIPE_BUF):
            if not _writable(stream, max(0.0, until - time.monotonic())):
                self._patience = 0.0  # until it reads again, it is not waited for a second time
                return text[at:]
            stream.write(text[at : at + select.PIPE_BUF].decode())
            stream.flush()
            self._patience = _LONGEST_STDOUT_WAIT
        return b""


def encode(record: dict[str, Any]) -> bytes:
    """One line: compact, keys sorted, strict JSON."""
    return json.dumps(record, separators=(",", ":"), sort_keys=True, allow_nan=False, default=str).encode() + b"\n"


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole event in the file, oldest first; nothing when there is no file. A torn last line is left out.

    The file may be a stranger's: what is no event is passed over. Raises OSError, also for what is no plain file.
    """
    try:
        file = open_plain(path)
    except FileNotFoundError:
        return
    with file:
        for line in _lines(file):
            event = _parse(line)
            if event is not None:
                yield event


def seconds_of(event: Mapping[str, Any]) -> float:
    """When an event was, in seconds since 1970; 0 for one whose time is none."""
    moment = event.get("timestamp")
    return float(moment) if isinstance(moment, int | float) and 0 <= moment < 2**37 else 0.0


def silence(stream: TextIO | None) -> None:
    """Point a stream whose reader is gone at nothing, so that the interpreter's last flush doesn't complain."""
    try:
        if stream is not None:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
    except (OSError, ValueError):  # no descriptor behind it: nothing to flush either
        return


def _writable(stream: TextIO, patience: float) -> bool:
    """False when the stream is a pipe that stays full. A write of `select.PIPE_BUF` bytes after True does not block."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return not getattr(stream, "closed", False)
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(patience * 1000))


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        event = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    number = event.get("seq")
    return event if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= LAST_NUMBER else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, one that is too long in pieces."""
    return iter(lambda: file.readline(MAX_LINE), b"")


def _last_whole_line(fd: int) -> tuple[int, int]:
    """(offset after the last whole line, its number). A damaged line in the middle is skipped, never counted."""
    end = last = offset = 0
    with os.fdopen(os.dup(fd), "rb") as file:
        for line in _lines(file):
            offset += len(line)
            event = _parse(line)
            if event is not None:
                end, last = offset, max(last, event["seq"])
            elif line.endswith(b"\n"):
                end = offset
    return end, last


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value

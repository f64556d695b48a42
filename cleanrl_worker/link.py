"""The line between the supervisor and the algorithm's process.

The supervisor makes a socket pair before it starts the child and hands one end down by file descriptor number in
`CLEANRL_LINK_FD`. Both sides speak JSON lines: facts go up (`training_started`, `scalars`, `checkpoint_saved`, ...),
requests come down (`checkpoint`, `pause`, `resume`, `stop`). Nothing here blocks training: facts are sent by a writer
thread, and requests are gathered by a reader thread where the training loop polls them with an attribute read.

Only the standard library is imported, so that foreign scripts and the supervisor can both use it for free.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

ENV_FD = "CLEANRL_LINK_FD"
MAX_LINE = 64 * 1024
"""A longer line is not ours: the reader drops the connection rather than grow without bound."""


class ChildLink:
    """The algorithm's end. `ChildLink.from_env()` gives one that does nothing when no supervisor is there."""

    def __init__(self, sock: socket.socket | None) -> None:
        self._sock = sock
        self.requests: deque[dict[str, Any]] = deque()
        """Requests not yet handled, oldest first. Falsy when there is nothing to do: cheap to poll each step."""
        self.connected = sock is not None
        self._outbox: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        if sock is not None:
            self._writer = threading.Thread(target=self._write_loop, args=(sock,), name="link-writer", daemon=True)
            self._writer.start()
            threading.Thread(target=self._read_loop, args=(sock,), name="link-reader", daemon=True).start()

    @classmethod
    def from_env(cls) -> ChildLink:
        """Take over the descriptor named in the environment. It is not passed on to grandchildren."""
        fd = os.environ.pop(ENV_FD, "")
        if not fd.isdigit():
            return cls(None)
        os.set_inheritable(int(fd), False)
        return cls(socket.socket(fileno=int(fd)))

    def emit(self, kind: str, **fields: Any) -> None:
        """Queue one fact for the supervisor. Never blocks; dropped when the supervisor is gone."""
        if self.connected:
            self._outbox.put(json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n")

    def flush(self, timeout: float = 5.0) -> None:
        """Wait until what was queued has left this process, whatever becomes of it."""
        if self.connected:
            sent = threading.Event()
            self._outbox.put(sent)
            sent.wait(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, then close. Called once, at the end of the program."""
        if self._writer is not None:
            self._outbox.put(None)
            self._writer.join(timeout)
        if self._sock is not None:
            with contextlib.suppress(OSError):  # the other end may be gone
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the reader thread, which close() alone would not
            self._sock.close()
            self._sock = None

    def _write_loop(self, sock: socket.socket) -> None:
        while (line := self._outbox.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                sock.sendall(line)
            except OSError:  # the supervisor is gone; the parent-death signal deals with us
                self.connected = False
                return

    def _read_loop(self, sock: socket.socket) -> None:
        for message in read_lines(sock):
            self.requests.append(message)
        self.connected = False


def read_lines(sock: socket.socket) -> Iterator[dict[str, Any]]:
    """Yield each JSON object that arrives until the other end closes; lines that are not JSON objects are skipped."""
    pending = b""
    while True:
        try:
            data = sock.recv(65536)
        except OSError:
            return
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                yield message
        if len(pending) > MAX_LINE:
            return

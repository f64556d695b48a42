"""TensorBoard event files, written thinly and resumed exactly.

The format is a sequence of records (length, masked CRC-32C of the length, data, masked CRC-32C of the data), each one Event
message. Scalars are the bulk of it, so they are encoded by hand; nothing of tensorboard, torch or tensorflow is imported.

A checkpoint holds `position()`: the event files of the run's folder and their sizes at that moment. `rewind(position)` cuts
them back to it before a new process adds its own file, so what a dead attempt wrote after its last checkpoint is gone, and
what it wrote before is all there: a reader sees each step once.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

PREFIX = "events.out.tfevents."
FLUSH_SECONDS = 2.0


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and offset, as record files want it."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # negative numbers are ten bytes of two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _single(value: float) -> bytes:
    """A float as event files hold it. What is too large for them is infinite, as it is in single precision: it ends no run."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _event(step: int, body: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + body


def _record(data: bytes) -> bytes:
    header = struct.pack("<Q", len(data))
    return b"".join((header, struct.pack("<I", masked_crc(header)), data, struct.pack("<I", masked_crc(data))))


class EventWriter:
    """Appends events to one file in `folder`. The file is made with the first event, so a run that is refused leaves none.

    `enabled=False` writes nothing, for runs without TensorBoard.
    """

    def __init__(self, folder: Path, *, enabled: bool = True) -> None:
        self.folder = folder
        self.enabled = enabled
        self._file: BinaryIO | None = None
        self._tags: dict[str, bytes] = {}
        self._next_flush = 0.0
        self._first_step = 0

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write several scalars of one step as one event."""
        body = b""
        for tag, value in values.items():
            encoded = self._tags.get(tag)
            if encoded is None:
                encoded = self._tags[tag] = _field(1, tag.encode())
            entry = encoded + b"\x15" + _single(value)
            body += b"\x0a" + _varint(len(entry)) + entry
        self._write(_event(step, _field(5, body)))

    def text(self, tag: str, markdown: str, step: int = 0) -> None:
        """Write a markdown text."""
        tensor = b"\x08\x07" + _field(2, _field(2, b"\x08\x01")) + _field(8, markdown.encode())  # string, shape [1]
        metadata = _field(1, _field(1, b"text"))
        value = _field(1, f"{tag}/text_summary".encode()) + _field(9, metadata) + _field(8, tensor)
        self._write(_event(step, _field(5, _field(1, value))))

    def table(self, tag: str, rows: Mapping[str, Any]) -> None:
        """Write names and values as a two-column markdown table."""
        lines = [f"|{name}|{value}|" for name, value in rows.items()]
        self.text(tag, "\n".join(["|param|value|", "|-|-|", *lines]))

    def position(self) -> dict[str, int]:
        """The event files of the folder and their sizes, with everything written so far in them."""
        self.flush()
        return {path.name: path.stat().st_size for path in sorted(self.folder.glob(f"{PREFIX}*"))}

    def rewind(self, position: Mapping[str, int], step: int) -> None:
        """Cut the folder back to `position`. Called before the first event, by the process that takes over at `step`."""
        assert self._file is None, "rewind before the first event"
        for path in self.folder.glob(f"{PREFIX}*"):
            size = position.get(path.name)
            if size is None:
                path.unlink()
            elif path.stat().st_size > size:
                os.truncate(path, size)
        self._first_step = step + 1 if position else 0

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: bytes) -> None:
        if not self.enabled:
            return
        if self._file is None:
            self._file = self._open()
        self._file.write(_record(event))
        now = time.monotonic()
        if now >= self._next_flush:
            self._file.flush()
            self._next_flush = now + FLUSH_SECONDS

    def _open(self) -> BinaryIO:
        self.folder.mkdir(parents=True, exist_ok=True)
        taken = [path.name for path in self.folder.glob(f"{PREFIX}*")]
        # Readers take files in the order of their names: a later attempt needs a later name, whatever the clock says.
        second = max(
            [int(time.time()), *(int(name.split(".")[3]) + 1 for name in taken if name.split(".")[3].isdigit())]
        )
        file = (self.folder / f"{PREFIX}{second:010d}.{socket.gethostname()}.{os.getpid()}").open("xb")
        file.write(_record(_event(0, _field(3, b"brain.Event:2"))))
        # A session's start tells a reader that was already following the folder to forget what it saw from this step on.
        # The first start that TensorBoard ever sees in a run is no restart to it: hence two of them.
        start = _record(_event(self._first_step, _field(7, b"\x08\x01")))
        file.write(start + start)
        return file

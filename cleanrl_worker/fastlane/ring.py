"""The frame ring: a public shared memory format that viewers of other programs attach to. Byte for byte, little endian.

    header, 80 bytes   magic "FLAN", version 1, flags, capacity, slot_size, payload_size, width, height, channels,
                       crc32 of the pixel format's name (all u32), head, tail (u64; tail stays 0),
                       last_reward, rolling_return, step_rate (f64)
    capacity slots     seq u64, frame_len u32, metadata_len u32, then the frame, the metadata, and zeros

Frame number n (from 1) lives in slot (n-1) % capacity. Its seq is 2n+1 while it is being written and 2n+2 after, so a
reader that sees the same even seq before and after copying a slot has a whole frame. Bit 0 of flags tells readers that
this segment has been replaced by another of the same name (the frames changed their size).
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass

from cleanrl_worker.fastlane import segment

MAGIC = b"FLAN"
VERSION = 1
FLAG_INVALIDATED = 1
DEFAULT_CAPACITY = 128
MOST_LOOKS = 1024
"""Slots that a reader looks at for a whole frame: a header that claims millions of them costs no more."""

HEADER = struct.Struct("<4sIIIIIIIIIQQddd")
SLOT = struct.Struct("<QII")
_HEAD = struct.Struct("<Q")
_METRICS = struct.Struct("<ddd")
_FLAGS = struct.Struct("<I")
_FLAGS_AT, _HEAD_AT, _METRICS_AT = 8, 40, 56


@dataclass(frozen=True)
class Geometry:
    """What a ring's size follows from."""

    width: int
    height: int
    channels: int
    capacity: int = DEFAULT_CAPACITY
    metadata_size: int = 0

    @property
    def frame_size(self) -> int:
        return self.width * self.height * self.channels

    @property
    def payload_size(self) -> int:
        return self.frame_size + self.metadata_size

    @property
    def slot_size(self) -> int:
        return SLOT.size + self.payload_size

    @property
    def total_size(self) -> int:
        return HEADER.size + self.capacity * self.slot_size

    @property
    def pixel_format(self) -> str:
        return "RGB" if self.channels == 3 else "RGBA"


@dataclass(frozen=True)
class Metrics:
    """The three figures in the header, newest values."""

    last_reward: float = 0.0
    rolling_return: float = 0.0
    step_rate_hz: float = 0.0


@dataclass(frozen=True)
class Frame:
    number: int
    width: int
    height: int
    channels: int
    data: bytes
    metadata: bytes
    metrics: Metrics


class RingWriter:
    """The one writer of a run's ring. An existing ring of the same geometry is taken over and its numbering goes on."""

    def __init__(self, run_id: str, geometry: Geometry) -> None:
        """Raises SegmentBusy when another process writes this ring, OSError when shared memory is full or missing."""
        self.geometry = geometry
        self._name = segment.ring_name(run_id)
        self._fd = segment.open_for_writing(self._name)
        try:
            self._head = self._take_over_or_create()
        except OSError:
            segment.unlink(self._name)
            self.close()
            raise

    def publish(self, frame: bytes | memoryview, metrics: Metrics, metadata: bytes = b"") -> int:
        """Write one frame and return its number. A frame that does not fit is a ValueError; metadata is cut to fit."""
        geometry = self.geometry
        pixels = memoryview(frame).cast("B")
        if len(pixels) > geometry.frame_size:
            raise ValueError("Frame payload exceeds slot capacity")
        metadata = metadata[: geometry.metadata_size]
        os.pwrite(
            self._fd, _METRICS.pack(metrics.last_reward, metrics.rolling_return, metrics.step_rate_hz), _METRICS_AT
        )
        number = self._head + 1
        at = HEADER.size + (number - 1) % geometry.capacity * geometry.slot_size
        padding = bytes(geometry.payload_size - len(pixels) - len(metadata))
        os.pwrite(self._fd, SLOT.pack(2 * number + 1, len(pixels), len(metadata)), at)
        os.pwritev(self._fd, (pixels, metadata, padding), at + SLOT.size)
        os.pwrite(self._fd, SLOT.pack(2 * number + 2, len(pixels), len(metadata)), at)
        os.pwrite(self._fd, _HEAD.pack(number), _HEAD_AT)
        self._head = number
        return number

    def is_linked(self) -> bool:
        """False when someone removed the segment's name, as readers on older Pythons do by exiting."""
        return os.fstat(self._fd).st_nlink > 0

    def replace(self, run_id: str, geometry: Geometry) -> RingWriter:
        """Tell readers to attach anew, and return the writer of a fresh ring. This one is closed."""
        os.pwrite(self._fd, _FLAGS.pack(FLAG_INVALIDATED), _FLAGS_AT)
        segment.unlink(self._name)
        self.close()
        return RingWriter(run_id, geometry)

    def close(self) -> None:
        """Stop writing. The segment stays for its readers; the supervisor removes it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take_over_or_create(self) -> int:
        existing = _read_header(self._fd)
        if existing is not None and existing.geometry == self.geometry and not existing.invalidated:
            return existing.head
        if os.fstat(self._fd).st_size:  # another geometry, or not a ring at all: readers of it must let go
            if existing is not None:
                os.pwrite(self._fd, _FLAGS.pack(FLAG_INVALIDATED), _FLAGS_AT)
            segment.unlink(self._name)
            self.close()
            self._fd = segment.open_for_writing(self._name)
        geometry = self.geometry
        segment.reserve(self._fd, geometry.total_size)
        header = HEADER.pack(
            MAGIC,
            VERSION,
            0,
            geometry.capacity,
            geometry.slot_size,
            geometry.payload_size,
            geometry.width,
            geometry.height,
            geometry.channels,
            zlib.crc32(geometry.pixel_format.encode()),
            0,
            0,
            0.0,
            0.0,
            0.0,
        )
        os.pwrite(self._fd, header[4:], 4)
        os.pwrite(self._fd, MAGIC, 0)  # last, so that a reader never sees half a header
        return 0


class RingReader:
    """Reads a run's ring and changes nothing. What the header says is checked before it is believed."""

    def __init__(self, run_id: str) -> None:
        """Raises FileNotFoundError when the run has no ring (yet)."""
        self._fd = segment.open_for_reading(segment.ring_name(run_id))

    def latest_frame(self) -> Frame | None:
        """The newest whole frame, or None when there is none."""
        header = _read_header(self._fd)
        if header is None or header.head == 0:
            return None
        geometry = header.geometry
        for number in range(header.head, header.head - min(geometry.capacity, header.head, MOST_LOOKS), -1):
            at = HEADER.size + (number - 1) % geometry.capacity * geometry.slot_size
            head = os.pread(self._fd, SLOT.size, at)
            if len(head) < SLOT.size:
                return None  # cut short by someone
            seq, frame_length, metadata_length = SLOT.unpack(head)
            if seq < 4 or seq % 2 or frame_length + metadata_length > geometry.payload_size:
                continue
            slot = os.pread(self._fd, geometry.slot_size, at)
            seq_after = os.pread(self._fd, _HEAD.size, at)
            if len(slot) < geometry.slot_size:
                return None
            if slot[: SLOT.size] != head or _HEAD.pack(seq) != seq_after:
                continue
            end = SLOT.size + frame_length
            return Frame(
                number=seq // 2 - 1,
                width=geometry.width,
                height=geometry.height,
                channels=geometry.channels,
                data=slot[SLOT.size : end],
                metadata=slot[end : end + metadata_length],
                metrics=header.metrics,
            )
        return None

    def frames_published(self) -> int:
        header = _read_header(self._fd)
        return 0 if header is None else header.head

    def is_current(self) -> bool:
        """False when the ring was replaced or removed: open a new reader."""
        header = _read_header(self._fd)
        return os.fstat(self._fd).st_nlink > 0 and (header is None or not header.invalidated)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True)
class _Header:
    geometry: Geometry
    invalidated: bool
    head: int
    metrics: Metrics


def _read_header(fd: int) -> _Header | None:
    """Parse the header, or None when this is not a ring of our version that fits into its file."""
    raw = os.pread(fd, HEADER.size, 0)
    if len(raw) < HEADER.size:
        return None
    (magic, version, flags, capacity, slot_size, payload_size, width, height, channels, _, head, _, *metrics) = (
        HEADER.unpack(raw)
    )
    if magic != MAGIC or version != VERSION or capacity <= 0 or slot_size != SLOT.size + payload_size:
        return None
    geometry = Geometry(width, height, channels, capacity, payload_size - width * height * channels)
    if geometry.metadata_size < 0 or geometry.total_size > os.fstat(fd).st_size:
        return None
    return _Header(geometry, bool(flags & FLAG_INVALIDATED), head, Metrics(*metrics))

"""The metrics segment: what a run's process last said about itself, for the exporter in the supervisor.

    header, 32 bytes   magic "FLMX", version 1, length of the text, crc32 of the text (all u32), seq u64, zero u64
    text               one JSON object, UTF-8

seq is odd while a write is under way and grows by two with each. A reader takes the text only when seq was even and the
same before and after, and the checksum agrees; else it looks again. The writer is a process we do not trust (a foreign
script runs in it), so the text is parsed strictly: known keys, finite numbers, bounded names.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cleanrl_worker.fastlane import segment

VERSION = 1
HEADER = struct.Struct("<4sIIIQQ")
SIZE = 16 * 1024
MAX_SCALARS = 64
_SCALAR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,79}")
_ATTEMPTS = 5


@dataclass(frozen=True)
class Snapshot:
    """One reading. Unknown figures are None, never an invented zero."""

    env_steps: int = 0
    episodes: int = 0
    frames: int = 0
    step_rate_hz: float | None = None
    frame_rate_hz: float | None = None
    last_reward: float | None = None
    rolling_return: float | None = None
    episode_return: float | None = None
    episode_length: float | None = None
    updated_at: float | None = None
    """Unix time of the writing."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Newest value by tag, for example `losses/value_loss`."""


class MetricsWriter:
    def __init__(self, run_id: str) -> None:
        """Raises SegmentBusy when another process of the run publishes, OSError when there is no room for it."""
        self._name = segment.metrics_name(run_id)
        self._fd = segment.open_for_writing(self._name)
        try:
            segment.reserve(self._fd, SIZE)
            self._seq = 0
            self.write(Snapshot())
        except OSError:
            segment.unlink(self._name)
            self.close()
            raise

    def write(self, snapshot: Snapshot) -> None:
        text = _encode(snapshot)
        checksum = zlib.crc32(text)
        os.pwrite(self._fd, HEADER.pack(segment.METRICS_MAGIC, VERSION, len(text), checksum, self._seq + 1, 0), 0)
        os.pwrite(self._fd, text, HEADER.size)
        os.pwrite(self._fd, HEADER.pack(segment.METRICS_MAGIC, VERSION, len(text), checksum, self._seq + 2, 0), 0)
        self._seq += 2

    def close(self) -> None:
        """Stop writing. The last values stay readable until the supervisor removes the segment."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MetricsReader:
    """Follows one run's figures to their end.

    A segment that was found is kept open: once its writer has ended, the start of any other run on the machine may take
    its name away before the last figures were read.
    """

    def __init__(self, run_id: str) -> None:
        self._name = segment.metrics_name(run_id)
        self._fd = -1

    def read(self) -> Snapshot | None:
        """The newest whole snapshot, or None when there was none so far."""
        try:
            found = segment.open_for_reading(self._name)
        except OSError:
            return _newest(self._fd) if self._fd >= 0 else None
        self.close()
        self._fd = found
        return _newest(found)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(run_id: str) -> Snapshot | None:
    """The newest whole snapshot of a run, or None when it has none."""
    reader = MetricsReader(run_id)
    try:
        return reader.read()
    finally:
        reader.close()


def _newest(fd: int) -> Snapshot | None:
    for _ in range(_ATTEMPTS):
        raw = os.pread(fd, SIZE, 0)
        again = os.pread(fd, HEADER.size, 0)
        if len(raw) < HEADER.size or raw[: HEADER.size] != again:
            continue
        magic, version, length, checksum, seq, _ = HEADER.unpack(again)
        if magic != segment.METRICS_MAGIC or version != VERSION:
            return None
        text = raw[HEADER.size : HEADER.size + length]
        if seq % 2 == 0 and len(text) == length and zlib.crc32(text) == checksum:
            return _decode(text)
    return None


def bounded_scalars(values: Mapping[Any, object]) -> dict[str, float]:
    """The finite numbers under well-formed names, at most MAX_SCALARS of them: what may become labels elsewhere."""
    kept: dict[str, float] = {}
    for name, value in values.items():
        number = _finite(value)
        if number is not None and isinstance(name, str) and _SCALAR_NAME.fullmatch(name):
            kept[name] = number
            if len(kept) == MAX_SCALARS:
                break
    return kept


def _encode(snapshot: Snapshot) -> bytes:
    document = {key: value for key, value in asdict(snapshot).items() if value is not None}
    document["scalars"] = bounded_scalars(snapshot.scalars)
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _decode(text: bytes) -> Snapshot | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    scalars = document.get("scalars")
    return Snapshot(
        env_steps=_count(document.get("env_steps")),
        episodes=_count(document.get("episodes")),
        frames=_count(document.get("frames")),
        step_rate_hz=_finite(document.get("step_rate_hz")),
        frame_rate_hz=_finite(document.get("frame_rate_hz")),
        last_reward=_finite(document.get("last_reward")),
        rolling_return=_finite(document.get("rolling_return")),
        episode_return=_finite(document.get("episode_return")),
        episode_length=_finite(document.get("episode_length")),
        updated_at=_finite(document.get("updated_at")),
        scalars=bounded_scalars(scalars) if isinstance(scalars, dict) else {},
    )


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _count(value: object) -> int:
    number = _finite(value)
    return max(0, int(number)) if number is not None else 0

"""Headline figures out of TensorBoard event files, for algorithms that have none of our code in them.

    bridge = EventFiles([run_folder / "tensorboard"])
    ...
    figures = bridge.poll()         # once a second or so

Upstream scripts and plug-ins write scalars for TensorBoard, and that is all they say. The bridge follows the files as they
grow: each poll reads what has been added, at most `MAX_POLL_BYTES` of it, and keeps the newest value of each tag. What was
there before the bridge was made belongs to an earlier start and is passed over.

The files are a stranger's: a record that is not whole waits for the rest; a file that is damaged is left alone from there
on; links are not followed; the numbers of files, folders and tags are bounded. Nothing of tensorboard is imported.
"""

from __future__ import annotations

import logging
import math
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanrl_worker.fastlane.metrics import MAX_SCALARS
from cleanrl_worker.training.writer import masked_crc

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often new files are looked for."""
MAX_POLL_BYTES = 256 * 1024
"""Some tens of milliseconds of work, and more than any script writes in a second that also trains."""
LAST_POLLS = 64
"""So much is read at once when nothing more will be written: a writer that is closed writes what it had kept for minutes."""
MAX_RECORD_BYTES = 4096
"""Larger records hold texts, pictures and histograms; they are passed over unread."""
MAX_FILES = 32
MAX_ENTRIES = 2000
MAX_DEPTH = 4
MAX_TAG = 80
RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"
RATE_TAG = "charts/SPS"
_ROLLING_WEIGHT = 0.05
_HEADER = 12
_FOOTER = 4


@dataclass
class Figures:
    """The newest of what the files say. None and an empty `values` mean that they say nothing."""

    step: int | None = None
    steps_per_second: float | None = None
    episodes: int = 0
    rolling_return: float | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class _Followed:
    path: Path
    position: int = 0
    needed: int = 0
    """Nothing can be read before the file has this size."""
    damaged: bool = False


class EventFiles:
    """Follows the event files below some folders, which need not exist yet."""

    def __init__(self, folders: Sequence[Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._folders = list(folders)
        self._clock = clock
        self._looked_at = -math.inf
        self._files: dict[Path, _Followed] = {}
        self._figures = Figures()
        self._rate_from: tuple[float, int] | None = None
        self._earlier = frozenset(self._found())

    def poll(self, *, last: bool = False) -> Figures:
        """Read what has been added since the last call. `last`: the writers have ended, and their newest files count too."""
        now = self._clock()
        if last or now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            for path in self._found():
                if path not in self._earlier and len(self._files) < MAX_FILES:
                    self._files.setdefault(path, _Followed(path))
        polls = LAST_POLLS if last else 1
        while polls > 0 and self._read_some():
            polls -= 1
        return self._figures

    def _read_some(self) -> int:
        """Returns how many bytes were read."""
        budget = MAX_POLL_BYTES
        for file in reversed(list(self._files.values())):  # the newest first: it is the one that grows
            if not file.damaged and budget > 0:
                budget -= self._follow(file, budget)
        return MAX_POLL_BYTES - budget

    def _found(self) -> list[Path]:
        left = MAX_ENTRIES
        pending = [(folder, 0) for folder in self._folders]
        found: list[Path] = []
        while pending:
            folder, depth = pending.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        left -= 1
                        if left < 0:
                            return sorted(found)
                        if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                            pending.append((Path(entry.path), depth + 1))
                        elif ".tfevents." in entry.name and entry.is_file(follow_symlinks=False):
                            found.append(Path(entry.path))
            except OSError:  # not there yet, or gone again
                continue
        return sorted(found)

    def _follow(self, file: _Followed, budget: int) -> int:
        """Take the whole records that a file has beyond its position; returns how many bytes were read."""
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return 0
        try:
            size = os.fstat(descriptor).st_size
            if size < file.position:  # cut back by a start that goes on from a checkpoint: what follows is new
                file.position, file.needed = size, 0
            if size == file.position or size < file.needed:
                return 0
            data = os.pread(descriptor, budget, file.position)
        except OSError:
            return 0
        finally:
            os.close(descriptor)
        self._take(file, data, size)
        return len(data)

    def _take(self, file: _Followed, data: bytes, size: int) -> None:
        at = 0
        while at + _HEADER <= len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            (checksum,) = struct.unpack_from("<I", data, at + 8)
            if masked_crc(data[at : at + 8]) != checksum:
                log.info("%s is no event file from byte %d on; it is read no further", file.path, file.position + at)
                file.damaged = True
                break
            end = at + _HEADER + length + _FOOTER
            if file.position + end > size:
                file.needed = file.position + end
                break
            if length <= MAX_RECORD_BYTES:
                if end > len(data):
                    break  # whole in the file, but not in what was read of it: the next poll starts with it
                self._read(data[at + _HEADER : end - _FOOTER])
            at = end
        file.position += at

    def _read(self, body: bytes) -> None:
        try:
            moment, step, values = parse_event(body)
        except (ValueError, IndexError, struct.error, UnicodeDecodeError):
            return  # well framed and not an event: none of ours
        figures = self._figures
        for tag, value in values:
            if len(tag) > MAX_TAG or not tag.isprintable() or not math.isfinite(value):
                continue
            if tag in figures.values or len(figures.values) < MAX_SCALARS:
                figures.values[tag] = value
            if tag == RETURN_TAG:
                figures.episodes += 1
                old = figures.rolling_return
                figures.rolling_return = value if old is None else old + _ROLLING_WEIGHT * (value - old)
        if values and 0 <= step < 2**63:
            self._advance(moment, step)

    def _advance(self, moment: float, step: int) -> None:
        """The step is the newest one said, also when a script starts over. The rate is the script's own, else ours."""
        figures = self._figures
        figures.step = step
        said = figures.values.get(RATE_TAG)
        if said is not None:
            figures.steps_per_second = said
            return
        if self._rate_from is None or step < self._rate_from[1]:
            self._rate_from = (moment, step)
        elif moment - self._rate_from[0] >= 1.0:
            figures.steps_per_second = (step - self._rate_from[1]) / (moment - self._rate_from[0])
            self._rate_from = (moment, step)


def parse_event(body: bytes) -> tuple[float, int, list[tuple[str, float]]]:
    """An Event message: its wall time, step and scalars. Raises ValueError, IndexError or struct.error on anything else."""
    moment, step = 0.0, 0
    values: list[tuple[str, float]] = []
    for number, kind, value in _fields(body):
        if number == 1 and kind == 1:
            moment = struct.unpack("<d", value)[0]
        elif number == 2 and kind == 0:
            step = value
        elif number == 5 and kind == 2:
            values += [found for entry in _messages(value, 1) if (found := _scalar(entry)) is not None]
    if not math.isfinite(moment):
        raise ValueError("no time")
    return moment, step, values


def _scalar(entry: bytes) -> tuple[str, float] | None:
    tag, number = None, None
    for field_number, kind, value in _fields(entry):
        if field_number == 1 and kind == 2:
            tag = value.decode()
        elif field_number == 2 and kind == 5:
            number = struct.unpack("<f", value)[0]
        elif field_number == 8 and kind == 2:
            number = _tensor(value)
    return (tag, number) if tag and number is not None else None


def _tensor(body: bytes) -> float | None:
    """The one number of a tensor of floats or doubles, as newer writers store scalars; None for any other tensor."""
    dtype, content, packed = 0, b"", b""
    for number, kind, value in _fields(body):
        if number == 1 and kind == 0:
            dtype = value
        elif number == 4 and kind == 2:
            content = value
        elif number in (5, 6) and kind in (1, 2, 5):
            packed = value
    data = content or packed
    if dtype == 1 and len(data) == 4:
        return float(struct.unpack("<f", data)[0])
    if dtype == 2 and len(data) == 8:
        return float(struct.unpack("<d", data)[0])
    return None


def _messages(body: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, kind, value in _fields(body) if number == wanted and kind == 2)


def _fields(body: bytes) -> Iterator[tuple[int, int, Any]]:
    """The fields of a protobuf message: number, wire type, and the value as an int (varint) or bytes."""
    at = 0
    while at < len(body):
        key, at = _varint(body, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(body, at)
            yield key >> 3, kind, value
            continue
        if kind == 2:
            length, at = _varint(body, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("an unknown wire type")
        if at + length > len(body):
            raise ValueError("a field beyond the end")
        yield key >> 3, kind, body[at : at + length]
        at += length


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number too long")

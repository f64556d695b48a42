"""The ring's bytes are checked against the published layout, spelled out here a second time on purpose."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from cleanrl_worker.fastlane import segment
from cleanrl_worker.fastlane.ring import Geometry, Metrics, RingReader, RingWriter

HEADER = "<4sIIIIIIIIIQQddd"
RUN = "01JRUN"


def frame(value: int, size: int = 12) -> bytes:
    return bytes([value]) * size


def test_header_and_slots(shm: Path) -> None:
    writer = RingWriter(RUN, Geometry(width=2, height=2, channels=3, capacity=4))
    assert writer.publish(frame(7), Metrics(1.5, 2.5, 3.5)) == 1
    raw = (shm / f"mosaic.fastlane.{RUN}").read_bytes()

    assert struct.calcsize(HEADER) == 80
    assert struct.unpack(HEADER, raw[:80]) == (
        b"FLAN", 1, 0, 4, 16 + 12, 12, 2, 2, 3, 0xB793DAB2, 1, 0, 1.5, 2.5, 3.5,
    )  # fmt: skip
    assert struct.unpack("<QII", raw[80:96]) == (2 * 1 + 2, 12, 0)
    assert raw[96:108] == frame(7)
    assert len(raw) == 80 + 4 * 28


def test_defaults_and_pixel_formats() -> None:
    assert Geometry(1, 1, 3).capacity == 128
    assert zlib.crc32(Geometry(1, 1, 3).pixel_format.encode()) == 0xB793DAB2
    assert zlib.crc32(Geometry(1, 1, 4).pixel_format.encode()) == 0xF601DFF1


def test_frame_number_decides_slot_and_sequence(shm: Path) -> None:
    writer = RingWriter(RUN, Geometry(2, 2, 3, capacity=2))
    for value in (1, 2, 3):
        writer.publish(frame(value), Metrics())
    raw = (shm / f"mosaic.fastlane.{RUN}").read_bytes()
    assert struct.unpack_from("<Q", raw, 40) == (3,)
    assert struct.unpack_from("<Q", raw, 80) == (2 * 3 + 2,), "frame 3 overwrote slot 0"
    assert struct.unpack_from("<Q", raw, 80 + 28) == (2 * 2 + 2,)


def test_metadata_follows_the_frame_and_the_rest_is_zero(shm: Path) -> None:
    writer = RingWriter(RUN, Geometry(2, 2, 3, capacity=2, metadata_size=6))
    writer.publish(frame(9, 10), Metrics(), metadata=b"abcdefgh")
    raw = (shm / f"mosaic.fastlane.{RUN}").read_bytes()
    assert struct.unpack_from("<QII", raw, 80) == (4, 10, 6), "metadata is cut to its room"
    assert raw[96 : 96 + 18] == frame(9, 10) + b"abcdef" + bytes(2)


def test_a_frame_that_does_not_fit_is_refused(shm: Path) -> None:
    writer = RingWriter(RUN, Geometry(2, 2, 3))
    with pytest.raises(ValueError, match=r"^Frame payload exceeds slot capacity$"):
        writer.publish(frame(1, 13), Metrics())


def test_reader_skips_a_frame_being_written(shm: Path) -> None:
    writer = RingWriter(RUN, Geometry(2, 2, 3, capacity=4))
    writer.publish(frame(1), Metrics())
    writer.publish(frame(2), Metrics())
    path = shm / f"mosaic.fastlane.{RUN}"
    with path.open("r+b") as file:
        file.seek(80 + 28)
        file.write(struct.pack("<Q", 5))  # odd: in progress
    found = RingReader(RUN).latest_frame()
    assert found is not None
    assert (found.number, found.data) == (1, frame(1))


def test_reader_gives_the_newest_frame_with_its_metrics(shm: Path) -> None:
    writer = RingWriter(RUN, Geometry(2, 2, 3, capacity=2))
    for value in range(1, 6):
        writer.publish(frame(value), Metrics(value, 10 * value, 100 * value))
    found = RingReader(RUN).latest_frame()
    assert found is not None
    assert (found.number, found.data, found.width, found.height) == (5, frame(5), 2, 2)
    assert found.metrics == Metrics(5.0, 50.0, 500.0)


@pytest.mark.parametrize(
    "header",
    [
        bytes(80),
        struct.pack(HEADER, b"FLAN", 1, 0, 2**32 - 1, 2**32 - 1, 2**32 - 17, 9, 9, 3, 0, 5, 0, 0, 0, 0),
        struct.pack(HEADER, b"FLAN", 1, 0, 4, 28, 12, 70000, 70000, 3, 0, 5, 0, 0, 0, 0),
        struct.pack(HEADER, b"FLAN", 2, 0, 4, 28, 12, 2, 2, 3, 0, 5, 0, 0, 0, 0),
        struct.pack(HEADER, b"NOPE", 1, 0, 4, 28, 12, 2, 2, 3, 0, 5, 0, 0, 0, 0),
        b"FLAN",
        b"",
    ],
    ids=["zeroed", "huge", "lying about its size", "another version", "another magic", "cut", "empty"],
)
def test_a_header_that_lies_gives_no_frame(shm: Path, header: bytes) -> None:
    (shm / f"mosaic.fastlane.{RUN}").write_bytes(header + bytes(4 * 28 if len(header) == 80 else 0))
    assert RingReader(RUN).latest_frame() is None


def test_a_file_cut_short_gives_no_frame(shm: Path) -> None:
    writer = RingWriter(RUN, Geometry(2, 2, 3, capacity=4))
    writer.publish(frame(1), Metrics())
    reader = RingReader(RUN)
    with (shm / f"mosaic.fastlane.{RUN}").open("r+b") as file:
        file.truncate(100)
    assert reader.latest_frame() is None


def test_a_new_writer_of_the_same_size_goes_on_counting(shm: Path) -> None:
    first = RingWriter(RUN, Geometry(2, 2, 3))
    first.publish(frame(1), Metrics())
    reader = RingReader(RUN)
    first.close()
    assert RingWriter(RUN, Geometry(2, 2, 3)).publish(frame(2), Metrics()) == 2
    found = reader.latest_frame()
    assert found is not None and found.data == frame(2), "who was attached stays attached"


@pytest.mark.parametrize("how", ["replace", "new writer"])
def test_another_size_invalidates_the_old_ring(shm: Path, how: str) -> None:
    old = RingWriter(RUN, Geometry(2, 2, 3))
    old.publish(frame(1), Metrics())
    reader = RingReader(RUN)
    assert reader.is_current()
    if how == "replace":
        new = old.replace(RUN, Geometry(4, 1, 4))
    else:
        old.close()
        new = RingWriter(RUN, Geometry(4, 1, 4))
    assert not reader.is_current()
    new.publish(frame(3, 16), Metrics())
    found = RingReader(RUN).latest_frame()
    assert found is not None and (found.width, found.height, found.channels) == (4, 1, 4)


def test_only_one_writer_at_a_time(shm: Path) -> None:
    writer = RingWriter(RUN, Geometry(2, 2, 3))
    with pytest.raises(segment.SegmentBusy, match="already publishes"):
        RingWriter(RUN, Geometry(2, 2, 3))
    writer.close()
    RingWriter(RUN, Geometry(2, 2, 3))

"""Numbering, torn lines, full disks and readers that leave, on real files."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import select
import threading
from pathlib import Path

import pytest

from cleanrl_worker.telemetry import EventLog, read_events


def test_lines_are_compact_sorted_numbered_and_the_same_on_the_stream(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = EventLog(tmp_path / "e", "r", stream, clock=lambda: 12.5)
    returned = log.emit("run_started", b=1, a=[float("nan"), {"x": float("inf")}])
    log.emit("heartbeat")
    lines = (tmp_path / "e").read_text().splitlines()
    assert lines[0] == (
        '{"event":"run_started","payload":{"a":[null,{"x":null}],"b":1},"run_id":"r","seq":1,"timestamp":12.5}'
    )
    assert json.loads(lines[0]) == returned
    assert stream.getvalue() == (tmp_path / "e").read_text()


def test_quiet_events_go_to_the_file_only(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = EventLog(tmp_path / "e", "r", stream, quiet=frozenset({"heartbeat"}))
    log.emit("heartbeat")
    assert stream.getvalue() == ""
    assert [event["seq"] for event in read_events(tmp_path / "e")] == [1]


@pytest.mark.parametrize("torn", [b'{"event":"x","seq":3', b"\x00\x00\x00", b'{"event":"x","payload":{},"seq":3}'])
def test_a_torn_last_line_is_left_out_and_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "e"
    first = EventLog(path, "r", None)
    first.emit("a")
    first.emit("b")
    first.close()
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert [event["event"] for event in read_events(path)] == ["a", "b"]
    second = EventLog(path, "r", None)
    assert path.read_bytes() == whole
    assert second.emit("c")["seq"] == 3


def test_damage_in_the_middle_costs_one_line(tmp_path: Path) -> None:
    path = tmp_path / "e"
    log = EventLog(path, "r", None)
    for name in "abc":
        log.emit(name)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n[1]\n" + lines[2])
    assert [event["event"] for event in read_events(path)] == ["a", "c"]
    assert EventLog(path, "r", None).emit("d")["seq"] == 4


def test_no_file_is_no_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "none")) == []


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    log = EventLog(tmp_path / "e", "r", stream)
    log.emit("a")
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset > log._end:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:10], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        log.emit("b")
    monkeypatch.setattr(os, "pwrite", real)
    assert [event["event"] for event in read_events(tmp_path / "e")] == ["a"]
    assert '"event":"b"' in stream.getvalue(), "whoever listens still hears it"
    log.emit("c")
    assert [event["seq"] for event in read_events(tmp_path / "e")] == [1, 3]


@pytest.mark.parametrize(("left", "kept"), [(0, 0), (30, 0), (-20, 1)])
def test_a_file_that_somebody_cuts_goes_on_after_its_last_whole_line(tmp_path: Path, left: int, kept: int) -> None:
    path = tmp_path / "e"
    log = EventLog(path, "r", None)
    log.emit("a")
    log.emit("b")
    os.truncate(path, left % path.stat().st_size)
    log.emit("c")
    log.emit("d")
    assert b"\0" not in path.read_bytes()
    assert [event["seq"] for event in read_events(path)] == [*[1][:kept], 3, 4]


def test_a_removed_file_is_an_error(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e", "r", None)
    (tmp_path / "e").unlink()
    with pytest.raises(FileNotFoundError, match="removed"):
        log.emit("a")


def test_a_closed_stream_is_not(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = EventLog(tmp_path / "e", "r", stream)
    stream.close()
    log.emit("a")
    log.emit("b")
    assert len(list(read_events(tmp_path / "e"))) == 2


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e", "r", None)
    threads = [threading.Thread(target=lambda: [log.emit("x", text="y" * 500) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event["seq"] for event in read_events(tmp_path / "e")] == list(range(1, 201))


def test_a_reader_that_stops_in_the_middle_of_a_long_line_holds_nothing_up(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    room = 2 * select.PIPE_BUF
    filled = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ) - room
    os.write(writer, b"x" * filled)
    stream = os.fdopen(writer, "w")
    log = EventLog(tmp_path / "e", "r", stream)
    told = threading.Thread(target=lambda: [log.emit("long", text="y" * 4 * room), log.emit("missed")], daemon=True)
    told.start()
    told.join(30)
    assert not told.is_alive()
    os.read(reader, filled)
    log.emit("heard")
    stream.close()
    lines = os.fdopen(reader).read().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["long", "heard"], "the reader finds whole lines"
    assert [event["event"] for event in read_events(tmp_path / "e")] == ["long", "missed", "heard"]

"""Rotating logs, the useful end of stderr, the progress line, run folders and their history, redaction."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.cli import _options, build_parser
from cleanrl_worker.logs import RotatingLog, useful_tail
from cleanrl_worker.progress import ProgressLine, render, terminal_of
from cleanrl_worker.redact import HIDDEN, Redactor
from cleanrl_worker.runfolder import LONGEST_SILENCE, History, RunFolder, RunFolderError


def test_logs_stay_small_and_lines_whole(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", cap=100, keep=2)
    for number in range(100):
        log.write(f"line {number:03}\n".encode())
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["log", "log.1", "log.2"]
    lines = "".join(path.read_text() for path in reversed(files)).splitlines()
    assert lines == [f"line {number:03}" for number in range(100 - len(lines), 100)]
    assert all(path.stat().st_size <= 100 + 9 for path in files)


def test_a_line_without_end_does_not_fill_the_disk(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", cap=100, keep=1)
    for _ in range(100):
        log.write(b"x" * 50)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * 300
    assert len(log.tail()[-1]) <= 4096


def test_a_restart_appends(tmp_path: Path) -> None:
    for word in (b"one\n", b"two\n"):
        log = RotatingLog(tmp_path / "log")
        log.write(word)
        log.close()
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_without_old_files_the_last_line_is_kept(tmp_path: Path) -> None:
    log = RotatingLog(tmp_path / "log", cap=10, keep=0)
    for number in range(9):
        log.write(f"line {number}\n".encode())
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert log.tail()[-1] == "line 8"


def test_the_tail_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RotatingLog(tmp_path / "log")
    log._file.close()
    with pytest.raises(ValueError, match="closed"):
        log.write(b"ValueError: why\nhalf a li")
    assert log.tail() == ["ValueError: why", "half a li"]


def test_useful_lines_are_the_last_ones_that_help() -> None:
    noise = ["", "   ", "x.py:1: UserWarning: old", "  warnings.warn(", "    ^^^^^", " 10%|#         | 1/10"]
    real = [f"real {number}" for number in range(30)]
    assert useful_tail([*noise, *real, *noise]) == real[-20:]
    assert useful_tail(["", "x: UserWarning: only this"]) == ["x: UserWarning: only this"]
    assert useful_tail([" 5%|# | \r 6%|# | \rTraceback here"]) == ["Traceback here"]
    assert useful_tail([]) == []


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        ((None, 100, None, None, "starting", 80), "starting ..."),
        ((50, 100, 10.0, 9.5, "running", 80), "[##########..........]  50/100  50.0%  10 steps/s  return 9.5  5s left"),
        ((0, 100, None, None, "running", 80), "[....................]  0/100  0.0%  - steps/s  return -"),
        ((5, None, 1.0, None, "paused", 80), "5  1 steps/s  return -  paused"),
        ((10, 40_000, 1.0, 1.0, "running", 200), None),
    ],
)
def test_the_progress_line(figures: Any, line: str | None) -> None:
    drawn = render(*figures)
    assert drawn == line if line is not None else drawn.endswith("11h06m left")
    assert len(render(*figures[:-1], 20)) <= 20


def test_the_line_is_redrawn_in_place_and_cleared() -> None:
    now = [0.0]
    screen = io.StringIO()
    line = ProgressLine(screen, clock=lambda: now[0])
    line.draw(1, 2, 1.0, None, "running")
    first = screen.getvalue()
    assert first.startswith("\r\x1b[K[")
    line.draw(2, 2, 1.0, None, "running")
    assert screen.getvalue() == first, "not more often than a person can read"
    line.clear()
    assert screen.getvalue() == first + "\r\x1b[K"
    line.clear()
    assert screen.getvalue() == first + "\r\x1b[K"


def test_no_terminal_no_line(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert terminal_of(None, file, io.StringIO()) is None
    assert terminal_of(file) is None
    ProgressLine(None).draw(1, 2, 1.0, None, "running")


def event(name: str, at: float, **payload: Any) -> dict[str, Any]:
    return {"event": name, "timestamp": at, "payload": payload}


def test_the_history_of_a_folder() -> None:
    assert History.of([]) == History()
    cut = [event("run_started", 10), event("heartbeat", 15)]
    assert History.of(cut) == History(1, None, 5.0)
    assert History.of(cut).unfinished
    done = [*cut, event("run_started", 100), event("run_completed", 110, outcome="completed")]
    assert (History.of(done).starts, History.of(done).outcome, History.of(done).seconds) == (2, "completed", 15.0)
    assert not History.of(done).unfinished
    suspended = [event("run_started", 1), event("run_cancelled", 2, outcome="suspended")]
    assert History.of(suspended).unfinished
    assert (
        History.of([{**event("run_started", 1), "run_id": "a"}, {**event("run_started", 2), "run_id": "b"}]).run_id
        == "b"
    )


@pytest.mark.parametrize(
    ("moments", "seconds"),
    [
        ([10, 5], 0.0),
        ([10, 40, 86_440, 86_470], 660.0),  # set to a day later, or asleep for one
        ([10_000, 10_030, 30, 60], 60.0),  # set back by hours
        ([10, 40, 70], 60.0),
    ],
)
def test_a_clock_that_is_set_uses_up_no_time_limit(moments: list[float], seconds: float) -> None:
    first, *rest = moments
    assert History.of([event("run_started", first), *(event("heartbeat", at) for at in rest)]).seconds == seconds


@pytest.mark.parametrize(("asked", "is_so"), [("20", True), ("86400", False)])
def test_no_heartbeat_is_so_rare_that_it_would_be_taken_for_sleep(asked: str, is_so: bool) -> None:
    options = _options(build_parser().parse_args([]), {"CLEANRL_HEARTBEAT_SECONDS": asked})
    assert (options.heartbeat_seconds == float(asked)) is is_so
    assert options.heartbeat_seconds < LONGEST_SILENCE


def test_the_folder_is_chosen_by_the_closest_word() -> None:
    here = Path.cwd()
    assert RunFolder.choose("r", "train", {}).path == here / "var/trainer/runs/r"
    assert RunFolder.choose("r", "policy_eval", {}).path == here / "var/trainer/evals/r"
    assert RunFolder.choose("r", "train", {"MOSAIC_RUN_DIR": "/m"}).path == Path("/m")
    assert RunFolder.choose("r", "train", {"MOSAIC_RUN_DIR": "/m", "CLEANRL_RUN_DIR": "/c"}).path == Path("/c")
    assert RunFolder.choose("r", "train", {"CLEANRL_RUN_DIR": "/c"}, Path("x")).path == here / "x"


def test_a_folder_is_for_one_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    lock = folder.take()
    with pytest.raises(RunFolderError, match="in use"):
        folder.take()
    os.close(lock)
    os.close(folder.take())


def test_what_is_set_aside_is_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    os.close(folder.take())
    for number in (1, 2):
        folder.prepare({"number": number})
        (folder.checkpoints / "step-1").mkdir()
        aside = folder.set_aside()
        assert aside == folder.path / ".earlier" / str(number)
        assert (aside / "checkpoints" / "step-1").is_dir()
        assert sorted(path.name for path in folder.path.iterdir()) == [".earlier", ".lock"]


def test_redaction() -> None:
    redactor = Redactor.for_environment({"MY_API_KEY": "long-secret", "TOKEN_FILE": "/a/path", "X_TOKEN": "short"})
    assert redactor.text("a long-secret in /a/path, short") == f"a {HIDDEN} in /a/path, short"
    assert redactor.text("https://u:p@host/x http://host/y") == f"https://{HIDDEN}@host/x http://host/y"
    assert redactor.data({"api_key": "x", "keys": [1], "max_tokens": 3, "n": ("long-secret",), "password": None}) == {
        "api_key": HIDDEN,
        "keys": [1],
        "max_tokens": 3,
        "n": [HIDDEN],
        "password": None,
    }
    assert redactor.command(["python", "--hf-token=abc", "--x=1", "long-secret"]) == [
        *("python", f"--hf-token={HIDDEN}", "--x=1", HIDDEN)
    ]

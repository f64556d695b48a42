"""A long step says what it does, since when and for how long still; a failing one shows why."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest

from devcluster import progress
from devcluster.progress import Progress, StepFailed, run_step, step


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "PIPE_INTERVAL", 0.01)


def test_the_line_tells_elapsed_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Progress("build", typical_seconds=100)
    monkeypatch.setattr(bar, "elapsed", lambda: 25.0)
    assert bar.line() == "build: 25 s so far, about 1 min 15 s left"
    bar.fraction = 0.5
    assert bar.line() == "build:  50%, 25 s so far, about 25 s left"


def test_an_overdue_step_does_not_promise_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Progress("build", typical_seconds=10)
    monkeypatch.setattr(bar, "elapsed", lambda: 12.0)
    assert bar.line().endswith("longer than usual")


@pytest.mark.parametrize("width", [79, 39])
def test_a_live_line_stays_on_one_line_and_keeps_the_time(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    bar = Progress("Python packages into .venv (torch and its libraries are large)", typical_seconds=100)
    monkeypatch.setattr(bar, "elapsed", lambda: 25.0)
    assert bar.line(width).endswith(": 25 s so far, about 1 min 15 s left")
    assert len(bar.line(width)) == width


def test_what_is_drawn_again_and_again_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with step("Python packages into .venv (torch and its libraries are large)", 500):
            drawn = os.read(ours, 4096).decode().split("\r\x1b[K")[1:]
    os.close(ours)
    assert all("so far" in line and len(line) < 40 for line in drawn)


def test_the_next_estimate_is_this_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with step("build", 500, said.append) as first:
        first.started -= 40
    with step("build", 500, said.append) as second:
        assert 40 <= second.typical_seconds < 60
    assert any(line.startswith("build: done in 40 s") for line in said)


def test_a_failing_command_shows_its_last_lines_and_the_remedy(capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "import sys; print('disk on fire'); sys.exit(3)"]
    with pytest.raises(StepFailed, match=r"^copy failed with exit code 3: buy a new disk$"):
        run_step("copy", command, typical_seconds=1, remedy="buy a new disk")
    assert "disk on fire" in capfd.readouterr().err


def test_a_program_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(StepFailed, match="no-such-program can't be started"):
        run_step("copy", ["no-such-program"], typical_seconds=1)


def test_output_can_drive_the_fraction() -> None:
    seen: list[str] = []

    def watch(bar: Progress, line: str) -> None:
        seen.append(line.strip())
        bar.fraction = len(seen) / 2

    run_step("count", [sys.executable, "-c", "print(1); print(2)"], typical_seconds=1, watch=watch)
    assert seen == ["1", "2"]

"""Progress on long steps: what is being done, since when, and about how long it will still take.

On a terminal one live line is rewritten; on a pipe a line appears every quarter of a minute, so that a log shows life
without filling up. Steps shorter than five seconds say nothing. How long a step took is remembered in the user's cache,
so that the next estimate is this machine's own. Standard library only: the bootstrap uses it before anything is
installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

QUIET_SECONDS = 5.0
PIPE_INTERVAL = 15.0
TERMINAL_INTERVAL = 0.5


class StepFailed(Exception):
    """A step ended badly; the message is one sentence for a person."""


class Progress:
    """One step's line. `fraction` may be set from anywhere; without it the estimate comes from the usual duration."""

    def __init__(self, label: str, typical_seconds: float) -> None:
        self.label = label
        self.typical_seconds = typical_seconds
        self.fraction: float | None = None
        """How much is done, 0 to 1, when the step can tell; None when only the clock is known."""
        self.started = time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self.started

    def line(self, width: int | None = None) -> str:
        """What a person reads while the step runs; in `width` columns the label is cut, never the time."""
        elapsed = self.elapsed()
        if self.fraction is not None and self.fraction > 0.02:
            left = elapsed / self.fraction - elapsed
        else:
            left = self.typical_seconds - elapsed
        remaining = f"about {_human(left)} left" if left >= 1 else "longer than usual"
        share = f"{self.fraction:4.0%}, " if self.fraction is not None else ""
        told = f": {share}{_human(elapsed)} so far, {remaining}"
        label = self.label if width is None else self.label[: max(0, width - len(told))]
        return f"{label}{told}"[:width]


@contextlib.contextmanager
def step(label: str, typical_seconds: float, say: Callable[[str], None] | None = None) -> Iterator[Progress]:
    """Show progress while the body runs; remember how long it took if it ended well."""
    progress = Progress(label, _remembered(label, typical_seconds))
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(progress, done, say), name="progress", daemon=True)
    ticker.start()
    try:
        yield progress
    finally:
        done.set()
        ticker.join()
    elapsed = progress.elapsed()
    if elapsed >= QUIET_SECONDS:
        _write(f"{label}: done in {_human(elapsed)}", say)
        _remember(label, elapsed)


def run_step(
    label: str,
    command: Sequence[str],
    *,
    typical_seconds: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    remedy: str = "",
    watch: Callable[[Progress, str], None] | None = None,
) -> None:
    """Run a command as a step. Its output is kept back and its end is shown only when it fails.

    `watch` sees each line of output as it comes and may set the progress' fraction.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as log, step(label, typical_seconds) as progress:
        try:
            process = subprocess.Popen(
                list(command),
                cwd=cwd,
                env=dict(env) if env is not None else None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise StepFailed(f"{label}: {command[0]} can't be started: {error.strerror}") from error
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                if watch is not None:
                    watch(progress, line)
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code != 0:
            log.seek(0)
            tail = log.read().splitlines()[-20:]
            _write("\n".join(["", *(f"    {line}" for line in tail)]), None)
            raise StepFailed(f"{label} failed with exit code {code}" + (f": {remedy}" if remedy else ""))


def _tick(progress: Progress, done: threading.Event, say: Callable[[str], None] | None) -> None:
    live = say is None and sys.stderr.isatty()
    if done.wait(QUIET_SECONDS):
        return
    shown = ""
    while True:
        if live:
            shown = progress.line(columns(sys.stderr))
            sys.stderr.write(f"\r\033[K{shown}")
            sys.stderr.flush()
        else:
            _write(progress.line(), say)
        if done.wait(TERMINAL_INTERVAL if live else PIPE_INTERVAL):
            break
    if shown:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def columns(terminal: TextIO) -> int:
    """How long a live line may be: one that wraps can't be drawn over, and each drawing would leave its first part behind."""
    try:
        return (os.get_terminal_size(terminal.fileno()).columns or 80) - 1  # a serial line says 0
    except OSError:
        return 79


def nobody_reads() -> None:
    """After a BrokenPipeError: the reader of stdout, `head` for example, has seen enough, and what is buffered goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _write(text: str, say: Callable[[str], None] | None) -> None:
    if say is not None:
        say(text)
    else:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _human(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _timings_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "cleanrl-operator" / "timings.json"


def _timings() -> dict[str, float]:
    try:
        stored = json.loads(_timings_file().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict):
        return {}
    return {str(label): float(seconds) for label, seconds in stored.items() if isinstance(seconds, int | float)}


def _remembered(label: str, typical_seconds: float) -> float:
    return _timings().get(label, typical_seconds)


def _remember(label: str, seconds: float) -> None:
    """Keep the newest duration. An estimate is a courtesy: a cache that can't be written must not fail the step."""
    path = _timings_file()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            json.dump({**_timings(), label: round(seconds, 1)}, file)
        Path(temporary).replace(path)

"""The live line for a person at a terminal. A pipe or a file gets nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

_REDRAW_SECONDS = 0.5
_BAR_WIDTH = 20


def terminal_of(*streams: TextIO | None) -> TextIO | None:
    """The first of the streams that is a terminal."""
    for stream in streams:
        try:
            if stream is not None and stream.isatty():
                return stream
        except ValueError:  # closed
            continue
    return None


def render(
    step: int | None, total: int | None, sps: float | None, episode_return: float | None, status: str, width: int
) -> str:
    """One line: bar, step, percent, steps per second, return and time left, as far as they are known."""
    if step is None:
        return f"{status} ..."[:width]
    parts = [f"{step:,}"]
    if total:
        done = min(1.0, step / total)
        filled = int(done * _BAR_WIDTH)
        parts = [f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}]", f"{step:,}/{total:,}", f"{done:.1%}"]
    parts.append(f"{sps:,.0f} steps/s" if sps else "- steps/s")
    parts.append(f"return {episode_return:.1f}" if episode_return is not None else "return -")
    if total and sps:
        parts.append(f"{_duration(max(0, total - step) / sps)} left")
    if status != "running":
        parts.append(status)
    return "  ".join(parts)[:width]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class ProgressLine:
    """Draws the line in place on a terminal. With None it does nothing, at no cost."""

    def __init__(self, terminal: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._clock = clock
        self._drawn_at: float | None = None
        self._visible = False

    def draw(
        self, step: int | None, total: int | None, sps: float | None, episode_return: float | None, status: str
    ) -> None:
        """Show the newest figures, at most twice a second."""
        now = self._clock()
        if self._terminal is None or (self._drawn_at is not None and now - self._drawn_at < _REDRAW_SECONDS):
            return
        self._drawn_at = now
        width = max(20, shutil.get_terminal_size().columns - 1)
        self._write(f"\r\x1b[K{render(step, total, sps, episode_return, status, width)}")
        self._visible = True

    def clear(self) -> None:
        """Make room for other output; the next `draw` comes at once."""
        if self._visible:
            self._write("\r\x1b[K")
        self._visible = False
        self._drawn_at = None

    def _write(self, text: str) -> None:
        assert self._terminal is not None
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):  # the terminal went away; the run goes on
            self._terminal = None
            self._visible = False

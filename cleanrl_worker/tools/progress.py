"""A line on the terminal for work on many bytes. Nothing is written when standard error is not a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

_EVERY_SECONDS = 0.5


class Progress:
    """`with Progress("packing", total) as progress: progress.advance(n)`."""

    def __init__(self, verb: str, total: int | None = None) -> None:
        self._verb, self._total, self._done = verb, total, 0
        self._shown = sys.stderr.isatty()
        self._next = time.monotonic() + _EVERY_SECONDS
        self._written = False

    def advance(self, count: int) -> None:
        self._done += count
        if self._shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_SECONDS
            share = f" of {self._total / 1e6:.0f} MB ({self._done / self._total:.0%})" if self._total else " MB"
            sys.stderr.write(f"\r\x1b[K{self._verb} {self._done / 1e6:.0f}{share}")
            sys.stderr.flush()
            self._written = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

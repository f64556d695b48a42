"""Who may connect to a run's exporter, and how often: so many connections in all, fewer for each caller, and a few a second.

What is refused costs next to nothing, and no more of it is looked at than a bound: the exporter shares its pod's CPU with
training. The rest waits in the kernel's queue, which is long enough that somebody who behaves gets through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_CONNECTIONS = 64
MAX_PER_CALLER = 8
"""Open connections of one address. The rest is for others: one caller can't shut out Prometheus and the kubelet."""
PER_SECOND, BURST = 5.0, 20.0
"""Requests of one address. Prometheus and the kubelet need one in several seconds, a viewer's page one a second."""
REFUSALS_SHARE = 0.01
"""Of a core, for turning callers away."""
SHORTEST_REST, LONGEST_REST = 0.05, 0.25
MAX_CALLERS = 1024


@dataclass
class _Caller:
    left: float
    """Connections that it may still open at once."""
    at: float
    open: int = 0


class Gate:
    """Admission by address. `admit` and `leave` may be called from any thread."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, spent: Callable[[], float] = time.thread_time
    ) -> None:
        """`spent` tells the CPU seconds of the thread that calls `rest`."""
        self._clock, self._spent = clock, spent
        self._lock = threading.Lock()
        self._callers: dict[str, _Caller] = {}
        self._open = 0
        self._owed, self._rested_at, self._spent_before = 0.0, clock(), 0.0

    def admit(self, address: str) -> bool:
        """Whether this connection is served; then `leave` has to follow."""
        now = self._clock()
        with self._lock:
            caller = self._callers.get(address)
            if caller is None:
                if len(self._callers) >= MAX_CALLERS:
                    self._forget_the_idle(now)
                if len(self._callers) >= MAX_CALLERS:
                    return False
                caller = self._callers[address] = _Caller(BURST, now)
            caller.left = min(BURST, caller.left + (now - caller.at) * PER_SECOND)
            caller.at = now
            if caller.left < 1 or caller.open >= MAX_PER_CALLER or self._open >= MAX_CONNECTIONS:
                return False
            caller.left -= 1
            caller.open += 1
            self._open += 1
            return True

    def leave(self, address: str) -> None:
        """An admitted connection is over."""
        with self._lock:
            self._open -= 1
            self._callers[address].open -= 1

    def rest(self) -> float:
        """Called for each refusal, by the one who accepts: how long to rest before the next.

        By what it has cost and not by number: one that has sent a lot costs ten times as much to forget.
        """
        now, spent = self._clock(), self._spent()
        self._owed = max(0.0, self._owed + (spent - self._spent_before) / REFUSALS_SHARE - (now - self._rested_at))
        self._rested_at, self._spent_before = now, spent
        return min(self._owed, LONGEST_REST) if self._owed > SHORTEST_REST else 0.0

    def _forget_the_idle(self, now: float) -> None:
        """Callers who could begin anew without a difference."""
        self._callers = {
            address: caller
            for address, caller in self._callers.items()
            if caller.open or caller.left + (now - caller.at) * PER_SECOND < BURST
        }

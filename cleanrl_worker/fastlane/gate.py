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
REFUSALS_PER_SECOND, REFUSALS_BURST = 500.0, 25.0
MAX_CALLERS = 1024


@dataclass
class _Caller:
    left: float
    """Connections that it may still open at once."""
    at: float
    open: int = 0


class Gate:
    """Admission by address. `admit` and `leave` may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._callers: dict[str, _Caller] = {}
        self._open = 0
        self._refusals, self._refused_at = REFUSALS_BURST, clock()

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
        """Called for each refusal, by the one who accepts: how long to rest before the next."""
        now = self._clock()
        self._refusals = min(REFUSALS_BURST, self._refusals + (now - self._refused_at) * REFUSALS_PER_SECOND) - 1
        self._refused_at = now
        return REFUSALS_BURST / REFUSALS_PER_SECOND if self._refusals < 0 else 0.0

    def _forget_the_idle(self, now: float) -> None:
        """Callers who could begin anew without a difference."""
        self._callers = {
            address: caller
            for address, caller in self._callers.items()
            if caller.open or caller.left + (now - caller.at) * PER_SECOND < BURST
        }

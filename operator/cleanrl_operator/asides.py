"""Writes that may wait for what comes next: most pods start at once, and one write then says it all.

Two kinds wait. Small news of a pod that has not started (its node, why it is not scheduled yet), and, while new runs arrive,
even that a run was accepted and has its pod. The more runs have small news, the longer each waits, so that thousands, whose
pods take their time, cost a run hardly more writes than a hundred do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cleanrl_operator.cache import Key

SECONDS = 1.0
"""How long a write waits."""
SECONDS_PRESSED = 5.0
"""The same while new runs arrive."""
SECONDS_AT_MOST = 15.0
SMALL_NEWS_A_SECOND = 20
"""So many small news of the whole fleet are worth a write of their own."""
LOOKS_A_SECOND = 100
"""How often it is looked, for the whole fleet, whether a burst is over and what waits may go."""


@dataclass
class Asides:
    """Since when the writes of which runs wait."""

    clock: Callable[[], float] = time.monotonic
    _since: dict[Key, float] = field(default_factory=dict)

    def wait(self, key: Key, *, small: bool, pressed: bool) -> float:
        """After how many seconds this write should be looked at again; 0 when it goes now. What is not small is an opening."""
        now = self.clock()
        since = self._since.setdefault(key, now)
        waiting = len(self._since)
        patience = SECONDS_PRESSED if pressed else SECONDS
        if small:
            patience = max(patience, min(waiting / SMALL_NEWS_A_SECOND, SECONDS_AT_MOST))
        left = since + patience - now
        if left <= 0:
            self.forget(key)
            return 0.0
        return min(left, max(SECONDS, waiting / LOOKS_A_SECOND))

    def forget(self, key: Key) -> None:
        """Nothing of this run waits any more."""
        self._since.pop(key, None)

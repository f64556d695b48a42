"""The worker's side of the numbered log: what has to be sent next.

The log on disk is the queue. The outbox keeps the newest events in memory so that the common case reads no file; what
fell out of memory, or was written before this process started, is read back from the log. `add` may be called by any
thread and never waits for the reader; everything else belongs to the one thread that sends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cleanrl_protocol.events import epoch_micros, is_scalars, number_of

Event = Mapping[str, Any]
ReadLog = Callable[[], Iterable[Event]]
"""All whole lines of the log, oldest first."""


class Outgoing(NamedTuple):
    """One event to send, and the number of the one sent before it."""

    event: Event
    after: int


class Outbox:
    """Hands out events in order, each once, from wherever `rewind` put the cursor."""

    def __init__(self, read_log: ReadLog, capacity: int = 4096) -> None:
        self._read_log = read_log
        self._capacity = capacity
        self._lock = threading.Lock()
        self._memory: dict[int, Event] = {}
        self._last = 0
        self._epoch = 0
        self._backlog: Iterator[Event] | None = None
        self._cursor = 0  # numbers up to here were handed out, held back or replaced
        self._sent = 0  # the highest number handed out
        self._newest_scalars: Event | None = None  # the newest scalars the cursor has passed
        self._held = False  # ... and they have not been handed out
        self.coalesced = 0
        """Scalars replaced by newer ones since the counter was last set to 0."""
        for event in read_log():
            number = number_of(event)
            if number == 1:
                self._epoch = epoch_micros(event.get("timestamp"))
            self._last = max(self._last, number)

    @property
    def last(self) -> int:
        """The highest number in the log."""
        return self._last

    @property
    def epoch(self) -> int:
        """When event 1 was written, in microseconds; 0 when there is none."""
        return self._epoch

    def add(self, event: Event) -> None:
        """Take an event that was just written to the log. Numbers only grow; others are not ours and are ignored."""
        number = number_of(event)
        with self._lock:
            if number <= self._last:
                return
            if number == 1:
                self._epoch = epoch_micros(event.get("timestamp"))
            self._memory[number] = event
            self._last = number
            if len(self._memory) > self._capacity:
                del self._memory[next(iter(self._memory))]

    def rewind(self, acknowledged: int) -> None:
        """The other side has everything up to `acknowledged`: go on from the next number."""
        acknowledged = min(acknowledged, self._last)
        self._backlog = None
        self._cursor = self._sent = acknowledged
        # Scalars that were held back, or handed out late, may lie before the cursor and not have arrived.
        self._held = self._newest_scalars is not None and number_of(self._newest_scalars) <= acknowledged
        self.forget(acknowledged)

    def forget(self, acknowledged: int) -> None:
        """Free the memory of events that are safe on the other side."""
        with self._lock:
            for number in [number for number in self._memory if number <= acknowledged]:
                del self._memory[number]

    def take(self, spend_credit: Callable[[], bool]) -> Outgoing | None:
        """The next event that may be sent, or None. Scalars cost a credit; without one the newest waits its turn."""
        while (event := self._next()) is not None:
            self._cursor = number_of(event)
            if not is_scalars(event):
                return self._hand_out(event)
            if self._newest_scalars is not None and self._cursor < number_of(self._newest_scalars):
                continue  # passed once more after a cut: newer ones are known, and may have arrived
            if self._held:
                self.coalesced += 1
            self._newest_scalars, self._held = event, True
            if spend_credit():
                return self._hand_out_held()
        if self._held and spend_credit():
            return self._hand_out_held()
        return None

    @property
    def sent(self) -> int:
        """The highest number handed out since the last `rewind`, or what it was rewound to."""
        return self._sent

    @property
    def starving(self) -> bool:
        """Whether scalars wait for a credit."""
        return self._held

    def _hand_out_held(self) -> Outgoing:
        assert self._newest_scalars is not None
        self._held = False
        return self._hand_out(self._newest_scalars)

    def _hand_out(self, event: Event) -> Outgoing:
        number = number_of(event)
        after = min(self._sent, number - 1)
        self._sent = max(self._sent, number)
        return Outgoing(event, after)

    def _next(self) -> Event | None:
        """The event after the cursor: from memory, else from the log, else the next one that is still anywhere."""
        with self._lock:
            if self._cursor >= self._last:
                return None
            event = self._memory.get(self._cursor + 1)
        if event is not None:
            self._backlog = None
            return event
        if self._backlog is None:
            self._backlog = iter(self._read_log())
        logged = next((event for event in self._backlog if number_of(event) > self._cursor), None)
        with self._lock:
            # Where the log lost lines (a full disk), memory may still have them.
            kept = next((self._memory[number] for number in self._memory if number > self._cursor), None)
            if logged is not None and (kept is None or number_of(logged) <= number_of(kept)):
                return logged
            self._backlog = None
            if kept is None:
                self._cursor = self._last  # these lines are nowhere any more
            return kept

"""What a gateway knows of one worker's event log: which numbers arrived, and which are safe.

Pure: no I/O, no clock. The gateway asks `register` at the handshake, `receive` for each event, and `commit` once it has
stored what an event says; `acknowledged` is the number to send back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Arrival(Enum):
    """What an arriving event is to the ledger."""

    NEW = "new"
    DUPLICATE = "duplicate"  # already here: drop it, it was answered before
    GAP = "gap"  # something before it is missing: end the stream, the worker will replay


@dataclass
class Ledger:
    """The numbers of one log. After a restart, make it from the stored `acknowledged` and `epoch`."""

    acknowledged: int = 0
    """Every number up to here is safe."""
    epoch: int = 0
    """Which log this is: the time at which event 1 was written, in microseconds."""
    received: int = field(init=False)
    """Every number up to here has arrived or was replaced by newer scalars."""
    newest_scalars: int = 0
    _uncommitted: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.received = self.acknowledged

    def register(self, last_number: int, epoch: int) -> int:
        """A worker (re)connects with a log that ends at `last_number`: the number after which it has to send.

        Another log than the one known, or one shorter than what is safe already, is a new log: its numbers start
        afresh.
        """
        if epoch != self.epoch or last_number < self.acknowledged:
            self.acknowledged, self.epoch, self.newest_scalars = 0, epoch, 0
        # What arrived but was never made safe is sent again: nothing has to survive here but `acknowledged` and
        # `epoch`.
        self.received = self.acknowledged
        self._uncommitted.clear()
        return self.acknowledged

    def receive(self, number: int, after: int, *, epoch: int = 0, scalars: bool = False, hold: bool = False) -> Arrival:
        """Take note of one event. `hold`: it is safe only after `commit`; everything else is safe on arrival.

        `epoch` is the event's own time in microseconds: that of event 1 names the log.
        """
        if not 0 <= after < number:
            return Arrival.GAP
        # Scalars are state: one that was held back arrives behind later events and still counts, if it is the newest. And
        # one that arrived before a reconnect comes again, with what was never made safe: what follows counts on it.
        known = number <= (self.newest_scalars if scalars else self.received)
        if known and number <= self.received:
            return Arrival.DUPLICATE
        if after > self.received:
            return Arrival.GAP
        if scalars:
            self.newest_scalars = max(self.newest_scalars, number)
        if number == 1 and not self.epoch:
            self.epoch = epoch
        self.received = max(self.received, number)
        if hold:
            self._uncommitted.append(number)
        self._settle()
        return Arrival.DUPLICATE if known else Arrival.NEW

    def commit(self, number: int) -> int:
        """Everything up to `number` has been stored: the number to acknowledge."""
        self._uncommitted = [held for held in self._uncommitted if held > number]
        self._settle()
        return self.acknowledged

    def _settle(self) -> None:
        safe = self._uncommitted[0] - 1 if self._uncommitted else self.received
        self.acknowledged = max(self.acknowledged, safe)

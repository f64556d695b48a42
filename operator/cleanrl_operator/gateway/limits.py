"""How much one caller may ask of the gateway. Pure: the clock is given."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

EVENTS_PER_SECOND, EVENTS_BURST = 50.0, 2000
"""A worker sends a few events a second; after an hour without a gateway it replays what it has kept, at once."""
CALLS_PER_SECOND, CALLS_BURST = 5.0, 100
"""Generous, because many pods may share one address behind a masquerading network."""
MOST_CALLERS = 10_000


@dataclass
class Bucket:
    """Fills at a steady rate up to its size; everything that is done takes one out."""

    per_second: float
    size: float
    level: float
    seen: float

    @classmethod
    def full(cls, per_second: float, size: float, now: float) -> Bucket:
        """One that nobody has taken from."""
        return cls(per_second, size, size, now)

    def take(self, now: float) -> float:
        """Take one: how many seconds to wait until it is covered, 0 when it is."""
        self._fill(now)
        self.level -= 1
        return max(0.0, -self.level / self.per_second)

    def empty(self, now: float) -> bool:
        """Whether there is nothing left to take."""
        self._fill(now)
        return self.level < 1

    def _fill(self, now: float) -> None:
        self.level = min(self.size, self.level + max(0.0, now - self.seen) * self.per_second)
        self.seen = now


class Callers:
    """Who did something too often lately: they are turned away before their token costs anybody a review."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def too_often(self, caller: str, now: float) -> bool:
        """Whether this caller has to wait."""
        bucket = self._buckets.get(caller)
        return bucket is not None and bucket.empty(now)

    def note(self, caller: str, now: float) -> None:
        """This caller did it once more."""
        bucket = self._buckets.pop(caller, None) or Bucket.full(CALLS_PER_SECOND, CALLS_BURST, now)
        bucket.take(now)
        bucket.level = max(bucket.level, 0.0)
        self._buckets[caller] = bucket
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)


def address(peer: str) -> str:
    """The caller's address without its port, out of gRPC's `ipv4:10.0.0.1:4711`."""
    return peer.rpartition(":")[0] or peer

"""Credits: how many scalars a worker may send before its gateway asks for more.

Only scalars cost credits, one each; lifecycle events, heartbeats and checkpoints always travel. Both sides count the
same way, so neither has to trust the other: a worker without credits holds its scalars back, and a gateway drops what
was sent without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cleanrl_protocol.limits import CREDIT_CAP, INITIAL_CREDITS


@dataclass
class CreditBalance:
    """One side's count."""

    credits: int = 0
    cap: int = CREDIT_CAP

    def __post_init__(self) -> None:
        self.reset(self.credits)

    def reset(self, count: int) -> None:
        """A new session starts with so many."""
        self.credits = max(0, min(count, self.cap))

    def grant(self, count: int) -> int:
        """Add credits up to the cap: how many were added."""
        added = max(0, min(count, self.cap - self.credits))
        self.credits += added
        return added

    def spend(self) -> bool:
        """Take one, if there is one."""
        if self.credits <= 0:
            return False
        self.credits -= 1
        return True


@dataclass
class CreditRefill:
    """The gateway's policy: so many credits a second up to the cap, granted in lumps so that grants cost little.

    `now` is any monotonic clock in seconds.
    """

    per_second: float
    lump: int = 20
    balance: CreditBalance = field(default_factory=lambda: CreditBalance(INITIAL_CREDITS))
    _earned: float = field(default=0.0, init=False)
    _seen: float | None = field(default=None, init=False)

    def due(self, now: float) -> int:
        """Credits to grant now, 0 while they are not worth a message. What is returned is already in the balance."""
        if self._seen is not None and now > self._seen:
            self._earned = min(self._earned + (now - self._seen) * self.per_second, float(self.balance.cap))
        self._seen = now
        if self._earned < self.lump:
            return 0
        granted = self.balance.grant(int(self._earned))
        self._earned = 0.0 if granted == 0 else self._earned - granted
        return granted

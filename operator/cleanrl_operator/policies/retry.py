"""Which ends are tried again, which of them cost a retry, and how long the wait is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from cleanrl_operator.facts import EndReason

LONGEST_BACKOFF = timedelta(minutes=10)
"""No doubling goes beyond it; a first wait that is longer was asked for."""


@dataclass(frozen=True)
class Verdict:
    """What an end means for the run."""

    retryable: bool
    spends: bool = True
    """Whether it counts against `retry.limit`."""


TABLE: dict[EndReason, Verdict] = {
    EndReason.NO_RECORD: Verdict(retryable=True),
    EndReason.OOM_KILLED: Verdict(retryable=True),
    EndReason.EVICTED: Verdict(retryable=True, spends=False),
    EndReason.SCRATCH: Verdict(retryable=True),
    EndReason.REJECTED: Verdict(retryable=True),
    EndReason.PREEMPTED: Verdict(retryable=True, spends=False),
    EndReason.NODE_LOST: Verdict(retryable=True, spends=False),
    EndReason.POD_LOST: Verdict(retryable=True),
    EndReason.IMAGE: Verdict(retryable=True),
    EndReason.SILENCE: Verdict(retryable=True),
    EndReason.EXIT_CODE: Verdict(retryable=True),
    EndReason.PHASE: Verdict(retryable=True),
    EndReason.DEPENDENCIES: Verdict(retryable=True),
    EndReason.CLAIM_FULL: Verdict(retryable=True),
    EndReason.BAD_CONFIG: Verdict(retryable=False),
    EndReason.NO_CHECKPOINT: Verdict(retryable=True),
    EndReason.NAN: Verdict(retryable=False),
    EndReason.REFUSED: Verdict(retryable=False),
    EndReason.NAME_TAKEN: Verdict(retryable=False),
    EndReason.CLAIM_LOST: Verdict(retryable=False),
    EndReason.QUOTA: Verdict(retryable=True, spends=False),
    EndReason.NO_GPU: Verdict(retryable=True, spends=False),
}


def verdict(reason: str) -> Verdict:
    """The verdict on an end; an unknown reason is an ordinary failure."""
    try:
        return TABLE.get(EndReason(reason), Verdict(retryable=True))
    except ValueError:
        return Verdict(retryable=True)


def backoff(base_seconds: int, failures: int) -> timedelta:
    """How long to wait after this many failures in a row: doubling, with a ceiling."""
    doubled = base_seconds * 2 ** min(max(failures - 1, 0), 16)
    return min(timedelta(seconds=doubled), max(timedelta(seconds=base_seconds), LONGEST_BACKOFF))

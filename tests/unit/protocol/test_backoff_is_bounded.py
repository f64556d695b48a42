"""A worker without a gateway waits longer each time, never longer than it promised."""

from __future__ import annotations

from cleanrl_protocol import limits
from cleanrl_worker.session import Backoff


def test_the_wait_doubles_to_its_cap_and_jitter_only_shortens_it() -> None:
    backoff = Backoff()
    longest = [backoff.seconds(attempt, 0.0) for attempt in range(1, 10)]
    assert longest == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert backoff.seconds(10**6, 0.0) == limits.LONGEST_BACKOFF_SECONDS
    assert all(seconds / 2 < backoff.seconds(attempt, 0.999) < seconds for attempt, seconds in enumerate(longest, 1))


def test_the_promise_covers_a_silent_cut() -> None:
    noticed = limits.KEEPALIVE_SECONDS + limits.KEEPALIVE_TIMEOUT_SECONDS
    assert noticed + limits.LONGEST_BACKOFF_SECONDS + limits.REGISTER_SECONDS <= limits.LONGEST_ABSENCE_SECONDS

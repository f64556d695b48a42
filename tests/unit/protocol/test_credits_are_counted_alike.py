"""Credits: one scalar each, never more than the cap, granted in lumps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cleanrl_protocol.credits import CreditBalance, CreditRefill


def test_a_credit_is_spent_once() -> None:
    balance = CreditBalance(2)
    assert [balance.spend() for _ in range(3)] == [True, True, False]
    assert balance.grant(1) == 1
    assert balance.spend()


def test_grants_stop_at_the_cap_and_nonsense_grants_nothing() -> None:
    balance = CreditBalance(5, cap=10)
    assert balance.grant(100) == 5
    assert balance.grant(-3) == 0
    balance.reset(1000)
    assert balance.credits == 10
    balance.reset(-1)
    assert balance.credits == 0


def test_a_refill_grants_in_lumps_at_its_rate() -> None:
    refill = CreditRefill(per_second=2.0, lump=10, balance=CreditBalance(0, cap=100))
    assert refill.due(1000.0) == 0
    assert refill.due(1004.0) == 0
    assert refill.due(1005.0) == 10
    assert refill.balance.credits == 10
    assert refill.due(1005.0) == 0
    assert refill.due(900.0) == 0, "a clock that runs backwards earns nothing"


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 30)), max_size=50))
def test_a_refill_never_exceeds_rate_or_cap(steps: list[tuple[float, int]]) -> None:
    refill = CreditRefill(per_second=3.0, lump=5, balance=CreditBalance(0, cap=50))
    now, granted, spent = 0.0, 0, 0
    refill.due(now)
    for passed, wanted in steps:
        now += passed
        granted += refill.due(now)
        spent += sum(refill.balance.spend() for _ in range(wanted))
        assert granted <= 3.0 * now + 1e-6
        assert refill.balance.credits == granted - spent
        assert 0 <= refill.balance.credits <= 50

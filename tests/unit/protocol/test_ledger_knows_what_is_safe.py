"""The gateway's ledger: nothing twice, nothing missing, nothing safe before it is stored."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cleanrl_protocol.ledger import Arrival, Ledger


def test_numbers_arrive_in_order_and_once() -> None:
    ledger = Ledger()
    assert ledger.receive(1, 0, epoch=7) is Arrival.NEW
    assert ledger.receive(2, 1) is Arrival.NEW
    assert ledger.receive(2, 1) is Arrival.DUPLICATE
    assert ledger.receive(4, 3) is Arrival.GAP
    assert ledger.received == 2
    assert ledger.epoch == 7


def test_a_message_may_stand_for_scalars_that_newer_ones_replaced() -> None:
    ledger = Ledger()
    ledger.receive(1, 0)
    assert ledger.receive(5, 1) is Arrival.NEW
    assert ledger.acknowledged == 5


def test_an_impossible_predecessor_is_a_gap() -> None:
    for after in (3, 4, -1):
        assert Ledger(acknowledged=2).receive(3, after) is Arrival.GAP


def test_held_events_are_safe_only_after_their_commit() -> None:
    ledger = Ledger()
    ledger.receive(1, 0, hold=True)
    ledger.receive(2, 1)
    ledger.receive(3, 2, hold=True)
    ledger.receive(4, 3)
    assert ledger.acknowledged == 0
    assert ledger.commit(1) == 2
    assert ledger.commit(3) == 4


def test_scalars_held_back_by_the_worker_count_once_even_behind_later_events() -> None:
    ledger = Ledger()
    ledger.receive(2, 0)
    assert ledger.receive(1, 0, scalars=True) is Arrival.NEW
    assert ledger.receive(1, 0, scalars=True) is Arrival.DUPLICATE
    assert ledger.acknowledged == 2


def test_a_reconnect_replays_what_was_never_made_safe() -> None:
    ledger = Ledger()
    ledger.receive(1, 0, epoch=7)
    ledger.receive(2, 1, hold=True)
    ledger.receive(3, 2)
    assert ledger.register(3, 7) == 1
    assert ledger.receive(2, 1, hold=True) is Arrival.NEW


def test_a_new_log_starts_from_the_beginning() -> None:
    for last, epoch in ((0, 0), (9, 8), (2, 7)):  # empty; another log; the same but shorter than what is safe
        assert Ledger(acknowledged=5, epoch=7).register(last, epoch) == 0
    assert Ledger(acknowledged=5, epoch=7).register(5, 7) == 5


def test_what_an_old_log_left_unsafe_does_not_count_for_a_new_one() -> None:
    ledger = Ledger(acknowledged=4, epoch=7)
    ledger.receive(5, 4, hold=True)
    ledger.register(1, 8)
    ledger.receive(1, 0)
    assert (ledger.acknowledged, ledger.received) == (1, 1)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(-1, 12), st.booleans(), st.booleans(), st.integers(0, 12)),
        max_size=60,
    )
)
def test_whatever_arrives_what_is_safe_never_shrinks_or_overtakes_what_was_received(
    steps: list[tuple[int, int, bool, bool, int]],
) -> None:
    ledger = Ledger()
    held: set[int] = set()
    for number, after, scalars, hold, commit in steps:
        before = ledger.acknowledged
        if ledger.receive(number, after, scalars=scalars, hold=hold) is Arrival.NEW and hold:
            held.add(number)
        assert before <= ledger.acknowledged <= ledger.received
        ledger.commit(commit)
        held = {number for number in held if number > commit}
        assert before <= ledger.acknowledged <= ledger.received
        assert not any(number <= ledger.acknowledged and number > before for number in held), "not stored yet"

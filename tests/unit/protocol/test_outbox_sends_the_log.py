"""The worker's outbox: the log in order, from memory or from disk, scalars by credit."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cleanrl_protocol.ledger import Arrival, Ledger
from cleanrl_protocol.outbox import Outbox


def _event(number: int, name: str = "note") -> dict[str, Any]:
    return {"event": name, "payload": {}, "run_id": "r", "seq": number, "timestamp": 100.0 + number}


def _drain(outbox: Outbox, credits_left: int = 10**6) -> list[tuple[int, int]]:
    left = credits_left

    def spend() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    taken = []
    while (outgoing := outbox.take(spend)) is not None:
        taken.append((outgoing.event["seq"], outgoing.after))
    return taken


def test_what_an_earlier_process_wrote_is_sent_first() -> None:
    outbox = Outbox(lambda: [_event(1), _event(2)])
    assert (outbox.last, outbox.epoch) == (2, 101_000_000)
    outbox.add(_event(3))
    assert _drain(outbox) == [(1, 0), (2, 1), (3, 2)]
    assert _drain(outbox) == []


def test_rewind_goes_on_after_what_is_safe() -> None:
    log = [_event(number) for number in range(1, 6)]
    outbox = Outbox(lambda: log)
    _drain(outbox)
    outbox.rewind(3)
    assert _drain(outbox) == [(4, 3), (5, 4)]
    outbox.rewind(10**9)
    assert _drain(outbox) == [], "a gateway that claims more than there is"


def test_memory_is_bounded_and_the_log_fills_in() -> None:
    log: list[dict[str, Any]] = []
    outbox = Outbox(lambda: list(log), capacity=3)
    for number in range(1, 11):
        log.append(_event(number))
        outbox.add(log[-1])
    assert len(outbox._memory) == 3
    assert [number for number, _ in _drain(outbox)] == list(range(1, 11))


def test_lines_that_neither_memory_nor_the_log_has_are_passed_over() -> None:
    outbox = Outbox(lambda: [_event(2)], capacity=2)
    for number in (3, 4, 5, 6):
        outbox.add(_event(number))
    assert _drain(outbox) == [(2, 0), (5, 2), (6, 5)]


def test_memory_has_what_a_full_disk_lost() -> None:
    outbox = Outbox(lambda: [_event(1), _event(4)])
    for number in (5, 6):
        outbox.add(_event(number))
    outbox._memory[3] = _event(3)
    outbox._memory = dict(sorted(outbox._memory.items()))
    assert [number for number, _ in _drain(outbox)] == [1, 3, 4, 5, 6]


def test_without_credits_the_newest_scalars_wait_and_the_rest_goes() -> None:
    outbox = Outbox(list)
    for number, name in enumerate(["scalars", "note", "scalars", "heartbeat", "scalars"], start=1):
        outbox.add(_event(number, name))
    assert _drain(outbox, 0) == [(2, 0), (4, 2)]
    assert outbox.starving
    assert outbox.coalesced == 2
    assert _drain(outbox, 1) == [(5, 4)]
    assert not outbox.starving


def test_old_or_nameless_numbers_are_not_taken() -> None:
    outbox = Outbox(lambda: [_event(3)])
    for event in (_event(3), _event(1), {"event": "x"}, {"event": "x", "seq": "4"}, {"event": "x", "seq": True}):
        outbox.add(event)
    assert outbox.last == 3


@settings(deadline=None)
@given(
    names=st.lists(st.sampled_from(["scalars", "note"]), min_size=1, max_size=30),
    plan=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 6)), max_size=12),
    capacity=st.integers(1, 5),
)
def test_through_any_cuts_the_ledger_ends_complete(
    names: list[str], plan: list[tuple[int, int, int]], capacity: int
) -> None:
    """plan: write so many, grant so many credits, deliver so many before the next cut."""
    log: list[dict[str, Any]] = []
    outbox = Outbox(lambda: list(log), capacity)
    ledger = Ledger()
    history: list[int] = []
    figures: list[int] = []
    waiting = [_event(number, name) for number, name in enumerate(names, start=1)]

    def session(credit: int, deliveries: int) -> None:
        left = credit

        def spend() -> bool:
            nonlocal left
            left -= 1
            return left >= 0

        outbox.rewind(ledger.register(outbox.last, outbox.epoch))
        for _ in range(deliveries):
            outgoing = outbox.take(spend)
            if outgoing is None:
                return
            event, scalars = outgoing.event, outgoing.event["event"] == "scalars"
            epoch = round(event["timestamp"] * 1e6)
            arrival = ledger.receive(event["seq"], outgoing.after, epoch=epoch, scalars=scalars)
            assert arrival is not Arrival.GAP
            if arrival is Arrival.NEW:
                (figures if scalars else history).append(event["seq"])

    for write, credit, deliveries in plan:
        for event in waiting[:write]:
            log.append(event)
            outbox.add(event)
        del waiting[:write]
        session(credit, deliveries)
    for event in waiting:
        log.append(event)
        outbox.add(event)
    session(10**6, 10**6)
    assert history == [number for number, name in enumerate(names, start=1) if name == "note"]
    assert figures == sorted(set(figures))
    assert ledger.acknowledged == len(names)
    if "scalars" in names:
        assert figures[-1] == len(names) - names[::-1].index("scalars"), "the newest figures arrive"

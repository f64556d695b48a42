"""Who is admitted to a run's exporter: by the clock, without a socket."""

from __future__ import annotations

from cleanrl_worker.fastlane import gate
from cleanrl_worker.fastlane.gate import Gate


def test_a_caller_has_a_burst_and_then_its_rate() -> None:
    now = [0.0]
    door = Gate(lambda: now[0])
    for _ in range(int(gate.BURST)):
        assert door.admit("a")
        door.leave("a")
    assert not door.admit("a")
    assert door.admit("b"), "another one's haste is not its own"
    now[0] += 1 / gate.PER_SECOND
    assert door.admit("a")
    assert not door.admit("a")


def test_open_connections_are_bounded_for_each_and_for_all() -> None:
    door = Gate(lambda: 0.0)
    admitted = [address for number in range(100) if door.admit(address := f"caller-{number // 10}")]
    assert len(admitted) == gate.MAX_CONNECTIONS
    assert max(admitted.count(address) for address in set(admitted)) == gate.MAX_PER_CALLER
    door.leave(admitted[0])
    assert door.admit("late")


def test_thousands_of_addresses_are_not_remembered() -> None:
    now = [0.0]
    door = Gate(lambda: now[0])
    for number in range(3 * gate.MAX_CALLERS):
        now[0] += 10.0
        assert door.admit(f"caller-{number}")
        door.leave(f"caller-{number}")
    assert len(door._callers) <= gate.MAX_CALLERS


def test_refusals_are_paced() -> None:
    now = [0.0]
    door = Gate(lambda: now[0])
    looked = 0
    while now[0] < 10.0:
        now[0] += door.rest() or 1e-5
        looked += 1
    assert looked <= 10.0 * gate.REFUSALS_PER_SECOND * 1.2 + gate.REFUSALS_BURST

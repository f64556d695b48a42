"""Who is admitted to a run's exporter: by the clock, without a socket."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("cost", [20e-6, 500e-6])
def test_refusals_take_a_bounded_share_of_a_core_whatever_one_costs(cost: float) -> None:
    now, spent = [0.0], [0.0]
    door = Gate(lambda: now[0], lambda: spent[0])
    while now[0] < 60.0:
        spent[0] += cost
        now[0] += cost + door.rest()
    assert spent[0] <= 1.05 * gate.REFUSALS_SHARE * 60.0
    assert spent[0] >= 0.8 * gate.REFUSALS_SHARE * 60.0, "it rests longer than it has to, while others wait"

"""Without credits scalars wait and only the newest survives; everything else travels as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cleanrl_protocol.localgateway import LocalGateway

RUN = "01JD0000000000000000000000"
PATIENCE = 30.0


def test_starved_once_the_newest_scalars_on_recovery_and_resumed_once(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway(initial_credits=2, regrant=False)
    worker = start_worker(gateway.target)
    worker.emit("run_started")
    for step in range(1, 11):
        worker.scalars(step)
    worker.emit("checkpoint_saved", path="checkpoints/step-10", step=10, sha256="b" * 64)
    worker.emit("heartbeat")
    run = gateway.runs
    assert gateway.wait_for(lambda: RUN in run and run[RUN].flow == ["STARVED"], PATIENCE)
    assert gateway.wait_for(lambda: run[RUN].names[-1] == "heartbeat", PATIENCE)
    steps = [event.payload["step"] for event in run[RUN].events if event.is_scalars]
    assert steps == [1, 2], "two credits, two messages"
    assert run[RUN].names.count("checkpoint_saved") == 1

    gateway.grant(RUN, 5)
    assert gateway.wait_for(lambda: run[RUN].flow == ["STARVED", "RESUMED"], PATIENCE)
    worker.emit("run_completed")
    assert worker.session.close(PATIENCE)
    steps = [event.payload["step"] for event in run[RUN].events if event.is_scalars]
    assert steps == [1, 2, 10], "the eight in between were replaced by the newest"
    assert run[RUN].flow == ["STARVED", "RESUMED"]
    assert run[RUN].overspent == 0
    assert run[RUN].ledger.acknowledged == 14


def test_a_gateway_that_gives_no_credits_still_hears_the_end(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway(initial_credits=0)
    worker = start_worker(gateway.target)
    for step in range(50):
        worker.scalars(step)
    worker.emit("run_failed", error="boom")
    assert worker.session.close(PATIENCE)
    assert gateway.runs[RUN].names == ["run_failed"]
    assert gateway.runs[RUN].flow == ["STARVED"]


def test_held_scalars_survive_a_cut(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway(initial_credits=0)
    worker = start_worker(gateway.target)
    worker.scalars(7)
    worker.emit("heartbeat")
    assert gateway.wait_for(lambda: RUN in gateway.runs and gateway.runs[RUN].ledger.acknowledged == 2, PATIENCE)
    gateway.cut(RUN)
    assert gateway.wait_for(lambda: len(gateway.runs[RUN].registrations) == 2, PATIENCE)
    gateway.grant(RUN, 1)
    assert gateway.wait_for(lambda: any(event.is_scalars for event in gateway.runs[RUN].events), PATIENCE)
    assert gateway.runs[RUN].events[-1].payload["step"] == 7

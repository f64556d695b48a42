"""Whatever happens to the connection, the gateway ends with every event, once, in order."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cleanrl_protocol.localgateway import Faults, LocalGateway
from cleanrl_worker.session import Backoff, Session, State, Worker
from cleanrl_worker.telemetry import EventLog

RUN = "01JD0000000000000000000000"
PATIENCE = 30.0


def test_a_gateway_that_is_absent_costs_the_worker_nothing_and_gets_everything_when_it_comes(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    port = gateway.port
    gateway.stop()
    worker = start_worker(f"127.0.0.1:{port}")
    for index in range(500):
        worker.emit("heartbeat", index=index)
    assert worker.session.state is State.CONNECTING
    assert not worker.session.close(0)  # at once, and honest about it

    late = start_worker(f"127.0.0.1:{port}")
    late.emit("run_completed")
    gateway.start(port)
    assert late.session.close(PATIENCE)
    assert gateway.runs[RUN].numbers == list(range(1, 502))


def test_a_gateway_that_dies_in_mid_stream_and_forgets_is_told_again(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    first = start_gateway()
    worker = start_worker(first.target)
    for _ in range(20):
        worker.emit("heartbeat")
    assert first.wait_for(lambda: RUN in first.runs and len(first.runs[RUN].events) == 20, PATIENCE)
    first.stop()
    worker.emit("note")
    second = start_gateway(port=first.port)  # a new process would know as little
    worker.emit("run_completed")
    assert worker.session.close(PATIENCE)
    assert second.runs[RUN].numbers == list(range(1, 23))
    assert worker.session.reconnects >= 1


def test_only_what_was_not_acknowledged_is_sent_again(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    worker = start_worker(gateway.target)
    for _ in range(10):
        worker.emit("heartbeat")
    assert gateway.wait_for(lambda: RUN in gateway.runs and len(gateway.runs[RUN].events) == 10, PATIENCE)
    gateway.cut(RUN)
    worker.emit("run_completed")
    assert worker.session.close(PATIENCE)
    run = gateway.runs[RUN]
    assert run.numbers == list(range(1, 12))
    assert (run.duplicates, run.gaps) == (0, 0)


def test_more_events_than_memory_holds_are_read_back_from_the_log(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    worker = start_worker(gateway.target, start=False)
    worker.session._outbox._capacity = 8
    for _ in range(100):
        worker.emit("heartbeat")
    worker.session.start()
    assert worker.session.close(PATIENCE)
    assert gateway.runs[RUN].numbers == list(range(1, 101))


def test_a_slow_gateway_does_not_slow_the_worker(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway(faults=Faults(seconds_per_message=1000.0))
    worker = start_worker(gateway.target)
    assert worker.session.wait_registered(PATIENCE)
    text = "x" * 60_000
    done = threading.Event()

    def publish() -> None:
        for _ in range(300):  # 18 MB: far more than the transport's buffers take
            worker.emit("heartbeat", text=text)
        done.set()

    threading.Thread(target=publish, daemon=True).start()
    assert done.wait(PATIENCE)
    assert not worker.session.close(0)


def test_close_while_waiting_between_attempts_tries_at_once(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    port = gateway.port
    gateway.stop()
    worker = start_worker(f"127.0.0.1:{port}", backoff=Backoff(first=3600, cap=3600))
    worker.emit("run_completed")
    _wait_for_failures(worker.session, 1)
    gateway.start(port)
    assert worker.session.close(PATIENCE)
    assert gateway.runs[RUN].names == ["run_completed"]


def test_close_keeps_trying_until_its_time_is_up(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    port = gateway.port
    gateway.stop()
    worker = start_worker(f"127.0.0.1:{port}", backoff=Backoff(first=3600, cap=3600))
    worker.emit("run_completed")
    with ThreadPoolExecutor(max_workers=1) as pool:
        closed = pool.submit(worker.session.close, PATIENCE)
        _wait_for_failures(worker.session, 3)
        gateway.start(port)
        assert closed.result(PATIENCE)
    assert gateway.runs[RUN].names == ["run_completed"]


def _wait_for_failures(session: Session, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while session.reconnects < count:
        assert time.monotonic() < deadline, f"only {session.reconnects} attempts"
        time.sleep(0.01)


def test_a_gateway_that_never_acknowledges_is_not_taken_for_one_that_did(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway(faults=Faults(acknowledge=False))
    worker = start_worker(gateway.target)
    worker.emit("run_completed")
    assert gateway.wait_for(lambda: RUN in gateway.runs and len(gateway.runs[RUN].events) == 1, PATIENCE)
    assert not worker.session.close(0.2)
    assert worker.session.acknowledged == 0


def _registered(gateway: LocalGateway) -> Callable[[], bool]:
    return lambda: RUN in gateway.runs and bool(gateway.runs[RUN].registrations)


_STEPS = st.lists(
    st.one_of(
        st.sampled_from(["heartbeat", "scalars", "checkpoint_saved", "note"]),
        st.sampled_from(["cut", "restart", "forget"]),
        st.integers(min_value=0, max_value=4),  # cut the next streams after so many messages
    ),
    max_size=25,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_STEPS, initial_credits=st.sampled_from([0, 1, 3, 200]))
def test_any_sequence_of_cuts_ends_without_a_gap(steps: list[str | int], initial_credits: int) -> None:
    """`forget` replaces the gateway by one that knows nothing; `restart` keeps its memory; a number cuts streams early."""
    gateway = LocalGateway(initial_credits=initial_credits).start()
    port = gateway.port
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        log = EventLog(path, RUN, stream=None)
        session = Session(gateway.target, Worker(RUN), path, backoff=Backoff(first=0.005, cap=0.02))
        session.start()
        try:
            for step in steps:
                if step in ("cut", "restart", "forget") or isinstance(step, int):
                    assert gateway.wait_for(_registered(gateway), PATIENCE), "nothing to cut"
                if step == "cut":
                    gateway.cut(RUN)
                elif step == "restart":
                    gateway.stop()
                    gateway.start(port)
                elif step == "forget":
                    gateway.stop()
                    gateway = LocalGateway(initial_credits=initial_credits).start(port)
                elif isinstance(step, int):
                    gateway.faults.cut_after = step
                else:
                    session.publish(log.emit(step, step=1, values={"x": 1.0}))
            gateway.faults.cut_after = None
            session.publish(log.emit("scalars", step=2, values={"x": 2.0}))
            session.publish(log.emit("run_completed"))
            assert session.close(PATIENCE), "the last event was never acknowledged"
        finally:
            session.close(0)
            gateway.stop()
        run = gateway.runs[RUN]
        written = [json.loads(line) for line in path.read_text().splitlines()]
        log.close()
    history = {event["seq"] for event in written if event["event"] != "scalars"}
    received = [event.number for event in run.events if not event.is_scalars]
    assert received == sorted(history)
    assert run.ledger.acknowledged == len(written)
    figures = [event.number for event in run.events if event.is_scalars]
    assert figures == sorted(set(figures))
    if initial_credits:
        assert figures[-1] == len(written) - 1, "the newest figures have to arrive"
    assert (run.gaps, run.overspent) == (0, 0)

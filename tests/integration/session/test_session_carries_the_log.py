"""What a worker writes arrives, in order and once; what its owner wants reaches it."""

from __future__ import annotations

import json
import math
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.localgateway import LocalGateway
from cleanrl_worker.session import Desired, State, Worker

RUN = "01JD0000000000000000000000"
PATIENCE = 30.0


def test_every_kind_of_event_arrives_with_its_number_and_payload(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    worker = start_worker(gateway.target)
    worker.emit("run_started", algo="ppo", env_id="CartPole-v1")
    worker.emit("heartbeat", status="running")
    worker.emit("scalars", step=128, total=2048, sps=900.5, episodes=3, values={"charts/episodic_return": 21.0})
    worker.emit(
        "checkpoint_saved",
        path="checkpoints/step-1",
        step=128,
        sha256="a" * 64,
        bytes=7,
        seconds=0.1,
        reason="interval",
    )
    worker.emit("checkpoint_loaded", path="checkpoints/step-1", step=128, verb="continue")
    worker.emit("run_completed", status="completed")
    assert worker.session.close(PATIENCE)

    run = gateway.runs[RUN]
    assert run.numbers == [1, 2, 3, 4, 5, 6]
    payloads = {event.name: event.payload for event in run.events}
    assert payloads["run_started"] == {"algo": "ppo", "env_id": "CartPole-v1"}
    assert payloads["heartbeat"] == {"status": "running"}
    assert payloads["scalars"] == {
        "step": 128,
        "total": 2048,
        "sps": 900.5,
        "episodes": 3,
        "values": {"charts/episodic_return": 21.0},
    }
    assert payloads["checkpoint_saved"]["path"] == "checkpoints/step-1"
    assert payloads["checkpoint_saved"]["sha256"] == "a" * 64
    assert payloads["checkpoint_loaded"]["verb"] == "continue"
    assert worker.session.acknowledged == 6


def test_the_handshake_says_what_the_worker_is(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    worker = start_worker(
        gateway.target,
        worker=Worker(
            run_id=RUN, algo="dqn", env_id="CartPole-v1", attempt=3, extras={"b": 1}, capabilities={"max_agents": 1}
        ),
    )
    assert worker.session.wait_registered(PATIENCE)
    (request,) = gateway.runs[RUN].registrations
    assert (request.worker_kind, request.proto_version, request.worker_id) == (
        "cleanrl",
        "MOSAIC/1.0",
        "cleanrl-worker-01JD0000",
    )
    assert (request.schema_id, request.schema_version) == ("cleanrl.dqn", 1)
    assert request.supports_pause
    assert request.supports_checkpoint
    assert request.attempt == 3
    assert json.loads(request.extras_json) == {"b": 1}
    assert json.loads(request.capabilities_json) == {"max_agents": 1}
    assert (request.last_number, request.log_epoch) == (0, 0)


def test_desired_state_comes_on_connect_and_on_each_change_but_not_twice(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    gateway.faults.say_twice = True
    gateway.want(RUN, pause=True)
    wishes: queue.Queue[Desired] = queue.Queue()
    worker = start_worker(gateway.target, on_desired=wishes.put)
    assert wishes.get(timeout=PATIENCE) == Desired(generation=1, pause=True)
    assert gateway.wait_for(lambda: len(gateway.runs[RUN].registrations) == 1, PATIENCE)
    gateway.want(RUN, pause=False, checkpoint=True)
    assert wishes.get(timeout=PATIENCE) == Desired(generation=2, checkpoint_request=True)
    gateway.want(RUN, stop=True, stop_reason="suspend")
    assert wishes.get(timeout=PATIENCE) == Desired(3, stop=True, stop_reason="suspend")
    worker.emit("run_cancelled")
    assert worker.session.close(PATIENCE)
    assert wishes.empty()


def test_a_request_for_a_checkpoint_is_not_repeated_by_a_reconnect_or_to_the_next_attempt(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    wishes: queue.Queue[Desired] = queue.Queue()
    worker = start_worker(gateway.target, on_desired=wishes.put)
    assert wishes.get(timeout=PATIENCE) == Desired()
    gateway.want(RUN, checkpoint=True)
    assert wishes.get(timeout=PATIENCE) == Desired(generation=1, checkpoint_request=True)
    gateway.cut(RUN)
    assert gateway.wait_for(lambda: len(gateway.runs[RUN].registrations) == 2, PATIENCE)
    gateway.want(RUN, pause=True)
    assert wishes.get(timeout=PATIENCE) == Desired(generation=2, pause=True)
    assert worker.session.close(PATIENCE)

    later: queue.Queue[Desired] = queue.Queue()
    start_worker(gateway.target, on_desired=later.put)
    assert later.get(timeout=PATIENCE) == Desired(generation=2, pause=True)


def test_a_callback_that_fails_does_not_end_the_session(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    def broken(_: Desired) -> None:
        raise RuntimeError("the caller's fault")

    gateway = start_gateway()
    worker = start_worker(gateway.target, on_desired=broken)
    worker.emit("run_started")
    assert worker.session.close(PATIENCE)
    assert gateway.runs[RUN].names == ["run_started"]
    assert len(gateway.runs[RUN].registrations) == 1


def test_a_worker_restarted_on_the_same_log_goes_on_with_its_numbers(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    first = start_worker(gateway.target)
    first.emit("run_started")
    assert first.session.close(PATIENCE)
    first.emit("heartbeat")  # written after the session had ended: only the log has it
    first.log.close()

    second = start_worker(gateway.target)
    second.emit("run_completed")
    assert second.session.close(PATIENCE)
    run = gateway.runs[RUN]
    assert list(zip(run.numbers, run.names, strict=True)) == [
        (1, "run_started"),
        (2, "heartbeat"),
        (3, "run_completed"),
    ]
    assert run.duplicates == 0


def test_a_lost_volume_starts_a_new_log_and_nothing_of_it_is_taken_for_a_duplicate(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    first = start_worker(gateway.target)
    for _ in range(3):
        first.emit("heartbeat")
    assert first.session.close(PATIENCE)

    second = start_worker(gateway.target, log_name="fresh.jsonl", start=False)
    for _ in range(5):  # the new log is longer than the old one by the time it connects
        second.emit("note")
    second.session.start()
    assert second.session.close(PATIENCE)
    assert gateway.runs[RUN].names == ["heartbeat"] * 3 + ["note"] * 5


def test_close_on_a_session_with_nothing_to_say_waits_for_the_handshake_only(
    start_gateway: Callable[..., LocalGateway], start_worker: Callable[..., Any]
) -> None:
    gateway = start_gateway()
    worker = start_worker(gateway.target)
    assert worker.session.close(PATIENCE)
    assert worker.session.state is State.CLOSED


@pytest.mark.parametrize(("asked", "kept"), [(17.5, 17.5), (1e9, 300.0), (math.inf, 300.0)])
def test_a_gateway_says_how_often_it_has_use_for_figures(
    start_worker: Callable[..., Any], asked: float, kept: float
) -> None:
    class Busy(LocalGateway):
        def Attend(self, request_iterator: Iterator[pb.Up], context: Any) -> Iterator[pb.Down]:  # noqa: N802
            yield pb.Down(pace=pb.Pace(next_seconds=asked, every_seconds=asked))
            yield from super().Attend(request_iterator, context)

    gateway = Busy().start()
    try:
        worker = start_worker(gateway.target)
        assert worker.session.pace is None, "its own default"
        deadline = time.monotonic() + PATIENCE
        while worker.session.pace is None and time.monotonic() < deadline:
            time.sleep(0.01)
        first, every = worker.session.pace
        assert every == kept, "no gateway silences a worker for long"
        assert 0 < first - time.monotonic() <= kept
    finally:
        gateway.stop()

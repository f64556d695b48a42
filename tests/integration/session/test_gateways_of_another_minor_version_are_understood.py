"""An operator is upgraded or rolled back under its workers: those of the other minor version keep telling it everything."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

from skew import newer, older

from cleanrl_protocol import podconfig
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.localgateway import LocalGateway

RUN = "01JD0000000000000000000000"
PATIENCE = 30.0


class NewerGateway(LocalGateway):
    """Answers with fields that this worker does not know, and says a kind of thing that it does not know either."""

    def RegisterWorker(self, request: pb.RegisterWorkerRequest, context: Any) -> pb.RegisterWorkerReply:  # noqa: N802
        reply = super().RegisterWorker(request, context)
        reply.accepted_version = "MOSAIC/1.1"
        return newer(reply)

    def Attend(self, request_iterator: Iterator[pb.Up], context: Any) -> Iterator[pb.Down]:  # noqa: N802
        for message in super().Attend(request_iterator, context):
            yield newer(pb.Down())
            yield newer(message)


class OlderGateway(LocalGateway):
    """Knows nothing of credits at the handshake, of log epochs and of heartbeat intervals."""

    def RegisterWorker(self, request: pb.RegisterWorkerRequest, context: Any) -> pb.RegisterWorkerReply:  # noqa: N802
        reply = super().RegisterWorker(older(request, "log_epoch", "capabilities_json"), context)
        return older(reply, "heartbeat_seconds", "desired")


def heard(gateway: LocalGateway, start_worker: Callable[..., Any]) -> None:
    """A worker tells this gateway everything, and hears what its owner wants."""
    wishes: queue.Queue[Any] = queue.Queue()
    try:
        worker = start_worker(gateway.target, on_desired=wishes.put)
        worker.emit("run_started")
        assert worker.session.wait_registered(PATIENCE)
        gateway.want(RUN, pause=True)
        while not wishes.get(timeout=PATIENCE).pause:
            pass
        worker.emit("run_paused")
        assert worker.session.close(PATIENCE)
        assert gateway.runs[RUN].names == ["run_started", "run_paused"]
        assert len(gateway.runs[RUN].registrations) == 1, "nothing made it connect again"
    finally:
        gateway.stop()


def test_a_newer_gateway(start_worker: Callable[..., Any]) -> None:
    heard(NewerGateway().start(), start_worker)


def test_an_older_gateway(start_worker: Callable[..., Any]) -> None:
    heard(OlderGateway().start(), start_worker)


def test_a_newer_operators_pod_config_is_read() -> None:
    class Later(podconfig.PodConfig):
        policy_registry: str = "https://registry.example"

    config = podconfig.decode(podconfig.encode(Later(run_id=RUN, worker_config={"algo": "ppo"})))
    assert (config.run_id, config.worker_config) == (RUN, {"algo": "ppo"})

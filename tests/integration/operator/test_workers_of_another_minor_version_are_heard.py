"""Runs outlive upgrades: this operator and a worker one minor version older or newer finish a run together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from skew import newer, older

from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.events import encode
from cleanrl_worker import session
from cleanrl_worker.session import Worker

ADDED_SINCE_MOSAIC = ("algo", "env_id", "extras_json", "capabilities_json", "attempt", "last_number", "log_epoch")


def newer_request(worker: Worker, last_number: int, log_epoch: int) -> pb.RegisterWorkerRequest:
    request = REQUEST(worker, last_number, log_epoch)
    request.proto_version = "MOSAIC/1.1"
    return newer(request)


def older_request(worker: Worker, last_number: int, log_epoch: int) -> pb.RegisterWorkerRequest:
    return older(REQUEST(worker, last_number, log_epoch), *ADDED_SINCE_MOSAIC)


def newer_event(event: dict[str, Any], after: int) -> pb.Event:
    """Every event with an unknown field; one kind with a body that only later versions have."""
    message = encode(event, after)
    if message.name == "policy_published":
        message.ClearField("lifecycle")
    return newer(message)


REQUEST = Worker.request


@pytest.mark.parametrize("request_of", [newer_request, older_request])
def test_a_run_is_followed_to_its_end(lab: Any, monkeypatch: pytest.MonkeyPatch, request_of: Any) -> None:
    name = request_of.__name__.replace("_", "-")
    monkeypatch.setattr(Worker, "request", request_of)
    if request_of is newer_request:
        monkeypatch.setattr(session, "encode", newer_event)
    lab.create(name)
    worker = lab.execute(name)
    worker.emit("policy_published", where="a registry that this operator has never heard of")
    last = worker.checkpoint(500)
    worker.scalars(600, **{"charts/episodic_return": 21.0})
    assert worker.session.close(20), "what came after the unknown was taken too"
    assert worker.session.acknowledged >= last
    assert worker.session.reconnects == 0, "nothing it sent was refused"
    plain = lab.record
    monkeypatch.setattr(lab, "record", lambda *of, **fields: with_news(plain(*of, **fields)))
    lab.end_pod(name, outcome="completed", checkpoint=1000, last_step=1000)
    status = lab.until(name, fsmState="TERM")
    assert status["outcome"] == "completed"
    assert status["checkpoint"]["step"] == 1000
    assert lab.walked(name) == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]


def with_news(record: str) -> str:
    """A termination record with a field that only later versions have."""
    return json.dumps({**json.loads(record), "policyRegistry": {"later": True}})

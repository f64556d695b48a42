"""A worker is a tenant's program. Whatever it says, the run's status stays one that the API server takes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cleanrl_operator.api.status import State, Status
from cleanrl_operator.facts import Facts, PodFacts, PodSituation
from cleanrl_operator.fsm import decide
from cleanrl_operator.gateway.identity import NotProven, SessionTokens
from cleanrl_operator.gateway.sessions import SessionBook
from cleanrl_operator.observe import finished_manifest, observe_pod
from cleanrl_operator.run import ATTEMPT_LABEL, Run
from fuzzing import HOSTILE_JSON, HOSTILE_TEXT, budget
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.events import BadEvent, Received, decode, encode, epoch_micros
from cleanrl_protocol.podconfig import BadPodConfig
from cleanrl_protocol.podconfig import decode as decode_config
from cleanrl_protocol.record import TerminationRecord, dump

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMES = st.floats(0, allow_nan=False) | st.sampled_from([0.0, 2.0**37, 253402300800.0, 2.0**40, 1e300])
WORDS = st.sampled_from(["run_started", "run_paused", "run_resumed", "wandb_linked", "stage_started", "run_completed"])


def run(**status: Any) -> Run:
    body = {
        "metadata": {
            "namespace": "ns", "name": "run", "uid": "u1", "generation": 3,
            "resourceVersion": "5", "creationTimestamp": NOW.isoformat(),
        },
        "spec": {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10, "maxWallclockMinutes": 60},
        "status": {"podUID": "p1", "attempt": 1, "fsmState": "HSHK", **status},
    }  # fmt: skip
    return Run.parse(body)


def numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int):
        yield value


def storable(status: Status) -> dict[str, Any]:
    """The status as the API server would be asked to take it: what its schema refuses fails here."""
    dumped = json.loads(json.dumps(status.dump(), allow_nan=False))
    Status.model_validate(dumped)
    assert all(abs(number) < 2**63 for number in numbers(dumped)), "a number that no API server takes"
    return dict(dumped)


@st.composite
def events(draw: Any) -> pb.Up:
    event = pb.Event(
        number=draw(st.integers(0, 12) | st.integers(0, 2**64 - 1)),
        after=draw(st.integers(0, 12) | st.integers(0, 2**64 - 1)),
        timestamp=draw(TIMES | st.floats()),
        name=draw(WORDS | st.sampled_from(["scalars", "checkpoint_saved", "heartbeat"]) | st.text(max_size=140)),
    )
    body = draw(st.sampled_from(["lifecycle", "heartbeat", "scalars", "checkpoint", "none"]))
    counts = st.integers(0, 2**64 - 1)
    if body == "scalars":
        event.name = draw(st.just("scalars") | st.just(event.name))
        event.scalars.CopyFrom(
            pb.Scalars(step=draw(counts), total=draw(counts), steps_per_second=draw(st.floats()), episodes=draw(counts))
        )
        for name, value in draw(st.dictionaries(st.text(max_size=20), st.floats(), max_size=5)).items():
            event.scalars.values[name] = value
        event.scalars.values["charts/episodic_return"] = draw(st.floats())
    elif body == "checkpoint":
        event.name = draw(st.just("checkpoint_saved") | st.just(event.name))
        text = HOSTILE_TEXT.map(lambda value: value.encode(errors="replace").decode())
        event.checkpoint.CopyFrom(
            pb.Checkpoint(path=draw(text), step=draw(counts), bytes=draw(counts), seconds=draw(st.floats()))
        )
        event.checkpoint.sha256 = draw(text | st.just("f" * 64) | st.just("z" * 64))
    elif body != "none":
        payload = draw(
            HOSTILE_JSON | st.dictionaries(st.sampled_from(["attempt", "url", "name", "summary"]), HOSTILE_JSON)
        )
        text = json.dumps(payload, default=str) if draw(st.booleans()) else draw(st.text(max_size=50))
        getattr(event, body).payload_json = text.encode(errors="replace").decode()
    return pb.Up(event=event)


def heard(message: bytes) -> Received | None:
    try:
        up = pb.Up.FromString(message)
        return decode(up.event) if up.WhichOneof("body") == "event" else None
    except (DecodeError, BadEvent):
        return None


@budget(200)
@given(
    said=st.lists(events().map(lambda up: up.SerializeToString()) | st.binary(max_size=60), max_size=12),
    last_number=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**64 - 1),
    worker=HOSTILE_TEXT.map(lambda value: value.encode(errors="replace").decode()),
)
def test_any_conversation_leaves_a_status_that_can_be_stored(
    said: list[bytes], last_number: int, epoch: int, worker: str
) -> None:
    current, now = run(), NOW
    book = SessionBook(lambda _key: None, lambda: 0.0)
    request = pb.RegisterWorkerRequest(worker_id=worker, last_number=last_number, log_epoch=epoch, supports_pause=True)
    session, _ = book.register(current, "p1", request)
    reached = 0
    for message in said:
        event = heard(message)
        if event is None:
            continue
        before = session.ledger.acknowledged
        book.take(session, event)
        reached = max(reached, event.number)
        assert before <= session.ledger.acknowledged <= max(before, reached), "nothing is acknowledged that never came"
        now += timedelta(seconds=1)
        facts = Facts(pod=PodFacts(PodSituation.RUNNING, uid="p1", since=NOW), session=book.facts(current))
        decision = decide(current.spec, current.status, facts, now, generation=3, run_id="01RUN")
        assert decision.status.fsm_state in (State.HSHK, State.RDY, State.EXEC, State.PAUSE), "words alone end no run"
        stored = storable(decision.status)
        checkpoint = stored.get("checkpoint")
        assert checkpoint is None or (".." not in checkpoint["path"].split("/") and checkpoint["path"][0] != "/")
        current = run(**stored)
        book.written(current, current.status)


@budget(100)
@given(timestamp=TIMES)
def test_both_ends_name_a_log_alike_whatever_its_clock_said(timestamp: float) -> None:
    line = {"event": "note", "payload": {}, "seq": 1, "timestamp": timestamp}
    assert epoch_micros(decode(encode(line, 0)).timestamp) == epoch_micros(timestamp)


def ended(message: str) -> dict[str, Any]:
    end = {"exitCode": 0, "reason": "Completed", "startedAt": "2026-01-01T00:00:00Z", "message": message}
    container = {"name": "worker", "state": {"terminated": end}}
    sidecar = {"name": "tensorboard", "state": {"terminated": end}}
    return {
        "metadata": {
            "name": "pod", "namespace": "ns", "uid": "p1", "labels": {ATTEMPT_LABEL: "1"},
            "ownerReferences": [{"uid": "u1", "controller": True}],
        },
        "status": {"phase": "Succeeded", "containerStatuses": [container], "initContainerStatuses": [sidecar]},
    }  # fmt: skip


RECORD = json.loads(dump(TerminationRecord(run_id=run().run_id, attempt=1, outcome="completed", last_event=3)))
CHANGED = st.dictionaries(
    st.sampled_from(
        [*RECORD, "checkpoint", "transitions", "lastStep", "wandbUrl", "reason", "message", "manifestSha256"]
    ),
    HOSTILE_JSON
    | st.fixed_dictionaries({"path": HOSTILE_TEXT, "step": st.integers(), "sha256": st.just("f" * 64)})
    | st.lists(st.fixed_dictionaries({"state": st.sampled_from(["RDY", "EXEC"]), "at": TIMES}), max_size=3),
    max_size=3,
).map(lambda changes: json.dumps({**RECORD, **changes}, default=str))


@budget(200)
@given(message=CHANGED | st.text(max_size=200) | HOSTILE_JSON.map(lambda value: json.dumps(value, default=str)))
def test_any_termination_message_leads_to_a_status_that_can_be_stored(message: str) -> None:
    pod = ended(message)
    facts = Facts(pod=observe_pod(run(), pod))
    decision = decide(run().spec, run().status, facts, NOW + timedelta(hours=1), generation=3, run_id="01RUN")
    assert decision.status.fsm_state in (State.TERM, State.FAULT), "the end of a pod is never overlooked"
    storable(decision.status)
    digest = finished_manifest(pod)
    assert digest is None or len(digest) == 64


@pytest.mark.parametrize("at", [2.0**38, 2.0**39, 253402300800.0])
def test_a_record_from_beyond_the_calendar_is_no_record(at: float) -> None:
    message = json.dumps({**RECORD, "transitions": [{"state": "EXEC", "at": at}]})
    assert "not a record" in (observe_pod(run(), ended(message)).end or pytest.fail("no end")).message


@example(token=base64.urlsafe_b64encode("run|pod|99999999999|é".encode()).decode())
@budget(200)
@given(token=HOSTILE_TEXT | st.binary(max_size=80).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_any_session_token_is_proven_or_refused(token: str) -> None:
    with pytest.raises(NotProven):
        SessionTokens(b"k" * 32).verify(token)


@budget(100)
@given(text=st.text(max_size=200) | HOSTILE_JSON.map(lambda value: json.dumps(value, default=str)))
def test_any_pod_config_is_refused_with_a_sentence(text: str) -> None:
    for each in (text, f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()}\n{text}"):
        with pytest.raises(BadPodConfig):
            decode_config(each)

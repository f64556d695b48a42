"""Sessions as facts: where a restarted gateway goes on, what is acknowledged when, and who is let go."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from cleanrl_operator.api.status import ProgressStatus
from cleanrl_operator.cache import Cache
from cleanrl_operator.decision import Desired
from cleanrl_operator.facts import Facts, PodFacts, PodSituation
from cleanrl_operator.fsm import decide
from cleanrl_operator.gateway.service import GatewayService
from cleanrl_operator.gateway.sessions import HEARTBEAT_SECONDS, TAKEOVER_GRACE, SessionBook
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.events import Received

NOW = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
REQUEST = pb.RegisterWorkerRequest(supports_pause=True, last_number=9, log_epoch=7)


def run(spec: dict[str, Any] | None = None, **status: Any) -> Run:
    body = {
        "metadata": {
            "namespace": "ns", "name": "run", "uid": "u1", "generation": 3,
            "resourceVersion": "5", "creationTimestamp": NOW,
        },
        "spec": {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10, **(spec or {})},
        "status": {"podUID": "p1", "attempt": 1, "fsmState": "EXEC", **status},
    }  # fmt: skip
    return Run.parse(body)


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def book(clock: list[float]) -> SessionBook:
    opened = SessionBook(lambda _key: None, lambda: clock[0])
    opened.open()
    return opened


def event(number: int, name: str = "note") -> Received:
    return Received(number, number - 1, 1.0, name, {})


def test_a_paused_worker_is_not_woken_by_a_restart(book: SessionBook) -> None:
    stored = {"registeredAt": NOW, "lastEvent": 5, "logEpoch": 7}
    session, acknowledged = book.register(run({"pause": True}, fsmState="PAUSE", session=stored), "p1", REQUEST)
    assert acknowledged == 5
    assert session.desired == Desired(pause=True)
    assert session.facts.paused
    assert session.generation == 3


STAGED: dict[str, tuple[dict[str, Any], str, float]] = {
    "of steps": ({"mode": "curriculum", "curriculum": {"preset": "babyai-goto"}, "pause": True}, "PAUSE", 60.0),
    "of phases": ({"mode": "script", "script": {"path": "/opt/phases.sh"}}, "EXEC", 50.0),
}
"""By what its share is of: the spec, the state, and the share after one step more."""


@pytest.mark.parametrize("which", STAGED)
def test_a_restart_takes_nothing_back_of_what_was_told_of_a_run_with_stages(book: SessionBook, which: str) -> None:
    spec, state, share = STAGED[which]
    told = {
        "step": 5,
        "percent": 50.0,
        "stage": "2/4 B",
        "episodicReturn": 0.5,
        "stepsPerSecond": 3.0,
        "updatedAt": NOW,
    }
    stored = {"registeredAt": NOW, "lastEvent": 9, "logEpoch": 7}
    step = {"from": "RDY", "to": state, "at": NOW, "attempt": 1, "reason": "RunStarted"}
    known = run(spec, fsmState=state, session=stored, progress=told, execStartedAt=NOW, transitions=[step])
    session, _ = book.register(known, "p1", REQUEST)

    def progress() -> ProgressStatus | None:
        facts = Facts(pod=PodFacts(PodSituation.RUNNING, uid="p1"), session=book.facts(known))
        return decide(known.spec, known.status, facts, datetime.now(UTC), generation=3, run_id="r").status.progress

    assert progress() == known.status.progress
    figures = {"step": 6, "total": 0, "sps": 1.0, "episodes": 1, "values": {}}
    book.take(session, Received(10, 9, 1.0, "scalars", figures))
    newer = progress()
    assert newer is not None
    assert (newer.step, newer.stage, newer.percent) == (6, "2/4 B", share)


@pytest.mark.parametrize("heard", [True, False])
def test_a_failed_checkpoint_is_remembered_until_the_next_one(book: SessionBook, heard: bool) -> None:
    condition = {
        "type": "CheckpointFailed", "status": "True", "reason": "CheckpointFailed", "message": "No space left.",
        "observedGeneration": 3, "lastTransitionTime": NOW,
    }  # fmt: skip
    stored = {"lastEvent": 5, "logEpoch": 7, **({"registeredAt": NOW} if heard else {})}
    session, _ = book.register(run(conditions=[condition], session=stored), "p1", REQUEST)
    assert session.facts.checkpoint_failure == ("No space left." if heard else ""), "else it is of the attempt before"


def test_a_worker_that_was_asked_to_stop_hears_it_from_the_next_gateway_too(book: SessionBook) -> None:
    session, _ = book.register(run({"suspend": True}, stopRequestedAt=NOW), "p1", REQUEST)
    assert session.desired == Desired(stop=True, stop_reason="suspend")


def test_new_figures_are_heard_of_and_wait_for_nothing() -> None:
    talked: list[tuple[str, str]] = []

    def hear(key: tuple[str, str], _every: float) -> None:
        talked.append(key)

    book = SessionBook(lambda _key: None, talked=hear)
    session, _ = book.register(run(), "p1", REQUEST)
    figures = {"step": 5, "total": 10, "sps": 1.0, "episodes": 1, "values": {}}
    for number in (1, 1, 2):
        book.take(session, Received(number, number - 1, 1.0, "scalars", figures))
    assert talked == [("ns", "run")] * 2, "what came twice is no news"
    book.take(session, event(3, "heartbeat"))
    assert len(talked) == 2
    assert not book.awaits(run())


def test_what_must_be_stored_is_acknowledged_only_then(book: SessionBook) -> None:
    current = run()
    session, _ = book.register(current, "p1", REQUEST)
    book.take(session, event(1, "run_started"))
    assert session.ledger.acknowledged == 0
    assert book.awaits(current)
    stored = run(session={"lastEvent": 1, "logEpoch": 7})
    book.written(current, stored.status)
    assert session.ledger.acknowledged == 1
    assert not book.awaits(stored)
    book.take(session, event(2, "heartbeat"))
    assert session.ledger.acknowledged == 2, "a heartbeat waits for nothing"
    assert not book.awaits(stored)


@pytest.mark.parametrize("status", [{"fsmState": "TERM"}, {"podUID": None}, {"podUID": "p2"}])
def test_a_worker_that_the_run_has_no_use_for_is_let_go(book: SessionBook, status: dict[str, Any]) -> None:
    session, _ = book.register(run(), "p1", REQUEST)
    book.written(run(), run(**status).status)
    assert book.is_over(session)
    assert len(book) == 0


def test_scalars_without_a_credit_are_dropped(book: SessionBook) -> None:
    session, _ = book.register(run(), "p1", REQUEST)
    payload = {"step": 1, "total": 10, "sps": 1.0, "values": {}}
    for number in range(1, limits.INITIAL_CREDITS + 3):
        book.take(session, Received(number, number - 1, 1.0, "scalars", payload))
    assert book.arrivals["overspent"] == 2


def test_nobody_is_late_right_after_the_gateway_came(book: SessionBook, clock: list[float]) -> None:
    book.register(run(), "p1", REQUEST)
    clock[0] = TAKEOVER_GRACE - 1
    assert book.facts(run()).late_seconds == 0
    clock[0] = TAKEOVER_GRACE + 100
    assert book.facts(run()).late_seconds == pytest.approx(TAKEOVER_GRACE + 100 - HEARTBEAT_SECONDS)


def test_a_worker_that_does_not_come_back_to_the_next_gateway_is_late(book: SessionBook, clock: list[float]) -> None:
    known = run(session={"registeredAt": NOW, "lastEvent": 5})
    clock[0] = TAKEOVER_GRACE - 1
    assert book.unheard(known) == 0
    clock[0] = TAKEOVER_GRACE + 100
    assert book.unheard(known) == pytest.approx(TAKEOVER_GRACE + 100 - HEARTBEAT_SECONDS)
    assert book.unheard(run(session={"lastEvent": 5})) == 0, "one that has never registered may be on its way"
    assert book.unheard(run(podUID=None, session={"registeredAt": NOW})) == 0, "it has left"
    book.register(known, "p1", REQUEST)
    assert book.unheard(known) == 0, "here it is"


class Secrets:
    """An API server that keeps what it is given."""

    async def get(self, _path: str) -> None:
        return None

    async def keep(self, _method: str, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        return body


def test_a_standby_that_waited_for_long_gives_workers_time_to_come(clock: list[float]) -> None:
    known, hour = run(session={"registeredAt": NOW, "lastEvent": 5}), 3600.0

    async def scene() -> None:
        book = SessionBook(lambda _key: None, lambda: clock[0])
        settings = Settings(gateway_target="localhost:1", gateway_port=0)
        service = GatewayService(Secrets(), settings, book, Cache(), lambda: datetime.now(UTC))  # type: ignore[arg-type]
        clock[0] = hour
        assert book.unheard(known) == 0, "nobody can be heard before the gateway listens"
        await service.start()
        clock[0] = hour + TAKEOVER_GRACE - 1
        assert book.unheard(known) == 0
        clock[0] = hour + TAKEOVER_GRACE + 100
        assert book.unheard(known) == pytest.approx(TAKEOVER_GRACE + 100 - HEARTBEAT_SECONDS)
        await service.stop()

    asyncio.run(scene())

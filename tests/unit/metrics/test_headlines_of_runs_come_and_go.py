"""The operator's figures of single runs: who has some, what they say, when they are gone, and what is counted for good."""

from __future__ import annotations

from typing import Any

import pytest
from cleanrl_operator.api.status import Outcome, State, Status
from cleanrl_operator.facts import EndReason
from cleanrl_operator.metrics import (
    HEADLINE_SECONDS,
    MOST_HEADLINES,
    Headlines,
    Spoken,
    Tally,
    headline,
    headline_text,
)
from prometheus_client.parser import text_string_to_metric_families

BEGIN = 1_767_225_600.0  # 2026-01-01T00:00:00Z
LABELS = ("ns", "run", "ppo", "CartPole-v1")


def run(name: str = "run", state: str = "EXEC", spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"},
        "spec": {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 200, **(spec or {})},
        "status": {"fsmState": state, **status},
    }


def said(**figures: float) -> dict[str, Spoken]:
    return {"uid-run": Spoken({name.replace("__", "/"): value for name, value in figures.items()}, 3.0)}


def test_a_worker_is_shown_as_it_speaks() -> None:
    shown = Headlines(lambda: BEGIN).collect([run()], said(step=50.0, sps=9.5, charts__episodic_return=12.5))
    assert shown == {
        LABELS: {
            "executing": 1, "faulted": 0, "return": 12.5, "sps": 9.5, "step": 50, "progress": 0.25, "retries": 0,
            "silence": 3.0, "gpus": 0,
        }
    }  # fmt: skip


def test_without_a_session_the_status_speaks() -> None:
    body = run(progress={"step": 100, "stepsPerSecond": 7.0, "episodicReturn": 3.0}, retries=2)
    figures = Headlines(lambda: BEGIN).collect([body], {})[LABELS]
    assert (figures["step"], figures["sps"], figures["return"], figures["progress"]) == (100, 7.0, 3.0, 0.5)
    assert figures["retries"] == 2
    assert "silence" not in figures, "nobody has a heartbeat to be late with"


def test_a_headline_stays_for_five_minutes_after_the_end_and_keeps_its_last_return() -> None:
    now = [BEGIN]
    board = Headlines(lambda: now[0])
    board.collect([run()], said(charts__episodic_return=12.5, sps=5.0))
    ended = [run(state="TERM", outcome="completed", finishedAt="2026-01-01T00:00:00.250000Z")]
    now[0] = BEGIN + HEADLINE_SECONDS - 2
    figures = board.collect(ended, {})[LABELS]
    assert (figures["return"], figures["executing"], figures["faulted"]) == (12.5, 0, 0)
    assert "sps" not in figures, "what has ended has no speed"
    now[0] = BEGIN + HEADLINE_SECONDS + 2
    assert board.collect(ended, {}) == {}
    assert Headlines(lambda: now[0]).collect(ended, {}) == {}, "a restart does not bring it back"


def test_a_deleted_run_is_gone_at_once_and_forgotten() -> None:
    board = Headlines(lambda: BEGIN)
    board.collect([run()], said(charts__episodic_return=1.0))
    assert board.collect([], {}) == {}
    assert "return" not in board.collect([run()], {})[LABELS]


def test_the_number_is_bounded_and_live_runs_come_first() -> None:
    board = Headlines(lambda: BEGIN)
    ended = [run(f"ended{number}", "TERM", finishedAt="2026-01-01T00:00:00Z") for number in range(40)]
    live = [run(f"live{number}") for number in range(MOST_HEADLINES - 10)]
    shown = board.collect([*ended, *live], {})
    assert len(shown) == MOST_HEADLINES
    assert sum(labels[1].startswith("live") for labels in shown) == MOST_HEADLINES - 10
    assert board.left_out == 30


@pytest.mark.parametrize(
    ("state", "outcome", "faulted"),
    [("FAULT", None, 1), ("TERM", "failed", 1), ("TERM", "canceled", 0), ("INIT", None, 0), ("PAUSE", None, 0)],
)
def test_faulted_is_a_fault_or_a_failure(state: str, outcome: str | None, faulted: int) -> None:
    assert headline(run(state=state, outcome=outcome), {}, None)["faulted"] == faulted


def test_checkpoints_are_owed_only_while_the_run_executes() -> None:
    spec = {"checkpoint": {"everySeconds": 300}}
    status = {"execStartedAt": "2026-01-01T00:00:00Z"}
    figures = headline(run(spec=spec, **status), {}, None)
    assert (figures["checkpoint"], figures["interval"]) == (BEGIN, 300), "before the first, the start counts"
    status["checkpoint"] = {"time": "2026-01-01T00:10:00Z"}  # type: ignore[assignment]
    assert headline(run(spec=spec, **status), {}, None)["checkpoint"] == BEGIN + 600
    assert "checkpoint" not in headline(run(state="PAUSE", spec=spec, **status), {}, None)
    assert "interval" not in headline(run(spec={"checkpoint": {"everySeconds": 0}}, **status), {}, None)


@pytest.mark.parametrize(
    ("status", "gpus"),
    [
        ({"podUID": "p"}, 2),
        ({}, 0),
        ({"podUID": "p", "gpuFallback": True}, 0),
        ({"podUID": "p", "state": "TERM"}, 0),
    ],
)
def test_gpus_are_held_by_a_pod(status: dict[str, Any], gpus: int) -> None:
    state = status.pop("state", "EXEC")
    spec = {"resources": {"gpus": {"requested": 2}}}
    assert headline(run(state=state, spec=spec, **status), {}, None)["gpus"] == gpus


def test_odd_figures_are_left_out() -> None:
    body = run(progress={"step": "many", "episodicReturn": float("nan")}, execStartedAt="yesterday")
    assert headline(body, {"sps": float("inf")}, None).keys() == {"executing", "faulted", "retries", "gpus"}
    assert Headlines(lambda: BEGIN).collect([{"metadata": {}, "spec": None, "status": None}], {}) == {}


def test_endings_and_faults_are_counted_once_and_without_names() -> None:
    tally = Tally()
    executing = Status(fsm_state=State.EXEC)
    faulted = Status(fsm_state=State.FAULT, reason=EndReason.OOM_KILLED)
    failed = Status(fsm_state=State.TERM, outcome=Outcome.FAILED, reason=EndReason.OOM_KILLED)
    tally.moved(executing, faulted)
    tally.moved(faulted, failed)
    tally.moved(executing, failed)
    tally.moved(executing, Status(fsm_state=State.FAULT, reason="a tenant's own word"))
    tally.moved(executing, Status(fsm_state=State.TERM, outcome=Outcome.COMPLETED, reason="Completed"))
    tally.moved(Status(), Status(fsm_state=State.INIT))
    assert tally.finished == {"completed": 1, "failed": 2, "canceled": 0, "deadline_exceeded": 0}
    assert {reason: count for reason, count in tally.faults.items() if count} == {"OOMKilled": 2, "Other": 1}


def test_the_page_is_what_a_parser_reads() -> None:
    """Names that need escaping arrive as they were, and the figures exactly."""
    odd = 'qu"ote\\back\nline'
    shown = {("ns", "a", "ppo", odd): {"return": 0.1, "step": 1e18}, ("ns", "b", "ppo", "e"): {"return": -3.0}}
    families = {each.name: each for each in text_string_to_metric_families(headline_text(shown).decode())}
    samples = {sample.labels["run"]: sample for sample in families["cleanrl_run_episodic_return"].samples}
    assert samples["a"].labels == {"namespace": "ns", "run": "a", "algo": "ppo", "env": odd}
    assert {run: sample.value for run, sample in samples.items()} == {"a": 0.1, "b": -3.0}
    assert [sample.value for sample in families["cleanrl_run_step"].samples] == [1e18]
    assert all(family.documentation and family.type == "gauge" for family in families.values())

"""What resume and evaluation found is kept per algorithm, and counts only for the source that was checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from cleanrl_worker.tools import coverage_matrix, smoke_record

LAUNCH = smoke_record.SmokeRecord(
    algo="dqn",
    env_id="CartPole-v1",
    outcome="completed",
    payload={},
    command=[],
    handshake={},
    events=[],
    artifacts=[],
    updates=2,
    update_tag="losses/td_loss",
    steps=500,
    steps_per_second=1.0,
    seconds=1.0,
)


def page(folder: Path) -> str:
    return coverage_matrix.render([LAUNCH], {"dqn": smoke_record.read_check(folder, "dqn")})


def test_a_source_counts_as_checked_when_both_were_seen(tmp_path: Path) -> None:
    assert coverage_matrix.checked_sources(page(tmp_path)) == {}
    smoke_record.note_check(tmp_path, "dqn", "resume", "bitwise")
    assert coverage_matrix.checked_sources(page(tmp_path)) == {}
    smoke_record.note_check(tmp_path, "dqn", "evaluation", "plays")
    assert coverage_matrix.checked_sources(page(tmp_path)) == {"dqn": smoke_record.source_digest("dqn")}
    assert "| bitwise | plays |" in page(tmp_path)


def test_one_failure_is_not_made_good_by_another_success(tmp_path: Path) -> None:
    smoke_record.note_check(tmp_path, "dqn", "evaluation", "plays")
    smoke_record.note_check(tmp_path, "dqn", "resume", smoke_record.FAILED)
    smoke_record.note_check(tmp_path, "dqn", "resume", "bitwise")
    assert coverage_matrix.checked_sources(page(tmp_path)) == {}
    assert "| FAILED | plays |" in page(tmp_path)


def test_a_changed_source_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke_record.note_check(tmp_path, "dqn", "resume", smoke_record.FAILED)
    monkeypatch.setattr(smoke_record, "source_digest", lambda _: "another")
    smoke_record.note_check(tmp_path, "dqn", "resume", "bitwise")
    assert smoke_record.read_check(tmp_path, "dqn") == {"source": "another", "resume": "bitwise"}

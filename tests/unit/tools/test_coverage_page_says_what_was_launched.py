from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.tools import coverage_matrix, schemas, smoke_record
from cleanrl_worker.tools.smoke_record import SmokeRecord


def launch(**facts: Any) -> SmokeRecord:
    base = SmokeRecord(
        algo="ppo",
        env_id="CartPole-v1",
        outcome="completed",
        payload={"algo": "ppo"},
        command=["-m", "cleanrl_worker.cli"],
        handshake={"run_id": "r"},
        events=["run_started", "run_completed"],
        artifacts=["analytics.json"],
        updates=2,
        update_tag="losses/policy_loss",
        steps=512,
        steps_per_second=100.4,
        seconds=5.0,
        date="2030-01-02T03:04:05+00:00",
        commit="abc",
    )
    return dataclasses.replace(base, **facts)


def row(page: str, algo: str) -> list[str]:
    return next(line for line in page.splitlines() if line.startswith(f"| {algo} |")).strip("| ").split(" | ")


def test_every_registered_name_has_a_row_and_unlaunched_ones_say_so() -> None:
    page = coverage_matrix.render([launch()])
    assert len(DEFAULT_ALGO_REGISTRY) == 34
    for algo in DEFAULT_ALGO_REGISTRY:
        assert f"| {algo} |" in page
    assert page.count("not launched") == 33
    assert row(page, "ppo")[:6] == ["ppo", "CartPole-v1", "completed", "2", "512", "100"]
    assert "34 algorithms are registered, 1 were launched" in page
    assert coverage_matrix.claims_of_page(page) == {("ppo", "CartPole-v1", "completed")}


def test_a_failed_launch_is_shown_as_failed_and_not_counted_as_completed() -> None:
    page = coverage_matrix.render([launch(outcome="failed: exit code 3")])
    assert row(page, "ppo")[2] == "failed: exit code 3"
    assert "1 were launched" in page and "and 0 of these completed" in page


def test_records_survive_writing_and_reading(tmp_path: Path) -> None:
    records = [launch(), launch(env_id="ALE/Pong-v5"), launch(algo="dqn")]
    for record in records:
        smoke_record.write(tmp_path, record)
    smoke_record.write(tmp_path, records[0])
    assert sorted(smoke_record.read_all(tmp_path), key=str) == sorted(records, key=str)
    assert smoke_record.read_all(tmp_path / "nothing here") == []


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"version": 1}', '{"version": 9}', '{"version": 1, "surprise": 1}'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(smoke_record.SmokeRecordError, match=r"bad\.json is not a smoke record"):
        smoke_record.read_all(tmp_path)


def test_check_compares_names_environments_and_results_and_not_speeds(tmp_path: Path) -> None:
    records, page = tmp_path / "records", tmp_path / "coverage.md"
    smoke_record.write(records, launch())
    options = ["--records", str(records), "--output", str(page)]
    assert coverage_matrix.main([*options, "--check"]) == 1
    assert coverage_matrix.main(options) == 0
    smoke_record.write(records, launch(steps_per_second=1.0, date="2031"))
    assert coverage_matrix.main([*options, "--check"]) == 0
    smoke_record.write(records, launch(outcome="failed"))
    assert coverage_matrix.main([*options, "--check"]) == 1
    smoke_record.write(records, launch())
    smoke_record.write(records, launch(algo="dqn"))
    assert coverage_matrix.disagreements(page.read_text(), smoke_record.read_all(records)) == [
        "dqn on CartPole-v1 ended 'completed'; the page does not say so"
    ]
    assert json.loads((records / "dqn__CartPole-v1.json").read_text())["algo"] == "dqn"


def test_the_committed_page_has_every_name_and_claims_only_what_is_shipped() -> None:
    page = (schemas.PACKAGE.parent / "docs" / "coverage.md").read_text()
    rows = [line.split(" | ")[0].strip("| ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert sorted(set(rows)) == sorted(DEFAULT_ALGO_REGISTRY)
    launched = {algo for algo, _, _ in coverage_matrix.claims_of_page(page)}
    assert launched <= set(schemas.load_schemas()["algorithms"])

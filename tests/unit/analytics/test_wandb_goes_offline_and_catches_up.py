"""When W&B is kept offline, what is left to upload, and which addresses of runs are believed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from cleanrl_operator.gateway.sessions import url_of

from cleanrl_protocol.record import TerminationRecord, dump, parse
from cleanrl_worker import wandb_mode, wandb_sync

ON = {"track_wandb": True}
KEY = "0123456789abcdef0123456789abcdef01234567"


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_server_that_cannot_be_reached_costs_the_run_nothing(tmp_path: Path) -> None:
    environ = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{closed_port()}"}
    plan = wandb_mode.resolve(ON, environ, tmp_path, "r")
    assert plan.mode == "online"
    plan = wandb_mode.unless_unreachable(plan, ON, environ)
    assert (plan.mode, plan.environment["WANDB_MODE"], plan.uploads_at_end) == ("offline", "offline", True)
    assert "could not be reached" in plan.notes[-1]
    assert KEY not in repr(plan)


def test_without_a_key_nobody_is_asked(tmp_path: Path) -> None:
    plan = wandb_mode.resolve(ON, {"WANDB_BASE_URL": "nonsense"}, tmp_path, "r")
    assert wandb_mode.unless_unreachable(plan, ON, {}) is plan
    assert not plan.uploads_at_end


@pytest.mark.parametrize(
    ("tags", "expected"),
    [(["a", " b "], "a,b"), ("a,b", "a,b"), (["a,b", ""], "a b"), (["x" * 99], "x" * 64), (None, None)],
)
def test_group_and_tags_reach_the_client(tmp_path: Path, tags: object, expected: str | None) -> None:
    plan = wandb_mode.resolve({**ON, "wandb_group": "g", "wandb_tags": tags}, {}, tmp_path, "r")
    assert plan.environment["WANDB_RUN_GROUP"] == "g"
    assert plan.environment.get("WANDB_TAGS") == expected


def test_crash_reports_are_off_unless_asked_for(tmp_path: Path) -> None:
    assert wandb_mode.resolve(ON, {}, tmp_path, "r").environment["WANDB_ERROR_REPORTING"] == "false"
    asked = {"WANDB_ERROR_REPORTING": "true"}
    assert wandb_mode.resolve(ON, asked, tmp_path, "r").environment["WANDB_ERROR_REPORTING"] == "true"


def test_pending_are_offline_runs_that_were_never_uploaded(tmp_path: Path) -> None:
    root = tmp_path / "wandb" / "wandb"
    for name in ("offline-run-20260101_000000-a", "offline-run-20260102_000000-b", "run-20260103_000000-c"):
        (root / name).mkdir(parents=True)
        (root / name / "run-x.wandb").write_text("some records")
    (root / "offline-run-20260102_000000-b" / "run-x.wandb.synced").write_text("")
    (root / "offline-run-20260104_000000-d").mkdir()
    (root / "offline-run-20260106_000000-f").mkdir()
    (root / "offline-run-20260106_000000-f" / "run-x.wandb").write_bytes(b":W&B\x00\x00\x00")  # killed at once
    (root / "offline-run-20260105_000000-e").symlink_to(root / "offline-run-20260101_000000-a")
    assert [path.name for path in wandb_sync.pending(tmp_path)] == ["offline-run-20260101_000000-a"]
    assert (
        wandb_sync.sync(tmp_path, {}).message
        == "W&B keeps the run offline: there is no API key; set WANDB_API_KEY to upload it."
    )
    assert wandb_sync.sync(tmp_path / "nowhere", {}).done


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "http://user:password@host/a",
        "https://host/a b",
        "https://host/\x1b[31m",
        "https://" + "a" * 600,
    ],
)
def test_an_address_that_no_status_should_show_is_left_out(url: str) -> None:
    assert url_of({"url": url}) is None
    with pytest.raises(ValueError, match=r"wandb_?[uU]rl"):
        TerminationRecord(run_id="r", outcome="completed", wandb_url=url)


def test_an_address_travels_in_the_record() -> None:
    url = "https://wandb.example.org/team/cleanRL/runs/r"
    assert url_of({"url": url}) == url
    record = TerminationRecord(run_id="r", outcome="completed", wandb_url=url, message="x" * 2000)
    assert parse(dump(record).decode(), run_id="r", attempt=1).wandb_url == url

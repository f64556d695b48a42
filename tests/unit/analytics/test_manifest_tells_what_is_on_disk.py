"""analytics.json: the keys that readers know, filled with what is really there, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cleanrl_worker import analytics
from cleanrl_worker.analytics import read_json, rebuild_index, refresh_manifest, write_manifest
from cleanrl_worker.training.checkpoints import CheckpointStore

CONFIG: dict[str, Any] = {
    "run_id": "01JD0000000000000000000000",
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 3,
    "total_timesteps": 2048,
    "extras": {"tensorboard_dir": "tensorboard", "notes": "a note"},
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def _write_events(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(folder))
    writer.add_event(Event(step=1))
    writer.close()


def _file(path: Path, content: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _manifest(run_dir: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((run_dir / "analytics.json").read_text())
    return manifest


def test_an_empty_run_has_every_key_and_claims_nothing(run_dir: Path) -> None:
    write_manifest(run_dir, {"run_id": "r"})
    manifest = _manifest(run_dir)
    for key in ("tensorboard_dir", "wandb_run_path", "optuna_db_path", "checkpoints_dir", "notes", "outcome"):
        assert manifest[key] is None, key
    assert manifest["artifacts"]["tensorboard"] == {
        "enabled": False,
        "relative_path": None,
        "event_files": 0,
        "bytes": 0,
    }
    assert {"enabled", "run_path", "entity", "project"} <= set(manifest["artifacts"]["wandb"])
    assert manifest["run_id"] == "r"


def test_what_a_run_leaves_is_found(run_dir: Path) -> None:
    _write_events(run_dir / "tensorboard" / "CartPole-v1__ppo__3__r")
    store = CheckpointStore(run_dir / "checkpoints")
    store.save(100, {"w": np.zeros(3)}, {}, "interval", wait=True)
    store.save(1000, {"w": np.ones(3)}, {}, "final", wait=True)
    assert store.last is not None
    _file(run_dir / "runs" / "CartPole-v1__ppo__3__1" / "ppo.cleanrl_model", b"weights")
    _file(run_dir / "videos" / "rl-video-episode-0.mp4")
    _file(run_dir / "logs" / "cleanrl.stdout.log", b"12345")
    _file(run_dir / "events.jsonl")
    _file(run_dir / "optuna.db")
    digest = write_manifest(
        run_dir,
        CONFIG,
        outcome="completed",
        reason="Completed",
        message="done",
        times={"started": 1.0, "finished": 2.0},
        requirements=["base", "atari"],
        reproducibility={"seed": 3},
    )
    manifest = _manifest(run_dir)
    assert digest == hashlib.sha256((run_dir / "analytics.json").read_bytes()).hexdigest()
    assert (manifest["algo"], manifest["env_id"], manifest["seed"], manifest["outcome"]) == (
        "ppo",
        "CartPole-v1",
        3,
        "completed",
    )
    assert manifest["notes"] == "a note"
    assert manifest["tensorboard_dir"] == "tensorboard"
    assert manifest["artifacts"]["tensorboard"]["enabled"] is True
    assert manifest["artifacts"]["tensorboard"]["event_files"] == 1
    assert manifest["checkpoints_dir"] == "checkpoints"
    checkpoints = manifest["artifacts"]["checkpoints"]
    assert [entry["step"] for entry in checkpoints] == [100, 1000]
    assert checkpoints[1]["sha256"] == store.last.sha256
    assert checkpoints[1]["bytes"] == store.last.bytes
    assert checkpoints[1]["path"] == f"checkpoints/{store.last.path.name}"
    assert manifest["artifacts"]["models"]["files"] == [
        {
            "path": "runs/CartPole-v1__ppo__3__1/ppo.cleanrl_model",
            "bytes": 7,
            "sha256": hashlib.sha256(b"weights").hexdigest(),
        }
    ]
    assert manifest["artifacts"]["videos"]["files"][0]["path"] == "videos/rl-video-episode-0.mp4"
    assert {entry["path"] for entry in manifest["artifacts"]["logs"]["files"]} == {
        "logs/cleanrl.stdout.log",
        "events.jsonl",
    }
    assert manifest["optuna_db_path"] == "optuna.db"
    assert manifest["requirements"] == ["base", "atari"]
    assert manifest["times"] == {"finished": 2.0, "started": 1.0}
    assert manifest["reproducibility"] == {"seed": 3}
    assert str(run_dir) not in json.dumps(manifest), "relative paths only"


def test_event_files_outside_the_configured_folder_are_found_too(run_dir: Path) -> None:
    _write_events(run_dir / "runs" / "a")
    _write_events(run_dir / "runs" / "b")
    write_manifest(run_dir, CONFIG)
    assert _manifest(run_dir)["tensorboard_dir"] == "runs"


@pytest.mark.parametrize("folder", ["curves", "curves/01JD0000000000000000000000"])
def test_curves_outside_of_the_runs_folder_are_named_by_their_absolute_path(
    run_dir: Path, tmp_path: Path, folder: str
) -> None:
    """As in `${VAR_TENSORBOARD_DIR}/${RUN_ID}`, where that variable names a folder for all runs."""
    outside = tmp_path / folder
    config = {**CONFIG, "extras": {"tensorboard_dir": str(outside)}}
    _write_events(tmp_path / "curves" / "CartPole-v1__ppo__3__another")
    write_manifest(run_dir, config)
    assert _manifest(run_dir)["tensorboard_dir"] is None, "nothing of this run is there yet"
    _write_events(outside / f"CartPole-v1__ppo__3__{CONFIG['run_id']}")
    write_manifest(run_dir, config)
    manifest = _manifest(run_dir)
    shown = manifest["artifacts"]["tensorboard"]
    assert manifest["tensorboard_dir"] == shown["relative_path"] == str(outside)
    assert (shown["enabled"], shown["event_files"], shown["bytes"] > 0) == (True, 1, True)
    write_manifest(run_dir, {**config, "tensorboard": False})
    assert _manifest(run_dir)["artifacts"]["tensorboard"]["enabled"] is False


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [("CartPole-v1__ppo__1__seed1", True), ("seed1-eval", True), ("CartPole-v1__dqn__1__dqn-seed1", False)],
)
def test_in_a_folder_for_all_runs_only_the_runs_own_curves_are_its_own(
    run_dir: Path, tmp_path: Path, name: str, is_ours: bool
) -> None:
    _write_events(tmp_path / "curves" / name)
    write_manifest(run_dir, {**CONFIG, "run_id": "seed1", "extras": {"tensorboard_dir": str(tmp_path / "curves")}})
    assert _manifest(run_dir)["artifacts"]["tensorboard"]["event_files"] == int(is_ours)


def test_a_damaged_or_half_deleted_checkpoint_is_left_out(run_dir: Path) -> None:
    (run_dir / "checkpoints" / "step-5").mkdir(parents=True)
    endless = b'{"step": 1e999, "files": {}, "chunks": {}}'
    for step, content in ((6, b"{"), (7, b"[]"), (8, b'{"step": 8}'), (9, b"\xff"), (10, endless)):
        _file(run_dir / "checkpoints" / f"step-{step}" / "manifest.json", content)
    write_manifest(run_dir, CONFIG)
    assert _manifest(run_dir)["artifacts"]["checkpoints"] == []
    odd = b'{"step": 11, "files": {}, "chunks": {}, "reason": ["stop"], "saved_at": NaN}'
    _file(run_dir / "checkpoints" / "step-11" / "manifest.json", odd)
    write_manifest(run_dir, CONFIG)
    (listed,) = _manifest(run_dir)["artifacts"]["checkpoints"]
    assert (listed["step"], listed["reason"], listed["saved_at"]) == (11, None, None)


def test_links_are_not_followed(run_dir: Path, tmp_path: Path) -> None:
    _file(tmp_path / "outside" / "secret.mp4")
    _file(tmp_path / "outside" / "x.cleanrl_model")
    (run_dir / "videos").symlink_to(tmp_path / "outside")
    (run_dir / "link.cleanrl_model").symlink_to(tmp_path / "outside" / "x.cleanrl_model")
    (run_dir / "loop").symlink_to(run_dir)
    write_manifest(run_dir, CONFIG, outcome="completed")
    artifacts = _manifest(run_dir)["artifacts"]
    assert artifacts["videos"]["count"] == artifacts["models"]["count"] == 0


def test_configured_paths_that_leave_the_folder_are_not_repeated(run_dir: Path) -> None:
    extras = {"optuna_db": "../../etc/passwd", "checkpoints_dir": "/etc", "tensorboard_dir": "/tmp", "notes": {"a": 1}}
    write_manifest(run_dir, {**CONFIG, "extras": extras})
    manifest = _manifest(run_dir)
    assert (manifest["optuna_db_path"], manifest["checkpoints_dir"], manifest["tensorboard_dir"]) == (None, None, None)
    assert manifest["notes"] is None


def test_the_scan_and_the_lists_are_bounded_and_say_so(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(30):
        path = run_dir / "videos" / f"{index:02}.mp4"
        _file(path)
        os.utime(path, (index, index))
    monkeypatch.setattr(analytics, "MAX_LISTED", 5)
    write_manifest(run_dir, CONFIG)
    videos = _manifest(run_dir)["artifacts"]["videos"]
    assert videos["count"] == 30
    assert [entry["path"] for entry in videos["files"]] == [f"videos/{index}.mp4" for index in range(25, 30)]
    assert _manifest(run_dir)["truncated"] is False
    monkeypatch.setattr(analytics, "MAX_ENTRIES", 10)
    write_manifest(run_dir, CONFIG)
    assert _manifest(run_dir)["truncated"] is True


def test_a_write_that_fails_leaves_the_old_manifest_and_no_rubbish(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(run_dir, CONFIG)
    before = (run_dir / "analytics.json").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_manifest(run_dir, CONFIG, outcome="failed")
    assert (run_dir / "analytics.json").read_bytes() == before
    assert [entry.name for entry in run_dir.iterdir()] == ["analytics.json"]


def test_a_sidecar_can_finish_the_manifest_of_a_worker_that_could_not(run_dir: Path) -> None:
    write_manifest(run_dir, CONFIG, times={"started": 1.0}, requirements=["base"], reproducibility={"seed": 3})
    _file(run_dir / "config.json", json.dumps(CONFIG).encode())
    _file(run_dir / "videos" / "late.mp4")
    refresh_manifest(run_dir, "failed")
    manifest = _manifest(run_dir)
    assert (manifest["outcome"], manifest["algo"], manifest["requirements"]) == ("failed", "ppo", ["base"])
    assert manifest["times"] == {"started": 1.0}
    assert manifest["artifacts"]["videos"]["count"] == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[" * 100_000, b'{"times": 3, "artifacts": []}'])
def test_a_damaged_manifest_is_replaced(run_dir: Path, content: bytes) -> None:
    _file(run_dir / "analytics.json", content)
    refresh_manifest(run_dir)
    assert _manifest(run_dir)["run_id"] == "run"


def test_the_index_lists_runs_newest_first_and_tolerates_what_it_finds(tmp_path: Path) -> None:
    for name, started in (("old", 1.0), ("new", 5.0)):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, {**CONFIG, "run_id": name}, outcome="completed", times={"started": started})
    _file(tmp_path / "bare" / "analytics.json", b"{}")
    _file(tmp_path / "broken" / "analytics.json", b"{")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "old")
    index = read_json(rebuild_index(tmp_path))
    assert index is not None
    assert [run["path"] for run in index["runs"]] == ["new", "old", "bare"]
    assert index["runs"][0]["outcome"] == "completed"
    assert index["runs"][2]["run_id"] == "bare"
    assert (
        index["runs"][0]["manifest_sha256"]
        == hashlib.sha256((tmp_path / "new" / "analytics.json").read_bytes()).hexdigest()
    )


def test_the_command_line_does_both(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analytics.main([str(run_dir), "--outcome", "failed"]) == 0
    assert _manifest(run_dir)["outcome"] == "failed"
    assert analytics.main(["--index", str(tmp_path)]) == 0
    assert (tmp_path / "index.json").exists()
    with pytest.raises(SystemExit):
        analytics.main([str(tmp_path / "gone")])

"""`finalise` and `index.json` over claims that others have written to: garbage, links, hostile names and halves."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker import analytics, sidecar
from cleanrl_worker.telemetry import EventLog


def made(root: Path, name: str, **manifest: Any) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    content = {"run_id": name, "algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "times": {"started": 5.0}, **manifest}
    (folder / "analytics.json").write_text(json.dumps(content))
    return folder


def told(folder: Path, *events: str, **payload: Any) -> None:
    log = EventLog(folder / "events.jsonl", "r", None)
    for event in events:
        log.emit(event, **payload)
    log.close()


def index(root: Path) -> dict[str, dict[str, Any]]:
    content = json.loads(analytics.rebuild_index(root).read_text())
    return {run["path"]: run for run in content["runs"]}


@pytest.mark.parametrize("outcome", ["completed", "failed", "canceled", "deadline_exceeded", "suspended"])
def test_an_end_that_was_told_but_not_written_is_written(tmp_path: Path, outcome: str) -> None:
    folder = made(tmp_path, "run", outcome=None, reason=None)
    told(folder, "run_started")
    told(folder, "run_completed", outcome=outcome, reason="DiskFull", message="no room")
    digest = analytics.finalise(folder)
    manifest = json.loads((folder / "analytics.json").read_text())
    assert (manifest["outcome"], manifest["reason"], manifest["message"]) == (outcome, "DiskFull", "no room")
    assert manifest["times"]["finished"] > manifest["times"]["started"]
    assert digest == index(tmp_path)["run"]["manifest_sha256"]
    assert analytics.finalise(folder) is None, "once is enough"


def test_a_log_that_stops_means_that_the_worker_was_lost(tmp_path: Path) -> None:
    folder = made(tmp_path, "run", outcome="failed", reason="OOMKilled")
    told(folder, "run_started", "run_failed", outcome="failed")
    told(folder, "run_started", "training_started")
    with (folder / "events.jsonl").open("ab") as log:
        log.write(b'{"event": "scal')  # cut off in the middle of a line
    assert analytics.finalise(folder)
    manifest = json.loads((folder / "analytics.json").read_text())
    assert (manifest["outcome"], manifest["reason"], manifest["algo"]) == ("failed", "WorkerLost", "ppo")
    assert "killed" in manifest["message"]


def test_a_run_that_never_started_or_goes_on_is_left_alone(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert analytics.finalise(empty) is None
    busy = made(tmp_path, "busy", outcome=None)
    told(busy, "run_started")
    with (busy / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert analytics.finalise(busy) is None
    assert analytics.finalise(busy) is not None


def test_a_folder_that_takes_nothing_is_not_a_run_with_nothing_to_finish(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = made(tmp_path, "closed", outcome=None)
    told(closed, "run_started")
    (closed / ".lock").symlink_to("nowhere")  # what a read-only claim does, also to root
    with pytest.raises(OSError, match="can't be used"):
        analytics.finalise(closed)
    assert analytics.main(["--finalise", str(closed)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "can't be used" in said.err


def test_without_a_manifest_the_config_says_whose_run_it_was(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"run_id": "r", "algo": "dqn", "extras": {}}))
    (tmp_path / "analytics.json").write_text("{half")
    told(tmp_path, "run_started")
    analytics.finalise(tmp_path)
    assert json.loads((tmp_path / "analytics.json").read_text())["algo"] == "dqn"


def test_the_index_is_made_of_what_can_be_read(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    made(root, "good", outcome="completed", tensorboard_dir="tensorboard")
    outside = made(tmp_path, "outside")
    (root / "linked").symlink_to(outside)
    (root / "borrowed").mkdir()
    (root / "borrowed" / "analytics.json").symlink_to(outside / "analytics.json")
    for name, text in {"half": '{"run_id": ', "list": "[]", "deep": "[" * 100_000, "binary": "\0\xff"}.items():
        (root / name).mkdir()
        (root / name / "analytics.json").write_text(text)
    (root / "huge").mkdir()
    with (root / "huge" / "analytics.json").open("wb") as file:
        file.truncate(analytics.MAX_MANIFEST_BYTES + 1)
    (root / "folder").mkdir()
    (root / "folder" / "analytics.json").mkdir()
    (root / "fifo").mkdir()
    os.mkfifo(root / "fifo" / "analytics.json")
    (root / "bad\nname").mkdir()
    (root / "a file").write_text("")
    (root / "index.json").write_text("{old and broken")
    assert set(index(root)) == {"good"}


def test_hostile_values_do_not_get_in(tmp_path: Path) -> None:
    made(
        tmp_path, "run", run_id="x" * 10_000, algo={"a": 1}, env_id="bad\x1b[31m", seed=10**400, outcome=["completed"],
        times={"started": 1e999, "finished": "soon"}, tensorboard_dir="../../etc",
    )  # fmt: skip
    entry = index(tmp_path)["run"]
    assert entry["run_id"] == "run"
    assert {entry[name] for name in ("algo", "env_id", "seed", "outcome", "started", "tensorboard_dir")} == {None}


def test_the_newest_comes_first_and_the_index_may_lie_elsewhere(tmp_path: Path) -> None:
    for name, started in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        made(tmp_path / "runs", name, times={"started": started})
    (tmp_path / "index").mkdir()
    path = analytics.rebuild_index(tmp_path / "runs", tmp_path / "index")
    assert path == tmp_path / "index" / "index.json"
    assert [run["path"] for run in json.loads(path.read_text())["runs"]] == ["b", "c", "a"]
    assert not (tmp_path / "runs" / "index.json").exists()


def test_one_tensorboard_gets_readable_names_for_all_runs(tmp_path: Path) -> None:
    runs, farm = tmp_path / "runs", tmp_path / "farm"
    farm.mkdir()
    for name in ("01AAAAAAAAAA", "01BBBBBBBBBB", "01CCCCCCCCCC"):
        made(runs, name, env_id="Pendulum/../v1", tensorboard_dir="tensorboard")
    for name in ("01AAAAAAAAAA", "01BBBBBBBBBB"):
        (runs / name / "tensorboard").mkdir()
    (tmp_path / "secret").mkdir()
    (runs / "01CCCCCCCCCC" / "tensorboard").symlink_to(tmp_path / "secret")
    sidecar.link_runs(runs, farm)
    assert sorted(entry.name for entry in farm.iterdir()) == [
        "ppo__Pendulum-..-v1__seed=1__AAAAAAAA",
        "ppo__Pendulum-..-v1__seed=1__BBBBBBBB",
    ]
    inner = runs / "01BBBBBBBBBB" / "tensorboard" / "Pendulum-v1__ppo__1__01BBBBBBBBBB"
    inner.mkdir()  # where an algorithm's events are: the name in between says nothing new
    sidecar.link_runs(runs, farm)
    assert (farm / "ppo__Pendulum-..-v1__seed=1__BBBBBBBB").resolve() == inner
    (inner.parent / "evaluation").mkdir()
    sidecar.link_runs(runs, farm)
    assert (farm / "ppo__Pendulum-..-v1__seed=1__BBBBBBBB").resolve() == inner.parent, "now there are two to tell apart"
    (runs / "01AAAAAAAAAA" / "analytics.json").unlink()
    sidecar.link_runs(runs, farm)
    assert [entry.name for entry in farm.iterdir()] == ["ppo__Pendulum-..-v1__seed=1__BBBBBBBB"]
    assert (runs / "01AAAAAAAAAA" / "tensorboard").is_dir(), "a link goes, what it led to stays"

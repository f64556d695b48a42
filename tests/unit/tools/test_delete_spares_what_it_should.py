from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanrl_worker.tools import archive, delete, liveness

MakeRun = Callable[..., Path]
DONE = ("run_started", "training_started", "run_completed")


def test_a_finished_run_goes_after_its_archive_was_compared(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(*DONE)
    with pytest.raises(delete.DeleteError, match="there is no archive"):
        delete.delete(run)
    assert run.is_dir()
    archive.pack(run, run.parent / f"{run.name}.tar.gz")
    delete.delete(run)
    assert not run.exists()
    assert [path.name for path in run.parent.iterdir()] == [f"{run.name}.tar.gz"]
    assert (tmp_path / "secret").read_text() == "do not pack me", "a link was followed"
    restored, _ = archive.extract(run.parent / f"{run.name}.tar.gz", run.parent)
    assert (restored / "config.json").is_file()


def test_an_archive_that_is_not_a_copy_saves_the_folder(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(*DONE)
    archive.pack(run, tmp_path / "a.tar.gz")
    (run / "config.json").write_text('{"run_id": "01RUN", "algo": "dqn"}')
    with pytest.raises(delete.DeleteError, match=r"not a copy of it: config\.json changed"):
        delete.delete(run, tmp_path / "a.tar.gz")
    assert run.is_dir()


def test_force_needs_no_archive(make_run: MakeRun) -> None:
    run = make_run(*DONE)
    delete.delete(run, force=True)
    assert not run.exists()


def test_a_run_with_fresh_events_and_no_final_one_is_alive(make_run: MakeRun) -> None:
    run = make_run("run_started", "heartbeat", age=20)
    with pytest.raises(delete.DeleteError, match="the run is alive"):
        delete.delete(run, force=True)
    assert run.is_dir()


def test_a_second_attempt_in_the_folder_is_alive_though_the_first_ended(make_run: MakeRun) -> None:
    assert liveness.sign_of_life(make_run("run_started", "run_failed", "run_started")) is not None


def test_a_run_that_fell_silent_is_not_alive(make_run: MakeRun) -> None:
    run = make_run("run_started", "heartbeat", age=liveness.SILENCE_SECONDS + 1)
    delete.delete(run, force=True)
    assert not run.exists()


def test_a_folder_whose_lock_a_worker_holds_is_spared(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(*DONE)
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert delete.main([str(run), "--force"]) == 1
        assert archive.main([str(run)]) == 1
        assert run.is_dir()
    assert delete.main([str(run), "--force"]) == 0


def test_only_run_folders_are_deleted(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(*DONE)
    link = tmp_path / "link"
    link.symlink_to(run)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text('{"name": "something else"}')
    (plain / "events.jsonl").write_text("hello\n")
    for path, sentence in [
        (link, "is a symbolic link"),
        (plain, "is not a run's folder"),
        (tmp_path / "nowhere", "is not a folder"),
        (run / "config.json", "is not a folder"),
        (run.parent, "is not a run's folder"),
        (Path("/"), "is not a run's folder"),
    ]:
        with pytest.raises(liveness.NotARunError, match=sentence):
            delete.delete(path, force=True)
    assert run.is_dir() and plain.is_dir()


def test_what_an_interrupted_deletion_left_goes_too(make_run: MakeRun) -> None:
    run = make_run(*DONE)
    left = run.with_name(f".{run.name}.deleting")
    left.mkdir()
    (left / "rest").write_text("rest")
    delete.delete(run, force=True)
    assert list(run.parent.iterdir()) == []

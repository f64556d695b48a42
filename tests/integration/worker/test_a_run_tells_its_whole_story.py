"""Events, manifest, saved configuration and exit code of runs that end in each way there is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cleanrl_protocol.record import parse

Start = Callable[..., Any]


def test_a_run_that_finishes(start: Start, tmp_path: Path) -> None:
    run = start("--run-id", "tale", "--record-path", str(tmp_path / "record"), steps=5, step_seconds=0.05)
    assert run.wait() == 0, run.stderr
    assert [name for name in run.names() if name != "heartbeat"][:2] == ["run_started", "training_started"]
    assert run.names()[-1] == "run_completed"
    assert {"heartbeat", "scalars", "checkpoint_saved"} <= set(run.names())
    assert [event["seq"] for event in run.events()] == list(range(1, len(run.events()) + 1))
    assert [json.loads(line) for line in run.stdout.splitlines()] == run.events(), "stdout and file tell the same"
    assert run.stdout.splitlines()[0] == json.dumps(run.events()[0], sort_keys=True, separators=(",", ":"))
    scalars = [event["payload"] for event in run.events() if event["event"] == "scalars"]
    assert scalars[-1]["step"] == 5
    assert scalars[-1]["values"] == {"charts/episodic_return": 5.0}, "a figure that is not a number is left out"
    assert run.last()["payload"]["outcome"] == run.manifest()["outcome"] == "completed"
    assert run.last()["payload"]["module"] == run.events()[0]["payload"]["module"]
    assert json.loads((run.folder / "config.json").read_text())["run_id"] == "tale"
    assert "stepping" in (run.folder / "logs" / "cleanrl.stdout.log").read_text()
    record = parse((tmp_path / "record").read_text(), run_id="tale", attempt=1)
    assert (record.outcome, record.exit_code, record.last_event) == ("completed", 0, run.last()["seq"])
    assert record.checkpoint is not None
    assert record.checkpoint.step == 5
    assert [transition.state for transition in record.transitions] == ["INIT", "EXEC", "TERM"]


def test_a_run_that_fails_shows_the_last_useful_lines(start: Start) -> None:
    run = start(steps=5, fail_at=3)
    assert run.wait() == 1
    payload = run.last()["payload"]
    assert run.last()["event"] == "run_failed"
    assert payload["error"].splitlines()[-1] == "RuntimeError: the stand-in fails at step 3"
    assert "noise" not in payload["error"]
    assert (payload["return_code"], payload["error_type"]) == (1, "CalledProcessError")
    assert payload["command"][1:3] == ["-m", "cleanrl_worker.launcher"]
    assert Path(payload["stderr_log"]).read_text().rstrip().endswith("the stand-in fails at step 3")
    assert run.manifest()["outcome"] == "failed"
    assert "the stand-in fails at step 3" in run.stderr


def test_a_divergence_keeps_its_name(start: Start) -> None:
    run = start(steps=5, nan_at=2)
    assert run.wait() == 3
    assert (run.last()["payload"]["reason"], run.last()["payload"]["return_code"]) == ("NaNLoss", 3)


def test_the_step_of_a_failure_is_the_same_each_time(start: Start, tmp_path: Path) -> None:
    """Whoever retries asks whether an attempt came further than the one before: not by what was reported a moment ago."""
    run = start("--run-id", "tale", "--record-path", str(tmp_path / "record"), steps=5, nan_at=3)
    assert run.wait() == 3, run.stderr
    assert parse((tmp_path / "record").read_text(), run_id="tale", attempt=1).last_step == 3
    assert run.last()["payload"]["step"] == 3


def test_an_algorithm_that_just_leaves_has_not_completed(start: Start) -> None:
    run = start(steps=5, exit_at=2)
    assert run.wait() == 1
    assert (run.last()["event"], run.last()["payload"]["reason"]) == ("run_failed", "EndedEarly")


def test_a_script_that_never_speaks_completes_by_its_exit_code(start: Start) -> None:
    run = start(steps=5, silent=True)
    assert run.wait() == 0
    assert [name for name in run.names() if name != "heartbeat"] == ["run_started", "run_completed"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_a_checkpoint_first(start: Start, number: int, code: int) -> None:
    run = start(steps=100_000, step_seconds=0.01)
    run.until(lambda: "scalars" in run.names())
    run.process.send_signal(number)
    assert run.wait() == code
    assert "checkpoint_saved" in run.names()
    assert run.names()[-1] == "run_cancelled"
    payload = run.last()["payload"]
    assert (payload["outcome"], payload["checkpoint_confirmed"]) == ("canceled", True)
    assert run.manifest()["outcome"] == "canceled"


def test_an_algorithm_that_will_not_stop_is_killed_after_the_grace_period(start: Start, look: SimpleNamespace) -> None:
    run = start(steps=100_000, step_seconds=0.01, deaf=True, grandchild=True, env={"CLEANRL_GRACE_SECONDS": "0.5"})
    run.until(lambda: "training_started" in run.names())
    child, grandchild = run.child(), int((run.folder / "grandchild.pid").read_text())
    run.process.terminate()
    assert run.wait() == 143
    assert run.last()["payload"]["checkpoint_confirmed"] is False
    assert "killed" in run.last()["payload"]["message"]
    assert not look.is_alive(child)
    assert not look.is_alive(grandchild)


def test_a_second_signal_hurries(start: Start) -> None:
    run = start(steps=100_000, step_seconds=0.01, deaf=True, env={"CLEANRL_GRACE_SECONDS": "3600"})
    run.until(lambda: "training_started" in run.names())
    while run.process.poll() is None:  # two that come at once would count as one
        run.process.terminate()
        time.sleep(0.2)
    assert run.wait() == 143
    assert run.last()["event"] == "run_cancelled"


def test_a_foreign_script_gets_a_plain_signal(start: Start) -> None:
    run = start(steps=100_000, step_seconds=0.01, silent=True)
    log = run.folder / "logs" / "cleanrl.stdout.log"
    run.until(lambda: log.exists() and "stepping" in log.read_text())
    run.process.terminate()
    assert run.wait() == 143
    assert run.last()["payload"]["outcome"] == "canceled"


def test_the_wall_clock_ends_a_run_with_a_checkpoint(start: Start) -> None:
    run = start("--max-wallclock-minutes", "0.03", steps=100_000, step_seconds=0.01)
    assert run.wait() == 124
    payload = run.last()["payload"]
    assert (run.last()["event"], payload["outcome"]) == ("run_cancelled", "deadline_exceeded")
    assert payload["checkpoint_confirmed"] is True
    assert run.manifest()["outcome"] == "deadline_exceeded"


def test_logs_are_rotated_and_the_last_line_is_kept(start: Start) -> None:
    env = {"CLEANRL_LOG_CAP_BYTES": "20000", "CLEANRL_LOG_KEEP": "2"}
    run = start(steps=200, noise=1000, env=env)
    assert run.wait() == 0
    logs = sorted((run.folder / "logs").glob("cleanrl.stdout.log*"))
    assert [path.name for path in logs] == ["cleanrl.stdout.log", "cleanrl.stdout.log.1", "cleanrl.stdout.log.2"]
    assert sum(path.stat().st_size for path in logs) < 3 * (20_000 + 70_000)
    assert logs[0].read_text().endswith("x 200\n")


def test_a_finished_run_is_not_run_again(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    assert start(folder=folder).wait() == 0
    refused = start(folder=folder)
    assert refused.wait() == 2
    assert "--continue" in refused.stderr
    assert "--force" in refused.stderr
    assert start("--extras", '{"continue": "false"}', folder=folder).wait() == 2
    before = refused.events()
    again = start("--continue", folder=folder)
    assert again.wait() == 0
    assert again.events() == before, "nothing was left to do"
    more = start("--continue", folder=folder, steps=999)
    assert more.wait() == 2, "what has completed is not what was asked for"
    assert "total_timesteps" in more.stderr
    assert "resume_training" in more.stderr
    assert more.events() == before
    forced = start("--force", "--run-id", "anew", folder=folder)
    assert forced.wait() == 0
    assert {event["run_id"] for event in forced.events()} == {"anew"}
    assert (folder / ".earlier" / "1" / "events.jsonl").exists(), "nothing is deleted"


def test_a_run_that_was_cut_off_goes_on(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    first = start(folder=folder, steps=100_000, step_seconds=0.01)
    first.until(lambda: "scalars" in first.names())
    first.process.terminate()
    first.wait()
    saved = first.last()["payload"]["step"]
    events = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join(events[:-1]) + '{"event":"run_canc')  # as if the machine had died
    second = start(folder=folder, steps=saved + 3)
    assert second.wait() == 0, second.stderr
    begun = [event["payload"] for event in second.events() if event["event"] == "training_started"]
    assert begun[-1] == {"step": saved, "resumed": True}
    assert second.events()[len(events) - 1]["seq"] == len(events), "numbering goes on after the last whole line"


def test_what_goes_on_keeps_its_name_and_is_no_other_run(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "named"
    first = start(folder=folder, steps=100_000, step_seconds=0.01)
    first.until(lambda: "scalars" in first.names())
    first.process.terminate()
    first.wait()
    named = first.last()["run_id"]
    before = first.events()
    for flags in ([], ["--continue"]):
        other = start("--run-id", "another", *flags, folder=folder)
        assert other.wait() == 2
    assert f"holds the run {named}, and this one is another" in other.stderr
    assert other.events() == before
    again = start("--continue", "--worker-id", "w-${RUN_ID}", folder=folder, steps=first.last()["payload"]["step"] + 3)
    assert again.wait() == 0, again.stderr
    assert {event["run_id"] for event in again.events()} == {named}
    assert json.loads((folder / "config.json").read_text())["worker_id"] == f"w-{named}"
    assert again.manifest()["run_id"] == named
    done = start("--run-id", "another", "--continue", folder=folder)
    assert done.wait() == 2, "the other run has not completed"


@pytest.mark.parametrize("lost", ["emptied", "removed", "torn"])
def test_a_run_whose_events_are_lost_goes_on_from_its_checkpoint(start: Start, tmp_path: Path, lost: str) -> None:
    """A machine that dies may keep the checkpoints, which were flushed to its disk, and not the events."""
    folder = tmp_path / "lost"
    first = start(folder=folder, steps=100_000, step_seconds=0.01)
    first.until(lambda: "scalars" in first.names())
    first.process.terminate()
    first.wait()
    saved, named = first.last()["payload"]["step"], first.last()["run_id"]
    if lost == "removed":
        (folder / "events.jsonl").unlink()
    else:
        (folder / "events.jsonl").write_text("" if lost == "emptied" else '{"event":"run_st')
    second = start(folder=folder, steps=saved + 3)
    assert second.wait() == 0, second.stderr
    assert "the events of an earlier start are lost" in second.stderr
    assert {"step": saved, "resumed": True} in [event["payload"] for event in second.events()]
    assert second.last()["run_id"] == named
    (folder / "events.jsonl").unlink()
    forced = start("--force", folder=folder, steps=3)
    assert forced.wait() == 0, forced.stderr
    assert (folder / ".earlier" / "1" / "checkpoints").is_dir()


def test_two_workers_can_not_share_a_folder(start: Start, tmp_path: Path) -> None:
    first = start(folder=tmp_path / "one", steps=100_000, step_seconds=0.01)
    first.until(lambda: "training_started" in first.names())
    second = start(folder=tmp_path / "one")
    assert second.wait() == 1
    assert "in use by another worker" in second.stderr


def test_stdout_that_nobody_reads_any_more_does_not_end_the_run(start: Start) -> None:
    read, write = os.pipe()
    run = start(steps=30, step_seconds=0.02, stdout=write)
    os.close(write)
    run.until(lambda: "run_started" in run.names())
    os.close(read)
    assert run.wait() == 0, run.stderr
    assert run.last()["event"] == "run_completed"
    assert "Traceback" not in run.stderr
    assert "BrokenPipe" not in run.stderr


def test_a_reader_that_stalls_does_not_stall_the_run(start: Start) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"." * 65536)
    except BlockingIOError:
        os.set_blocking(write, True)
    run = start(steps=5, stdout=write)
    assert run.wait() == 0, run.stderr
    assert run.last()["event"] == "run_completed"
    os.close(read)
    os.close(write)


def test_the_next_start_ends_what_a_killed_worker_left_behind(
    start: Start, tmp_path: Path, look: SimpleNamespace
) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        first = start(steps=100_000, step_seconds=0.01, grandchild=True)
        first.until(lambda: "training_started" in first.names())
        child, grandchild = first.child(), int((first.folder / "grandchild.pid").read_text())
        first.process.kill()
        first.wait()
        look.wait_for(lambda: not look.is_alive(child))
        second = start(steps=3)
        assert second.wait() == 0
        assert not look.is_alive(grandchild)
        assert look.is_alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


def test_a_grandchild_with_its_own_session_ends_with_the_run(start: Start, look: SimpleNamespace) -> None:
    run = start(steps=3, grandchild=True)
    assert run.wait() == 0
    assert not look.is_alive(int((run.folder / "grandchild.pid").read_text()))
    assert look.children(run.process.pid) == []


def test_nohup_is_honoured(start: Start) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited by the worker
    try:
        run = start(steps=40, step_seconds=0.02)
    finally:
        signal.signal(signal.SIGHUP, previous)
    run.until(lambda: "training_started" in run.names())
    run.process.send_signal(signal.SIGHUP)
    assert run.wait() == 0
    assert run.last()["event"] == "run_completed"

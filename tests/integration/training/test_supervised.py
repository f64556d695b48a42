"""The algorithm's end of the link: what it tells the supervisor and how it obeys."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.training.checkpoints import load_checkpoint


class Child:
    """An algorithm under a supervisor that is this test."""

    def __init__(self, folder: Path, algo: str, flags: list[str]) -> None:
        ours, theirs = socket.socketpair()
        self.folder = folder
        environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CLEANRL_LINK_FD": str(theirs.fileno()),
            "CLEANRL_RUN_ID": "supervised",
            "CLEANRL_RUN_DIR": str(folder),
            "CLEANRL_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "CLEANRL_TENSORBOARD_DIR": str(folder / "tensorboard"),
            "GYM_GUI_FASTLANE_ONLY": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"cleanrl_worker.algorithms.{algo}", *flags],
            cwd=folder,
            env=environ,
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        self.socket = ours
        self.lines = ours.makefile("r")
        self.facts: list[dict[str, Any]] = []

    def ask(self, cmd: str) -> None:
        self.socket.sendall(json.dumps({"cmd": cmd}).encode() + b"\n")

    def until(self, kind: str) -> dict[str, Any]:
        """The next fact of this kind; all that came before it are in `facts`."""
        for line in self.lines:
            self.facts.append(json.loads(line))
            if self.facts[-1]["kind"] == kind:
                return self.facts[-1]
        raise AssertionError(f"the child ended without {kind}: {self.facts}")

    def end(self) -> int:
        for line in self.lines:
            self.facts.append(json.loads(line))
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    children: list[Child] = []

    def make(algo: str, *flags: str) -> Child:
        children.append(Child(tmp_path, algo, list(flags)))
        return children[-1]

    yield make
    for child in children:
        child.process.kill()
        child.process.wait()
        child.socket.close()


def test_pause_resume_checkpoint_and_stop(start: Any) -> None:
    child = start("ppo", "--total-timesteps", "50000000")
    hello = child.until("hello")
    assert hello["algo"] == "ppo"
    assert hello["pid"] == child.process.pid
    assert {"pause", "checkpoint"} <= set(hello["supports"])
    assert child.until("training_started") == {"kind": "training_started", "step": 0, "resumed": False}

    child.ask("pause")
    paused = child.until("paused")
    saved = [fact for fact in child.facts if fact["kind"] == "checkpoint_saved"][-1]
    assert (saved["step"], saved["path"], saved["reason"]) == (paused["step"], paused["checkpoint"], "request")
    loaded = load_checkpoint(child.folder / paused["checkpoint"])
    assert (loaded.step, loaded.sha256) == (paused["step"], saved["sha256"])

    child.ask("checkpoint")  # obeyed while paused, and no step is taken meanwhile
    assert child.until("checkpoint_saved")["step"] == paused["step"]
    child.ask("resume")
    assert child.until("resumed")["step"] == paused["step"]

    scalars = child.until("scalars")
    assert scalars["total"] == 50000000
    assert scalars["step"] > paused["step"] or child.until("scalars")["step"] > paused["step"]
    child.ask("stop")
    stopped = child.until("stopped")
    assert load_checkpoint(child.folder / stopped["checkpoint"]).step == stopped["step"]
    assert child.end() == 0


def test_a_finished_run_says_so_with_its_model(start: Any) -> None:
    child = start("ppo", "--total-timesteps", "1024", "--save-model")
    finished = child.until("finished")
    assert child.end() == 0
    assert finished["step"] == 1024
    assert finished["model"].startswith("runs/CartPole-v1__ppo__1__supervised/")
    assert (child.folder / finished["model"]).is_file()
    kinds = [fact["kind"] for fact in child.facts]
    assert kinds.index("hello") < kinds.index("training_started") < kinds.index("checkpoint_saved")
    last = [fact for fact in child.facts if fact["kind"] == "scalars"][-1]
    assert last["step"] == 1024
    assert last["episodes"] > 0
    assert {"charts/episodic_return", "losses/policy_loss"} <= set(last["values"])


def test_bad_flags_are_a_known_failure(start: Any) -> None:
    child = start("ppo", "--num-minibatches", "3")
    failing = child.until("failing")
    assert failing["reason"] == "BadConfig"
    assert "does not divide" in failing["message"]
    assert child.end() == 2
    child = start("ppo", "--no-such-flag", "3")
    assert child.until("failing")["reason"] == "BadConfig"
    assert child.end() == 2


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_last_good_checkpoint(start: Any) -> None:
    child = start("ppo", "--total-timesteps", "4096", "--learning-rate", "1e38", "--max-grad-norm", "1e38")
    failing = child.until("failing")
    assert failing["reason"] == "NaNLoss"
    assert "checkpoint" in failing["message"]
    assert child.end() == 3


def test_a_curve_that_fills_the_disk_ends_the_run_by_that_name(start: Any, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "tensorboard"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    try:
        child = start("ppo", "--total-timesteps", "100000000", "--num-steps", "128")
        failing = child.until("failing")
        assert failing["reason"] == "DiskFull"
        assert "No space left on device. Free space on the volume" in failing["message"]
        assert child.end() == 1
        child.socket.close()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize(("size", "reason"), [("64k", "DiskFull"), (None, "RunFolder")])
def test_a_run_that_can_not_keep_what_it_learned_has_not_finished(
    size: str | None, reason: str, start: Any, tmp_path: Path
) -> None:
    if size is not None and os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "checkpoints"
    if size is None:
        place.write_text("no folder at all")
    else:
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        child = start("ppo", "--total-timesteps", "512", "--num-steps", "128")
        told = child.until("checkpoint_failed")
        assert "could not be written" in told["message"]
        failing = child.until("failing")
        assert failing["reason"] == reason
        assert "final checkpoint at step 512" in failing["message"]
        assert failing["step"] == 512
        assert child.end() == 1
        assert "finished" not in [fact["kind"] for fact in child.facts]
        if size is not None:
            assert list(place.iterdir()) == [], "half a checkpoint is none, and takes no room"
    finally:
        if size is not None:
            subprocess.run(["umount", "-l", str(place)], check=True)

"""Whatever ends the worker, `analytics.json` tells how: by the worker itself, else by the sidecar that outlives it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SECONDS = 90


def wait_for(condition: Callable[[], object], complaint: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


def takes_signals(process: subprocess.Popen[bytes] | None) -> bool:
    assert process is not None
    caught = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


class Pod:
    """A worker and its sidecar over one claim, as the kubelet would run them."""

    def __init__(self, claim: Path) -> None:
        self.run = claim / "runs" / "01JD0000000000000000000000"
        self.index = claim / "index"
        for folder in (self.run, self.index):
            folder.mkdir(parents=True, exist_ok=True)
        self.message = claim / "message"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CLEANRL_", "MOSAIC_", "WANDB_"))}
        environment |= {"CLEANRL_SCALARS_SECONDS": "0.2", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "pqn", "--env-id", "CartPole-v1"]
        command += ["--total-timesteps", "10000000", "--run-dir", str(self.run), "--continue"]
        self.worker = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self.sidecar: subprocess.Popen[bytes] | None = None

    def manifest(self) -> dict[str, Any]:
        try:
            loaded: dict[str, Any] = json.loads((self.run / "analytics.json").read_text())
        except FileNotFoundError:
            return {}
        return loaded

    def until_it_trains(self) -> None:
        wait_for(lambda: "training_started" in self.manifest().get("times", {}), "the worker never trained")

    def start_sidecar(self, *shown: str) -> subprocess.Popen[bytes]:
        """Start it late, to spare the machine."""
        command = [sys.executable, "-m", "cleanrl_worker.sidecar", "--run-dir", str(self.run)]
        command += ["--runs-dir", str(self.run.parent), "--index-dir", str(self.index)]
        command += ["--message-path", str(self.message), *shown]
        self.sidecar = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        return self.sidecar

    def children(self) -> str:
        assert self.sidecar is not None
        return Path(f"/proc/{self.sidecar.pid}/task/{self.sidecar.pid}/children").read_text().strip()

    def stop_sidecar(self, tensorboard: bool = True) -> None:
        """Start it, if that was not done, and stop it the way the kubelet does."""
        if self.sidecar is None:
            shown = ("--", "--logdir", str(self.run), "--port", "0") if tensorboard else ("--without-tensorboard",)
            self.start_sidecar(*shown)
        assert self.sidecar is not None
        if tensorboard:
            wait_for(self.children, "TensorBoard was not started")
        else:
            wait_for(lambda: takes_signals(self.sidecar), "the sidecar never came so far as to take signals")
            assert not self.children()
        self.sidecar.send_signal(signal.SIGTERM)
        _, complaints = self.sidecar.communicate(timeout=SECONDS)
        assert self.sidecar.returncode == 0, complaints

    def end(self) -> None:
        for process in (self.worker, self.sidecar):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("tensorboard", [True, False])
def test_a_worker_that_was_killed_has_its_manifest_finished_and_the_run_can_go_on(
    pod: Pod, tmp_path: Path, tensorboard: bool
) -> None:
    pod.until_it_trains()
    assert pod.manifest()["outcome"] is None
    os.killpg(pod.worker.pid, signal.SIGKILL)
    pod.worker.wait()
    pod.stop_sidecar(tensorboard)
    manifest = pod.manifest()
    assert (manifest["outcome"], manifest["reason"]) == ("failed", "WorkerLost")
    assert manifest["times"]["finished"] >= manifest["times"]["started"]
    assert manifest["algo"] == "pqn", "what the worker had said of itself is kept"
    digest = hashlib.sha256((pod.run / "analytics.json").read_bytes()).hexdigest()
    assert json.loads(pod.message.read_text()) == {"manifestSha256": digest}
    (entry,) = json.loads((pod.index / "index.json").read_text())["runs"]
    assert (entry["path"], entry["outcome"], entry["manifest_sha256"]) == (pod.run.name, "failed", digest)

    events = (pod.run / "events.jsonl").read_text()
    assert "run_failed" not in events, "the event log is the worker's alone: the next attempt goes on from it"
    following = Pod(tmp_path)
    try:
        wait_for(lambda: pod.manifest()["outcome"] is None, "the next attempt did not take the run over")
    finally:
        following.worker.send_signal(signal.SIGTERM)
        following.worker.wait(SECONDS)
    assert pod.manifest()["outcome"] == "canceled"


def test_a_worker_that_ended_in_order_is_left_its_last_word(pod: Pod) -> None:
    pod.until_it_trains()
    pod.worker.send_signal(signal.SIGTERM)
    pod.worker.wait(SECONDS)
    before = (pod.run / "analytics.json").read_bytes()
    assert pod.manifest()["outcome"] == "canceled"
    pod.stop_sidecar()
    assert (pod.run / "analytics.json").read_bytes() == before
    assert not pod.message.exists()
    assert json.loads((pod.index / "index.json").read_text())["runs"][0]["outcome"] == "canceled"


def test_a_tensorboard_that_breaks_costs_no_run_its_end(pod: Pod) -> None:
    pod.until_it_trains()
    sidecar = pod.start_sidecar("--", "--no-such-flag")
    assert sidecar.stderr is not None
    wait_for(lambda: b"is started again in" in sidecar.stderr.readline(), "TensorBoard did not break")
    os.killpg(pod.worker.pid, signal.SIGKILL)
    pod.worker.wait()
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(SECONDS) == 0
    assert (pod.manifest()["outcome"], pod.manifest()["reason"]) == ("failed", "WorkerLost")

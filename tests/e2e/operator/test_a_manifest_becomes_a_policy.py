"""The main promise, on a real node: a manifest goes in, and a trained policy and the whole truth about it come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

LIST_FILES = """
import hashlib, json, pathlib
files = [path for path in pathlib.Path(".").rglob("*") if path.is_file()]
print(json.dumps({str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}))
"""
READ_TENSORBOARD = """
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from pathlib import Path
(folder,) = Path("tensorboard").iterdir()
curve = EventAccumulator(str(folder))
curve.Reload()
print(json.dumps([[point.step, point.value] for point in curve.Scalars("charts/episodic_return")]))
"""
KILL_TRAINING = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    if int(folder.name) != os.getpid() and b"cleanrl_worker.launcher" in (folder / "cmdline").read_bytes():
        os.kill(int(folder.name), signal.SIGKILL)
        print("killed", folder.name)
"""


def states(status: dict[str, Any]) -> list[str]:
    return [each["to"] for each in status["transitions"]]


def in_state(*wanted: str) -> Callable[[dict[str, Any]], bool]:
    return lambda status: status.get("fsmState") in wanted


def executes(attempt: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: status.get("fsmState") == "EXEC" and status["attempt"] == attempt


def test_the_chart_passes_its_own_test(operator: Any, helm: Callable[..., str]) -> None:
    assert "Succeeded" in helm("test", "cleanrl", "-n", "cleanrl-system")


def test_a_run_trains_to_its_end_and_leaves_everything_on_the_claim(runs: Any) -> None:
    runs.apply("whole", totalTimesteps=10_000)
    runs.kubectl("wait", "cleanrlrun/whole", "--for=condition=Complete", "--timeout=180s")
    status = runs.status("whole")
    assert status["outcome"] == "completed"
    assert states(status) == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]
    assert status["attempt"] == 1
    files = json.loads(runs.read("whole", LIST_FILES))
    manifest = f"{status['checkpoint']['path']}/manifest.json"
    assert files[manifest] == status["checkpoint"]["sha256"]
    assert files["analytics.json"] == status["analytics"]["manifestDigest"]
    points = json.loads(runs.read("whole", READ_TENSORBOARD))
    assert len(points) > 10
    assert points[-1][0] > 5000


def test_a_suspended_run_frees_its_pod_and_goes_on_from_its_checkpoint(runs: Any) -> None:
    runs.apply("nap")
    runs.reach("nap", executes(1))
    runs.says("nap", "checkpoint_saved")
    runs.change("nap", suspend=True)
    asleep = runs.reach("nap", lambda status: status["fsmState"] == "PAUSE" and not status.get("podUID"))
    saved = asleep["checkpoint"]["step"]
    assert saved > 0
    runs.freed("nap")
    runs.change("nap", suspend=False)
    awake = runs.reach("nap", executes(2))
    assert awake.get("retries", 0) == 0, "a nap is no failure"
    assert runs.says("nap", "training_started") == {"resumed": True, "step": saved}
    runs.says("nap", "checkpoint_saved")

    runs.change("nap", cancel=True)
    over = runs.reach("nap", in_state("TERM"))
    assert over["outcome"] == "canceled"
    assert over["checkpoint"]["step"] > saved, "what was trained until the end is kept"
    numbers = [each["seq"] for each in runs.events("nap")]
    assert numbers == list(range(1, len(numbers) + 1)), "one log over both attempts, without a gap"


def test_a_killed_worker_is_tried_again_from_its_checkpoint(runs: Any) -> None:
    runs.apply("hurt")
    status = runs.reach("hurt", executes(1))
    saved = runs.says("hurt", "checkpoint_saved")["step"]
    said = runs.kubectl("exec", status["podName"], "-c", "worker", "--", "python", "-c", KILL_TRAINING)
    assert "killed" in said
    again = runs.reach("hurt", executes(2))
    assert "FAULT" in states(again)
    started = runs.says("hurt", "training_started")
    assert started["resumed"]
    assert started["step"] >= saved
    runs.change("hurt", cancel=True)
    assert runs.reach("hurt", in_state("TERM"))["outcome"] == "canceled"

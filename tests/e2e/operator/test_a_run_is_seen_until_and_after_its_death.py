"""On a real node: a run is watched through a port-forward, then its worker is killed, and its sidecar tells the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

READ = """
import hashlib, json, pathlib
run = pathlib.Path("runs", %r)
index = json.loads(pathlib.Path("index", "index.json").read_text())
print(json.dumps({
    "digest": hashlib.sha256((run / "analytics.json").read_bytes()).hexdigest(),
    "manifest": json.loads((run / "analytics.json").read_text()),
    "index": index["runs"],
}))
"""


EXAMPLE = Path(__file__).parents[3] / "examples" / "tensorboard-all-runs.yaml"
ASK = """
import time, urllib.request
for _ in range(90):
    try:
        runs = urllib.request.urlopen("http://127.0.0.1:6006/data/runs", timeout=10).read().decode()
    except OSError:
        runs = "[]"
    if len(runs) > 2:
        break
    time.sleep(1)
print(runs)
"""


def supervisor(run_id: str) -> int:
    """The worker's first process, seen from the machine that the node runs on."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"cleanrl_worker.pod" in command and f"CLEANRL_RUN_ID={run_id}".encode() in environ.split(b"\0"):
            return int(folder.name)
    raise AssertionError(f"no worker of run {run_id} is on this machine")


def get(url: str, good: Callable[[bytes], object], seconds: float = 60) -> bytes:
    """What an address answers, once it is good."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                body: bytes = answer.read()
            if good(body):
                return body
            why: object = body[:500]
        except urllib.error.HTTPError as error:
            why = f"{error.code}: {error.read()[:500]!r}"
        except OSError as error:
            why = error
        assert time.monotonic() < deadline, f"{url}: {why}"
        time.sleep(0.5)


def test_a_run_is_watched_and_its_end_is_told_by_its_sidecar(runs: Any) -> None:
    grid = {"videoMode": "grid", "gridLimit": 4}
    runs.apply("seen", retry={"limit": 0}, fastlane=grid)
    status = runs.reach("seen", lambda status: status.get("fsmState") == "EXEC")
    cluster = runs.cluster
    forward = subprocess.Popen(
        cluster.kubectl_command("-n", runs.namespace, "port-forward", f"pod/{status['podName']}", ":9464"),
        env=cluster.client_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert forward.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
        assert found
        url = f"http://127.0.0.1:{found[1]}"
        assert b'"/stream?"' in get(f"{url}/", len)
        assert get(f"{url}/frame.png", len).startswith(b"\x89PNG")
        get(f"{url}/metrics", lambda page: b"\ncleanrl_worker_rolling_return " in page)
        with urllib.request.urlopen(f"{url}/stream", timeout=20) as stream:
            assert stream.readline() == b"--frame\r\n"
    finally:
        forward.terminate()
        forward.wait(30)

    killed_and_told(runs, "seen", status["runId"])
    assert ask_one_tensorboard(runs, "seen") == [f"ppo__CartPole-v1__seed=1__{status['runId'][-8:]}"]


def ask_one_tensorboard(runs: Any, name: str) -> list[str]:
    """Serve the claim of a run whose pod is gone, by the documentation's one command; the runs that are shown there."""
    board = runs.status(name)["analytics"]["tensorboard"]
    assert board["reason"] == "NoPod", board
    assert EXAMPLE.name in board["message"]
    claim = runs.status(name)["analytics"]["claimName"]
    manifest = (
        EXAMPLE.read_text().replace(": experiments", f": {claim}").replace("cleanrl-worker:0.1.0", "cleanrl-worker:dev")
    )
    runs.kubectl("apply", "-f", "-", stdin=manifest)
    runs.kubectl("wait", "--for=condition=Available", f"deployment/{EXAMPLE.stem}", "--timeout=120s")
    return list(json.loads(runs.kubectl("exec", f"deployment/{EXAMPLE.stem}", "--", "python", "-c", ASK)))


def test_without_tensorboard_a_killed_workers_end_is_told_as_well(runs: Any) -> None:
    runs.apply("unseen", retry={"limit": 0}, artifacts={"tensorboard": {"enabled": False}})
    status = runs.reach("unseen", lambda status: status.get("fsmState") == "EXEC")
    killed_and_told(runs, "unseen", status["runId"])


def killed_and_told(runs: Any, name: str, run_id: str) -> None:
    """Kill the run's worker as the kernel would: claim, index and status say how it ended, and agree."""
    os.kill(supervisor(run_id), signal.SIGKILL)
    ended = runs.reach(name, lambda status: status.get("outcome") == "failed")
    told = runs.reach(name, lambda status: (status.get("analytics") or {}).get("manifestDigest"))
    assert ended["fsmState"] == "TERM"
    volume = {"name": "claim", "persistentVolumeClaim": {"claimName": told["analytics"]["claimName"]}}
    mount = {"name": "claim", "mountPath": "/folder", "readOnly": True}
    left = json.loads(runs.python(READ % run_id, mount, volume))
    assert left["digest"] == told["analytics"]["manifestDigest"]
    assert "reason" not in told["analytics"]
    assert (left["manifest"]["outcome"], left["manifest"]["reason"]) == ("failed", "WorkerLost")
    assert [(each["path"], each["outcome"]) for each in left["index"]] == [(run_id, "failed")]

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanrl_worker.telemetry import read_events

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.timeout(120)
def test_from_a_live_run_to_its_archive_and_back(run_tool: Run, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "tools-run"
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "ppo", "--env-id", "CartPole-v1"]
    worker = subprocess.Popen(
        [*command, "--total-timesteps", "100000000", "--run-id", "tools-run", "--run-dir", str(folder)],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not any(event["event"] == "training_started" for event in read_events(folder / "events.jsonl")):
            assert worker.poll() is None, worker.communicate()[1]
            time.sleep(0.2)
        for tool, arguments in (("delete", (folder, "--force")), ("archive", (folder,))):
            refused = run_tool(tool, *arguments)
            assert refused.returncode == 1
            assert "the run is alive" in refused.stderr
            assert "Traceback" not in refused.stderr
        snapshot = run_tool("archive", folder, "--force", "-o", tmp_path / "snapshot.tar.gz")
        assert snapshot.returncode == 0, snapshot.stderr
        assert run_tool("archive", "--verify", tmp_path / "snapshot.tar.gz").returncode == 0
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()

    stale = run_tool("delete", folder, "--archive", tmp_path / "snapshot.tar.gz")
    assert stale.returncode == 1
    assert "is not a copy of it" in stale.stderr
    assert folder.is_dir()

    packed = folder.with_name("tools-run.tar.gz")
    archived = run_tool("archive", folder)
    assert archived.returncode == 0, archived.stderr
    assert "verified" in archived.stdout
    assert run_tool("archive", "--verify", packed, folder).returncode == 0
    deleted = run_tool("delete", folder)
    assert deleted.returncode == 0, deleted.stderr
    assert not folder.exists()
    extracted = run_tool("archive", "--extract", packed, tmp_path / "back")
    assert extracted.returncode == 0, extracted.stderr
    back = tmp_path / "back" / "tools-run"
    assert (back / "events.jsonl").is_file() and list((back / "checkpoints").iterdir())
    assert run_tool("archive", "--verify", packed, back).returncode == 0

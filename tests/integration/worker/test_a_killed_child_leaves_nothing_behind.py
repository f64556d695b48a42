"""`kill -9` of the child at random moments: always `run_failed`, a valid manifest, no orphan, no shared memory.

CLEANRL_KILLS sets how often (200 for the full figure).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

KILLS = int(os.environ.get("CLEANRL_KILLS", "20"))
LONGEST_DELAY = 0.4


@pytest.mark.timeout(60 * KILLS)
def test_kill_at_random_moments(start: Callable[..., Any], look: SimpleNamespace) -> None:
    moments = random.Random(20)
    for number in range(KILLS):
        run_id = f"kill-{os.getpid()}-{number}"
        run = start("--run-id", run_id, steps=100_000, step_seconds=0.001, grandchild=True, frames=True)
        child = run.child()
        time.sleep(moments.uniform(0, LONGEST_DELAY))
        os.kill(child, signal.SIGKILL)
        assert run.wait() == 137, run.stderr
        payload = run.last()["payload"]
        assert run.last()["event"] == "run_failed"
        assert (payload["signal"], payload["return_code"]) == (9, 137)
        assert "signal 9" in payload["message"] or payload["reason"] == "OOMKilled"
        assert run.manifest()["outcome"] == "failed"
        assert not look.is_alive(child)
        grandchild = run.folder / "grandchild.pid"
        assert not grandchild.exists() or not look.is_alive(int(grandchild.read_text() or 0))
        assert look.children(os.getpid()).count(run.process.pid) == 0
        assert not list(Path("/dev/shm").glob(f"*{run_id}*"))

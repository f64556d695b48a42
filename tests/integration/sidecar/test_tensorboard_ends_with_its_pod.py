"""The TensorBoard sidecar obeys SIGTERM at every moment, also before TensorBoard itself is ready."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("delay", [0.3, 3.0])
def test_a_signal_ends_it_at_once(tmp_path: Path, delay: float) -> None:
    command = [
        sys.executable,
        "-m",
        "cleanrl_worker.sidecar",
        "--logdir",
        str(tmp_path),
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGTERM), "before its handler is there, the default ends it"


def test_tensorboards_own_failure_is_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cleanrl_worker.sidecar", "--no-such-flag"]
    assert subprocess.run(command, capture_output=True, check=False, timeout=120).returncode not in (0, None)

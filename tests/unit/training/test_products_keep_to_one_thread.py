"""An algorithm's process multiplies in one thread unless its user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import cleanrl_worker.algorithms.ppo
import numpy as np, os
a = np.ones((700, 700), np.float32)
a @ a
print(len(os.listdir("/proc/self/task")))
"""


def threads(**environment: str) -> int:
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=inherited | environment, capture_output=True, text=True, check=True
    )
    return int(ran.stdout)


def test_one_is_the_default() -> None:
    assert threads() == 1


def test_the_user_decides() -> None:
    assert threads(OPENBLAS_NUM_THREADS="2") >= min(2, os.cpu_count() or 1)

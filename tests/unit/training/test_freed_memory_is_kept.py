"""A process that learns does not have its pages cleared anew at every minibatch."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from cleanrl_worker.training.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def minibatch():
    layers = [np.ones(2 << 20) for _ in range(20)]  # 20 arrays of 16 MiB, freed together

minibatch()
minibatch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    minibatch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_mapped_anew(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such switch")
def test_memory_of_a_minibatch_serves_the_next() -> None:
    kept, left = pages_mapped_anew("keep"), pages_mapped_anew("leave")
    assert kept * 10 < left, f"{kept} pages were mapped in anew, and {left} without the switch"

"""The verdict on a replay buffer's size names the figure, the limit and a size that fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cleanrl_worker.training.replay import memory_limit, memory_verdict, transition_fields
from cleanrl_worker.training.replay_ring import ring_bytes

GIB = 2**30


def machine(root: Path, *, total_kb: int, v2: str | None = None, v1: str | None = None) -> Path:
    files = {"proc/meminfo": f"MemTotal:       {total_kb} kB\nMemFree: 1 kB\n"}
    if v2 is not None:
        files["sys/fs/cgroup/memory.max"] = v2 + "\n"
    if v1 is not None:
        files["sys/fs/cgroup/memory/memory.limit_in_bytes"] = v1 + "\n"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"v2": "1073741824"}, GIB),
        ({"v2": "max"}, 4 * GIB),
        ({"v1": "1073741824"}, GIB),
        ({"v1": "9223372036854771712"}, 4 * GIB),
        ({}, 4 * GIB),
    ],
)
def test_the_limit_is_the_smallest_that_applies(tmp_path: Path, given: dict[str, str], limit: int) -> None:
    assert memory_limit(machine(tmp_path, total_kb=4 * 2**20, **given)) == limit


def test_without_any_figure_nothing_is_claimed(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    assert memory_verdict(10**15, None, capacity=10) == ("ok", "")


def test_the_verdicts() -> None:
    assert memory_verdict(GIB // 2, GIB, capacity=1000) == ("ok", "")
    kind, sentence = memory_verdict(int(0.9 * GIB), GIB, capacity=1000)
    assert kind == "tight"
    assert "0.90 GiB" in sentence
    assert "1.00 GiB" in sentence
    assert "--buffer-size to 833 or less" in sentence
    assert memory_verdict(2 * GIB, GIB, capacity=1000)[0] == "too much"


def test_a_million_frames_is_what_the_arithmetic_says() -> None:
    fields = transition_fields((84, 84), (), obs_dtype=np.uint8)
    assert ring_bytes(1_000_000, fields) == 1_000_000 * (2 * 84 * 84 + 8 + 4 + 4)

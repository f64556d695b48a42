"""Rainbow's transitions span several steps: learning that may start before the first is complete waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.algorithms import rainbow_atari
from cleanrl_worker.training.run import Run


def test_rainbow_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    learned: list[int] = []
    guard = Run.guard

    def noted(run: Run, **values: Any) -> None:
        learned.append(run.step)
        guard(run, **values)

    monkeypatch.setattr(Run, "guard", noted)
    flags = "--total-timesteps 9 --learning-starts 0 --train-frequency 1 --n-step 5 --buffer-size 50 --batch-size 2"
    assert rainbow_atari.main(flags.split()) == 0
    assert learned == [4, 5, 6, 7, 8]

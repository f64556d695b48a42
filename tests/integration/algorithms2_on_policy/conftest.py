"""Algorithms run in this process, with requests that arrive at an exact step."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.training.checkpoints import Loaded, list_checkpoints, load_checkpoint
from cleanrl_worker.training.run import Run


class Folder:
    """A run's folder, and the checkpoints that were left in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> list[Path]:
        return list_checkpoints(self.path / "checkpoints")

    def newest(self) -> Loaded:
        return load_checkpoint(self.checkpoints[-1])


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Folder]:
    """train("ppo_atari", flags, stop_at=20, into="a"): run `main`, asked to stop once it has counted so many steps.

    `in_update` asks when so many minibatches were learned after that step instead.
    """

    def run(
        algo: str,
        flags: list[str],
        *,
        stop_at: int | None = None,
        in_update: int = 0,
        into: str = "run",
        go_on: bool = False,
        extend: Path | None = None,
    ) -> Folder:
        folder = tmp_path / into
        folder.mkdir(exist_ok=True)
        asked: list[int] = []
        learned: list[int] = []

        def ask(self: Run) -> None:
            if stop_at is not None and self.step >= stop_at and not asked:
                asked.append(self.step)
                self.link.requests.append({"cmd": "stop"})

        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.setenv("CLEANRL_RUN_ID", "test")
            patch.setenv("CLEANRL_RUN_DIR", str(folder))
            patch.setenv("CLEANRL_CHECKPOINT_DIR", str(folder / "checkpoints"))
            patch.setenv("CLEANRL_TENSORBOARD_DIR", str(folder / "tensorboard"))
            patch.setenv("GYM_GUI_FASTLANE_ONLY", "0")
            if go_on:
                patch.setenv("CLEANRL_CONTINUE", "1")
            if extend is not None:
                patch.setenv("CLEANRL_RESUME_PATH", str(extend))
            count, guard = Run.count, Run.guard

            def counted(self: Run, step: Any, processes: int = 1) -> None:
                count(self, step, processes)
                if not in_update:
                    ask(self)

            def guarded(self: Run, **values: float) -> None:
                guard(self, **values)
                if in_update and stop_at is not None and self.step >= stop_at:
                    learned.append(self.step)
                    if len(learned) == in_update:
                        ask(self)

            patch.setattr(Run, "count", counted)
            patch.setattr(Run, "guard", guarded)
            assert importlib.import_module(f"cleanrl_worker.algorithms.{algo}").main(flags) == 0
        assert stop_at is None or asked, "the run ended before it was asked to stop"
        return Folder(folder)

    return run

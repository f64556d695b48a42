"""The evaluation of a finished model obeys what the run is asked meanwhile, and the run ends also where episodes do not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.algorithms import ppo
from cleanrl_worker.training import run as runs
from cleanrl_worker.training.run import Run

FLAGS = ["--env-id", "Endless-v0", "--total-timesteps", "64", "--num-envs", "1", "--num-steps", "64", "--save-model"]


class Endless(gym.Env[Any, Any]):
    """Goes on for ever."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.fixture(autouse=True)
def _endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    gym.register("Endless-v0", Endless)
    yield
    del gym.registry["Endless-v0"]


def test_episodes_that_do_not_end_do_not_keep_the_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(runs, "LONGEST_EVALUATION", 200)
    assert ppo.main(FLAGS) == 0
    assert "not over after 200 steps" in capfd.readouterr().err
    assert list(tmp_path.glob("runs/*/ppo.cleanrl_model"))


def test_a_stop_is_obeyed_between_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    attend, seen = Run.attend, []

    def asked(self: Run) -> None:
        if self.step == 64 and self.store.last is not None:  # all steps are done, the final checkpoint stands
            seen.append(self.step)
            if len(seen) == 5:
                self.signal_number = signal.SIGTERM
                self.link.requests.append({"cmd": "stop"})
        attend(self)

    monkeypatch.setattr(Run, "attend", asked)
    assert ppo.main(FLAGS) == 128 + signal.SIGTERM
    assert len(seen) == 5

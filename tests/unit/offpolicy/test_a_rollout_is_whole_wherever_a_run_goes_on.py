"""PQN learns from whole rollouts only, also where a run goes on at any step, or with environments that began afresh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from cleanrl_worker.algorithms import pqn
from cleanrl_worker.training.run import Run

FLAGS = ["--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2"]


class Counting(gym.Env[Any, Any]):
    """Shows how many steps were taken since it was made, which no reset undoes: its state can't be restored."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(0, np.inf, (1,)), gym.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        del action
        self.steps += 1
        return self._seen(), 1.0, False, False, {}

    def _seen(self) -> Any:
        return np.array([1 + self.steps], np.float32)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The observations (steps, environments) of each rollout that is learned from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEANRL_RUN_ID", "test")
    rollouts: list[Any] = []
    update = pqn.update

    def seen(network: Any, optimizer: Any, rollout: Any, *rest: Any) -> tuple[float, float]:
        rollouts.append(rollout.obs[:, :, 0].copy())
        return update(network, optimizer, rollout, *rest)

    monkeypatch.setattr(pqn, "update", seen)
    return rollouts


def stop_at_step_40(patch: pytest.MonkeyPatch) -> None:
    attend = Run.attend

    def stop(run: Run) -> None:
        if run.step == 40:
            run.link.requests.append({"cmd": "stop"})
        attend(run)

    patch.setattr(Run, "attend", stop)


def test_from_a_model_file_of_any_step(learned: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert pqn.main([*FLAGS, "--total-timesteps", "64", "--save-model"]) == 0
    learned.clear()
    model = next(tmp_path.glob("runs/*/pqn.cleanrl_model"))
    monkeypatch.setenv("CLEANRL_RESUME_PATH", str(model))
    monkeypatch.setenv("CLEANRL_RESUME_GLOBAL_STEP", "1015")
    assert pqn.main([*FLAGS, "--total-timesteps", "64"]) == 0
    assert len(learned) == 2
    assert all(obs.all() for obs in learned), "rows that nobody filled were learned from"


def test_with_environments_that_began_afresh(
    learned: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gym.register("Counting-v0", Counting)
    flags = [*FLAGS, "--total-timesteps", "96", "--env-id", "Counting-v0"]
    with monkeypatch.context() as patch:
        stop_at_step_40(patch)
        assert pqn.main(flags) == 0
    assert len(learned) == 1
    monkeypatch.setenv("CLEANRL_CONTINUE", "1")
    assert pqn.main(flags) == 0
    assert len(learned) > 1
    for obs in learned[1:]:
        assert (np.diff(obs, axis=0) == 1).all(), "steps of two attempts were taken for one episode"


def test_from_a_checkpoint_that_does_not_tell_how_far_its_rollout_was(
    learned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those from before it was told are."""
    flags = [*FLAGS, "--total-timesteps", "96"]
    told = pqn.Rollout.state_dict

    def untold(rollout: pqn.Rollout) -> dict[str, Any]:
        return {name: value for name, value in told(rollout).items() if name != "t"}

    with monkeypatch.context() as patch:
        stop_at_step_40(patch)
        patch.setattr(pqn.Rollout, "state_dict", untold)
        assert pqn.main(flags) == 0
    monkeypatch.setenv("CLEANRL_CONTINUE", "1")
    assert pqn.main(flags) == 0
    gone_on = learned.copy()
    learned.clear()
    monkeypatch.delenv("CLEANRL_CONTINUE")
    assert pqn.main(flags) == 0
    np.testing.assert_array_equal(gone_on, learned, "an uninterrupted run learned from other rollouts")

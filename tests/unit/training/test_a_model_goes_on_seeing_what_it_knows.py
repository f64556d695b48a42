"""A run that goes on from a model file normalises observations as the run did that the file is from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.algorithms import ppo_continuous_action
from cleanrl_worker.training.checkpoints import load_checkpoint
from cleanrl_worker.training.envs import Envs

FLAGS = ["--env-id", "Pendulum-v1", "--total-timesteps", "256", "--num-steps", "128", "--num-minibatches", "4"]


def statistics(folder: Path) -> Any:
    """Of the observations, in the run's last checkpoint."""
    (path,) = folder.glob("runs/*/checkpoints/step-*")
    return load_checkpoint(path).state["kept"]["envs"]["obs_normaliser"]


@pytest.mark.parametrize("known", [True, False])
def test_the_statistics_go_on(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.chdir(first)
    assert ppo_continuous_action.main([*FLAGS, "--save-model"]) == 0
    (model,) = first.glob("runs/*/*.cleanrl_model")
    if not known:  # as upstream's files are
        import torch

        weights = torch.load(model)
        torch.save({name: value for name, value in weights.items() if "normaliser" not in name}, model)
    monkeypatch.chdir(second)
    monkeypatch.setenv("CLEANRL_RESUME_PATH", str(model))
    capfd.readouterr()
    assert ppo_continuous_action.main(FLAGS) == 0
    assert ("with the statistics of observations" in capfd.readouterr().out) == known
    before, after = statistics(first)["count"], statistics(second)["count"]
    assert after == pytest.approx(256 + 2 + 256 * known, abs=3)
    assert after > before or not known


def test_what_is_shown_already_is_normalised_by_them_too() -> None:
    envs = Envs.make("Pendulum-v1", 2, obs_normaliser=True)
    envs.reset(1)
    raw = envs.state_dict()["raw"]
    envs.go_on_with_normaliser({"mean": np.full(3, 0.5), "var": np.full(3, 4.0), "count": 100.0})
    np.testing.assert_allclose(envs.obs, (raw - 0.5) / 2, rtol=1e-5)
    envs.step(np.zeros((2, 1), np.float32))
    assert envs.state_dict()["obs_normaliser"]["count"] == 102

"""C51's weights are probabilities of certain returns: a run with other ones does not go on from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cleanrl_worker.algorithms import c51

FLAGS = ["--total-timesteps", "300", "--learning-starts", "100", "--batch-size", "4", "--v-min", "0"]


@pytest.mark.parametrize("source", ["checkpoints", "c51.cleanrl_model"])
def test_other_returns_are_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert c51.main([*FLAGS, "--v-max", "50", "--save-model"]) == 0
    (path,) = tmp_path.glob(f"runs/*/{source}")
    monkeypatch.setenv("CLEANRL_RESUME_PATH", str(path))
    capfd.readouterr()
    assert c51.main(FLAGS) == 2
    assert "was made with --v-max 50, not 100: use it with the same" in capfd.readouterr().err
    assert c51.main([*FLAGS, "--v-max", "50.0"]) == 0

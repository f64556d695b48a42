"""What can't work is refused before the first step, with exit code 2 and what to change in the sentence."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from cleanrl_worker.algorithms import ppo, ppo_continuous_action, ppo_gru, rpo_continuous_action
from cleanrl_worker.training.run import Run, launch

PENDULUM = ["--env-id", "Pendulum-v1"]
CASES = [
    (ppo, PENDULUM, "use --algo ppo_continuous_action"),
    (ppo, ["--seed", "-1"], "--seed must be at least 0"),
    (ppo, ["--num-envs", "0"], "--num-envs"),
    (ppo, ["--num-minibatches", "3"], "choose a divisor of 512"),
    (ppo, ["--num-minibatches", "0"], "choose a divisor of 512"),
    (ppo, ["--num-minibatches", "512"], "fewer --num-minibatches"),
    (ppo, ["--update-epochs", "0"], "--update-epochs must be at least 1"),
    (ppo, ["--total-timesteps", "511"], "Use at least 512"),
    (ppo, ["--env-id", "NoSuchEnv-v0"], "NoSuchEnv"),
    (ppo, ["--max-episode-steps", "0"], "--max-episode-steps"),
    (ppo_continuous_action, ["--env-id", "CartPole-v1"], "use --algo ppo"),
    (ppo_continuous_action, [*PENDULUM, "--num-minibatches", "3"], "choose a divisor of 2048"),
    (ppo_continuous_action, [*PENDULUM, "--total-timesteps", "100"], "Use at least 2048"),
    (ppo_continuous_action, [*PENDULUM, "--update-epochs", "0"], "--update-epochs must be at least 1"),
    (rpo_continuous_action, ["--env-id", "CartPole-v1"], "use --algo ppo"),
    (ppo_gru, ["--num-minibatches", "3"], "does not divide --num-envs 4"),
    (ppo_gru, ["--update-epochs", "-1"], "--update-epochs must be at least 1"),
    (ppo_gru, ["--max-episode-steps", "0"], "--max-episode-steps must be at least 1"),
    (ppo_gru, ["--view-size", "4"], "must be odd"),
    (ppo_gru, PENDULUM, "use --algo ppo_continuous_action"),
]


@pytest.mark.parametrize(("module", "flags", "sentence"), CASES)
def test_refused(
    module: object,
    flags: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert module.main(flags) == 2  # type: ignore[attr-defined]
    assert sentence in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == [], "a refused run leaves nothing behind"


def test_a_folder_that_can_not_be_written_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Root may write anywhere, so the system's answer is pretended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda place, _mode: Path(place) != tmp_path)
    assert ppo.main(["--total-timesteps", "512"]) == 2
    assert capfd.readouterr().err == (
        f"ppo: results go into runs/ of {tmp_path}, which can't be written: change to a folder of yours.\n"
    )
    (tmp_path / "runs").mkdir()
    assert ppo.main(["--total-timesteps", "512"]) == 0, "a volume of its own may be mounted there"


@pytest.mark.parametrize("source", ["checkpoints", "ppo.cleanrl_model"])
def test_an_extension_in_which_nothing_would_be_learned_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ppo.main(["--total-timesteps", "512", "--save-model"]) == 0
    (path,) = tmp_path.glob(f"runs/*/{source}")
    monkeypatch.setenv("CLEANRL_RESUME_PATH", str(path))
    monkeypatch.setenv("CLEANRL_RESUME_GLOBAL_STEP", "512")
    capfd.readouterr()
    assert ppo.main(["--total-timesteps", "511"]) == 2
    assert "--total-timesteps 511 after the 512 that were done" in capfd.readouterr().err
    assert ppo.main(["--total-timesteps", "512"]) == 0


def test_a_network_with_fewer_parts_than_the_saved_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--env-id", "CartPole-v1", "--total-timesteps", "32", "--num-steps", "8"]
    monkeypatch.chdir(tmp_path)
    assert ppo_gru.main([*flags, "--gru-num-layers", "2", "--save-model"]) == 0
    (path,) = tmp_path.glob("runs/*/ppo_gru.cleanrl_model")
    monkeypatch.setenv("CLEANRL_RESUME_PATH", str(path))
    capfd.readouterr()
    assert ppo_gru.main(flags) == 2
    assert "gru.weight_hh_l1" in (said := capfd.readouterr().err)
    assert said.endswith("the flags that its network was made with.\n")
    assert ppo_gru.main([*flags, "--gru-num-layers", "2"]) == 0


@dataclass
class PhasedArgs(ppo.Args):
    n_iteration: int = 2
    """As PPG has it: rollouts in a phase."""


def test_an_extension_by_less_than_a_phase_is_told_how_long_a_phase_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(args: PhasedArgs, run: Run) -> None:
        ppo.check(args)
        args.num_iterations -= args.num_iterations % args.n_iteration
        run.start()

    monkeypatch.chdir(tmp_path)
    assert ppo.main(["--total-timesteps", "1024"]) == 0
    (path,) = tmp_path.glob("runs/*/checkpoints")
    monkeypatch.setenv("CLEANRL_RESUME_PATH", str(path))
    assert launch(PhasedArgs, train, ["--total-timesteps", "600"]) == 2
    assert "Use at least 1024." in capfd.readouterr().err
    assert launch(PhasedArgs, train, ["--total-timesteps", "1024"]) == 0


@pytest.mark.parametrize(("flags", "code"), [(["--exp-name", "mine"], 0), ([], 2)])
def test_a_checkpoint_that_tells_the_experiments_name_for_its_algorithm_is_its_experiments(
    flags: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that were made before the two were told apart."""
    monkeypatch.chdir(tmp_path)
    assert ppo.main(["--total-timesteps", "512", "--exp-name", "mine"]) == 0
    (path,) = tmp_path.glob("runs/*/checkpoints/step-*/manifest.json")
    manifest = json.loads(path.read_text())
    manifest["meta"]["algo"] = "mine"
    path.write_text(json.dumps(manifest))
    monkeypatch.setenv("CLEANRL_RESUME_PATH", str(path.parent))
    assert ppo.main(["--total-timesteps", "512", *flags]) == code


def test_an_unknown_flag_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        ppo.main(["--no-such-flag", "1"])
    assert ended.value.code == 2
    assert "no-such-flag" in capfd.readouterr().err

"""resume_training: more steps from a checkpoint or, weights only, from a model file, and refusals in a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.training.checkpoints import newest_valid

NO_UPDATE = {"learning_starts": 9, "buffer_size": 1000}
IDLE: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", 256, {"num_steps": 64, "learning_rate": 0.0}),
    "ppo_continuous_action": ("Pendulum-v1", 256, {"num_steps": 256, "num_minibatches": 4, "learning_rate": 0.0}),
    "dqn": ("CartPole-v1", 10, NO_UPDATE),
    "c51": ("CartPole-v1", 10, NO_UPDATE),
    "sac_continuous_action": ("Pendulum-v1", 10, NO_UPDATE),
}
"""Where each algorithm goes on, for how many steps, and flags with which it learns nothing in them."""


def test_a_full_checkpoint_is_extended_by_more_steps(run: Any, trained: Callable[[str], Path]) -> None:
    source = trained("ppo")
    loaded = newest_valid(source / "checkpoints")
    assert loaded is not None
    extras = {"mode": "resume", "checkpoint_path": str(source), "checkpoint_sha256": loaded.sha256}
    ended = run("ppo", "CartPole-v1", 512, {**extras, "algo_params": {"num_steps": 64}}, into="more")
    assert ended.code == 0, ended.process.stderr
    (said,) = ended.payloads("checkpoint_loaded")
    assert (said["step"], said["weights_only"], said["sha256"]) == (loaded.step, False, loaded.sha256)
    assert ended.payloads("run_completed")[0]["step"] == loaded.step + 512
    last = newest_valid(ended.folder / "checkpoints")
    assert last is not None
    assert last.state["kept"]["optimizer"]["step"] > loaded.state["kept"]["optimizer"]["step"], "Adam's count went on"
    assert min(step for step, _ in ended.tensorboard("charts/learning_rate")) > loaded.step


def test_what_it_started_from_is_needed_once(run: Any, trained: Callable[[str], Path], tmp_path: Path) -> None:
    """Another run's checkpoints are dropped as newer ones come; by then it has its own."""
    source = tmp_path / "source"
    shutil.copytree(trained("ppo"), source)
    extras = {"mode": "resume", "checkpoint_path": str(source), "algo_params": {"num_steps": 64}}
    first = run("ppo", "CartPole-v1", 512, extras, into="more")
    assert first.code == 0, first.process.stderr
    lines = (first.folder / "events.jsonl").read_text().splitlines(keepends=True)
    (first.folder / "events.jsonl").write_text("".join(line for line in lines if '"run_completed"' not in line))
    source.rename(tmp_path / "gone")
    again = run("ppo", "CartPole-v1", 512, extras, into="more")
    assert again.code == 0, again.process.stderr
    assert again.payloads("checkpoint_loaded")[-1]["verb"] == "continue"
    record = tmp_path / "record"
    other = run("ppo", "CartPole-v1", 512, extras, "--record-path", str(record), into="other")
    assert (other.code, json.loads(record.read_text())["reason"]) == (2, "NoCheckpoint")


def test_an_experiment_of_any_name_is_still_its_algorithms(run: Any) -> None:
    named = {"algo_params": {"exp_name": "my/test", "num_steps": 64, "save_model": True}}
    first = run("ppo", "CartPole-v1", 256, named, into="named")
    assert first.code == 0, first.process.stderr
    (model,) = first.folder.glob("runs/*/*.cleanrl_model")
    assert model.name == "my-test.cleanrl_model"
    assert first.tensorboard("charts/learning_rate")
    for kind, source in (("run", str(first.folder)), ("model", str(model))):
        resume = {"mode": "resume", "checkpoint_path": source, "algo_params": {"num_steps": 64}}
        more = run("ppo", "CartPole-v1", 256, resume, into=f"more-{kind}")
        assert more.code == 0, more.process.stderr
        played = run("ppo", "CartPole-v1", None, {"mode": "eval", "policy_path": source}, into=f"played-{kind}")
        assert played.code == 0, played.process.stderr


@pytest.mark.parametrize("algo", IDLE)
def test_a_bare_model_gives_its_weights_and_the_log_says_what_is_missing(
    algo: str, run: Any, trained: Callable[[str], Path]
) -> None:
    (model,) = trained(algo).glob("runs/*/*.cleanrl_model")
    env_id, steps, params = IDLE[algo]
    extras = {"mode": "resume_training", "checkpoint_path": str(model), "algo_params": params}
    ended = run(algo, env_id, steps, extras, into=f"more-{algo}")
    assert ended.code == 0, ended.process.stderr
    (said,) = ended.payloads("checkpoint_loaded")
    assert (said["step"], said["weights_only"], said["verb"]) == (0, True, "extend")
    assert any("holds weights only" in note["message"] for note in ended.payloads("note"))
    # Nothing was learned since, so the networks are still those of the file.
    before = newest_valid(trained(algo) / "checkpoints")
    after = newest_valid(ended.folder / "checkpoints")
    assert before is not None
    assert after is not None
    assert flat(before.state["kept"]["agent"]) == flat(after.state["kept"]["agent"])


def flat(tree: Any) -> dict[str, bytes]:
    if isinstance(tree, dict):
        return {f"{k}/{rest}": v for k, value in tree.items() for rest, v in flat(value).items()}
    if isinstance(tree, list | tuple):
        return {f"{i}/{rest}": v for i, value in enumerate(tree) for rest, v in flat(value).items()}
    return {"": np.asarray(tree).tobytes()}


@pytest.mark.parametrize(
    ("algo", "env_id", "source", "message"),
    [
        ("dqn", "CartPole-v1", "ppo", "is of ppo, not of dqn: use it with --algo ppo"),
        ("ppo", "Acrobot-v1", "ppo", "was made on CartPole-v1, not on Acrobot-v1: use it with --env-id CartPole-v1"),
    ],
)
def test_another_algorithm_or_environment_is_refused(
    algo: str, env_id: str, source: str, message: str, run: Any, trained: Callable[[str], Path]
) -> None:
    extras = {"mode": "resume_training", "checkpoint_path": str(trained(source) / "checkpoints")}
    ended = run(algo, env_id, 512, extras)
    assert ended.code == 2
    (failed,) = ended.payloads("run_failed")
    assert (failed["reason"], message in failed["message"]) == ("BadConfig", True), failed


def test_weights_that_do_not_fit_are_refused(run: Any, trained: Callable[[str], Path]) -> None:
    (model,) = trained("dqn").glob("runs/*/*.cleanrl_model")
    ended = run("ppo", "CartPole-v1", 512, {"mode": "resume_training", "checkpoint_path": str(model)})
    assert ended.code == 2
    assert "do not fit ppo on CartPole-v1" in ended.payloads("run_failed")[0]["message"]


def test_a_checkpoint_that_was_exchanged_is_refused(run: Any, trained: Callable[[str], Path]) -> None:
    extras = {"mode": "resume_training", "checkpoint_path": str(trained("ppo")), "checkpoint_sha256": "f" * 64}
    ended = run("ppo", "CartPole-v1", 512, extras)
    assert ended.code == 2
    assert "holds no checkpoint with the sha256 ffff" in ended.payloads("run_failed")[0]["message"]


def test_what_is_no_checkpoint_is_refused(run: Any, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"\x80\x04hello")
    ended = run("ppo", "CartPole-v1", 512, {"mode": "resume_training", "checkpoint_path": str(tmp_path / "model")})
    assert ended.code == 2
    assert "is not a model file that can be read safely" in ended.payloads("run_failed")[0]["message"]

"""Policy evaluation as a run: every algorithm's model and checkpoint, its files, events and refusals."""

from __future__ import annotations

import csv
import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.evals import Evaluation
from cleanrl_worker.training.checkpoints import newest_valid

ALGORITHMS = (
    *("ppo", "ppo_gru", "ppo_continuous_action", "rpo_continuous_action", "pqn", "dqn", "c51"),
    *("ddpg_continuous_action", "td3_continuous_action", "sac_continuous_action"),
)
ENVIRONMENTS = dict.fromkeys([name for name in ALGORITHMS if "continuous" in name], "Pendulum-v1")
ENVIRONMENTS |= dict.fromkeys(("ppo", "pqn", "dqn", "c51"), "CartPole-v1")
ENVIRONMENTS["ppo_gru"] = "MiniGrid-Empty-5x5-v0"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_model_file_and_a_checkpoint_of_the_same_step_play_alike(algo: str, trained: Callable[[str], Path]) -> None:
    folder = trained(algo)
    (model,) = folder.glob("runs/*/*.cleanrl_model")
    env_id = ENVIRONMENTS[algo]
    results = []
    for source in (model, folder / "checkpoints"):
        evaluation = Evaluation(source, env_id, most_episodes=3, algo=algo, max_episode_steps=60)
        results.append(evaluation.play(3, 5).returns)
        evaluation.close()
    assert results[0] == results[1]
    assert len(results[0]) == 3


def test_an_evaluation_leaves_figures_episodes_curves_and_a_video(run: Any, trained: Callable[[str], Path]) -> None:
    source = trained("ppo")
    extras = {"mode": "policy_eval", "policy_path": str(source), "eval_episodes": 7, "eval_batch_size": 3}
    extras |= {"eval_capture_video": True, "eval_gamma": 0.9, "eval_max_episode_steps": 40}
    ended = run("ppo", "CartPole-v1", None, extras, into="eval")
    assert ended.code == 0, ended.process.stderr

    with (ended.folder / "eval_episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    returns = [float(row["return"]) for row in rows]
    assert [row["batch"] for row in rows] == ["1"] * 3 + ["2"] * 3 + ["3"]
    assert [int(row["episode"]) for row in rows] == list(range(7))
    assert all(int(row["length"]) <= 40 for row in rows)

    summary = json.loads((ended.folder / "eval_summary.json").read_text())
    assert (summary["batch_index"], summary["episodes"]) == (3, 1)
    overall = summary["overall"]
    assert overall["episodes"] == 7
    assert overall["avg_return"] == pytest.approx(statistics.fmean(returns))
    assert overall["median_return"] == statistics.median(returns)
    assert overall["ci95_return"][0] <= overall["avg_return"] <= overall["ci95_return"][1]

    assert [value for _, value in ended.tensorboard("eval/episode_return")] == pytest.approx(returns)
    assert [step for step, _ in ended.tensorboard("eval/avg_return")] == [1, 2, 3]
    for tag in ("min_return", "max_return", "median_return", "std_return", "episodes", "duration_sec"):
        assert len(ended.tensorboard(f"eval/{tag}")) == 3

    batches = [beat for beat in ended.payloads("heartbeat") if beat["status"] == "policy_eval_batch"]
    assert [beat["batch_index"] for beat in batches] == [1, 2, 3]
    (completed,) = ended.payloads("run_completed")
    assert completed["mode"] == "policy_eval"
    assert completed["total_episodes"] == 7
    assert completed["avg_return"] == pytest.approx(statistics.fmean(returns))
    assert ended.payloads("scalars")[-1]["step"] == ended.payloads("scalars")[-1]["total"] == 7
    assert list((ended.folder / "videos").glob("*.mp4"))
    assert ended.manifest["outcome"] == "completed"


def test_a_stopped_evaluation_goes_on_with_its_next_batch(
    run: Any, stop_when: Any, trained: Callable[[str], Path], tmp_path: Path
) -> None:
    """Repeats until it is stopped; continued, it keeps what was there."""
    source, folder = str(trained("ppo")), tmp_path / "run"
    extras = {"mode": "policy_eval", "policy_path": source, "eval_episodes": 2, "eval_repeat": True}
    stop_when("ppo", "CartPole-v1", extras, (folder / "eval_summary.json").exists)
    batches = json.loads((folder / "eval_summary.json").read_text())["batch_index"]
    rows = (folder / "eval_episodes.csv").read_text().splitlines(keepends=True)
    before = "".join(rows[: 1 + 2 * batches])
    torn = before + "999,9999"  # as if the machine had died within a line of the next batch
    (folder / "eval_episodes.csv").write_text(torn)

    extras = {**extras, "eval_repeat": False, "eval_episodes": 2 * batches + 2, "eval_batch_size": 2}
    second = run("ppo", "CartPole-v1", None, extras, "--continue")
    assert second.code == 0, second.process.stderr
    after = (second.folder / "eval_episodes.csv").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 1 + 2 * batches + 2
    assert second.payloads("run_completed")[-1]["total_episodes"] == 2 * batches + 2


def refused(run: Any, message: str, algo: str, env_id: str, **extras: Any) -> None:
    ended = run(algo, env_id, None, {"mode": "policy_eval", **extras})
    assert ended.code == 2, ended.process.stderr
    (failed,) = ended.payloads("run_failed")
    assert failed["reason"] == "BadConfig"
    assert message in failed["message"]
    assert "Traceback" not in failed["error"]


def test_a_checkpoint_of_another_algorithm_is_refused(run: Any, trained: Callable[[str], Path]) -> None:
    path = str(trained("dqn") / "checkpoints")
    refused(run, "is of dqn, not of ppo: use it with --algo dqn", "ppo", "CartPole-v1", policy_path=path)


def test_a_checkpoint_with_another_digest_is_refused(run: Any, trained: Callable[[str], Path]) -> None:
    folder = trained("ppo") / "checkpoints"
    loaded = newest_valid(folder)
    assert loaded is not None
    path, digest = str(loaded.path), "0" * 64
    message = f"is not the expected checkpoint: its sha256 is {loaded.sha256}"
    refused(run, message, "ppo", "CartPole-v1", policy_path=path, checkpoint_sha256=digest)


def test_a_damaged_checkpoint_is_refused(run: Any, trained: Callable[[str], Path], tmp_path: Path) -> None:
    (source,) = (trained("ppo") / "checkpoints").glob("step-*")
    shutil.copytree(source, tmp_path / source.name)
    with (tmp_path / source.name / "arrays.bin").open("r+b") as file:
        file.write(b"\xff\xff\xff\xff")
    message = "is damaged: its sha256 is not the one in the manifest"
    refused(run, message, "ppo", "CartPole-v1", policy_path=str(tmp_path / source.name))

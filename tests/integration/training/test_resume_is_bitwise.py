"""A run that was cut in two equals the run in one go, bit for bit: weights, optimizers, random numbers, replay, episodes."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import pytest
from bitwise import different

from cleanrl_worker.evals import evaluate
from cleanrl_worker.training.checkpoints import load_checkpoint

PENDULUM = ["--env-id", "Pendulum-v1"]
OFF_POLICY = ["--total-timesteps", "4000", "--learning-starts", "200"]
SMALL = [*PENDULUM, *OFF_POLICY, "--batch-size", "32", "--buffer-size", "3000"]
ROLLOUT = [*PENDULUM, "--total-timesteps", "4096", "--num-steps", "512", "--num-minibatches", "8"]

FLAGS = {
    "ppo": ["--total-timesteps", "4096"],
    "ppo on images": ["--env-id", "MiniGrid-Empty-5x5-v0", "--total-timesteps", "4096", "--update-epochs", "1"],
    "ppo with a shared trunk": ["--total-timesteps", "4096", "--network", "shared"],
    "ppo_continuous_action": ROLLOUT,
    "rpo_continuous_action": ROLLOUT,
    "ppo_gru": ["--env-id", "MiniGrid-Empty-5x5-v0", "--total-timesteps", "4096", "--update-epochs", "1"],
    "pqn": ["--total-timesteps", "4096"],
    "dqn": [*OFF_POLICY, "--buffer-size", "3000"],
    "c51": [*OFF_POLICY, "--buffer-size", "3000"],
    "ddpg_continuous_action": SMALL,
    "td3_continuous_action": SMALL,
    "sac_continuous_action": SMALL,
}
CUT = 2004
"""In the middle of a rollout of every algorithm that has them, and of an episode."""


@pytest.mark.covers(resume="bitwise", evaluation="plays")
@pytest.mark.parametrize("case", FLAGS)
def test_two_halves_equal_one_whole(case: str, train: Any) -> None:
    algo = case.split()[0]
    assert importlib.util.find_spec(f"cleanrl_worker.algorithms.{algo}")
    whole = train(algo, FLAGS[case], requests=[(CUT, "checkpoint")], into="whole")
    assert len(whole.checkpoints) == 2
    middle, end = (load_checkpoint(path) for path in whole.checkpoints)
    assert any(middle.state["kept"]["envs"]["lengths"]), "the cut should be in the middle of an episode"

    half = whole.folder.with_name("half")
    shutil.copytree(whole.folder / "checkpoints", half / "checkpoints")
    shutil.rmtree(half / "checkpoints" / end.path.name)
    resumed = train(algo, FLAGS[case], into="half", CLEANRL_CONTINUE="1")

    other = load_checkpoint(resumed.checkpoints[-1])
    assert other.step == end.step
    assert middle.step == CUT
    assert not different({**end.state, "tensorboard": None}, {**other.state, "tensorboard": None})
    assert different(end.state["kept"]["agent"], middle.state["kept"]["agent"]), (
        "nothing was learned in the second half"
    )
    played = evaluate(algo, other.path, other.meta["env_id"], episodes=1, max_episode_steps=20)
    assert played.episodes == 1

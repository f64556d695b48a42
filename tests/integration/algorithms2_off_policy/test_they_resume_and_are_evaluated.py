"""Cut in two, a run equals the run in one go, bit for bit; its model file and its checkpoints can be evaluated."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bitwise import different
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cleanrl_worker.evals import Evaluation
from cleanrl_worker.training.checkpoints import load_checkpoint

SOON = "--learning-starts 100 --buffer-size 250 --batch-size 16 --total-timesteps 400"
IMAGES = "--learning-starts 60 --buffer-size 120 --batch-size 4 --total-timesteps 200"
STUDENT = (
    "--learning-starts 30 --buffer-size 120 --batch-size 2 --total-timesteps 70 --teacher-eval-episodes 1 "
    "--teacher-steps 40 --offline-steps 20 --target-network-frequency 15"
)
PENDULUM = f"{SOON} --env-id Pendulum-v1"
FLAGS = {
    "dqn_jax": SOON,
    "c51_jax": SOON,
    "ddpg_continuous_action_jax": PENDULUM,
    "td3_continuous_action_jax": PENDULUM,
    "dqn_atari": f"{IMAGES} --target-network-frequency 50",
    "c51_atari": f"{IMAGES} --target-network-frequency 50",
    "sac_atari": f"{IMAGES} --target-network-frequency 50 --env-id PongNoFrameskip-v4",
    "rainbow_atari": f"{IMAGES} --target-network-frequency 50",
    "dqn_atari_jax": f"{IMAGES} --target-network-frequency 50",
    "c51_atari_jax": f"{IMAGES} --target-network-frequency 50",
}


@pytest.mark.covers(once=True, resume="bitwise", evaluation="plays")
@pytest.mark.parametrize("algo", FLAGS)
def test_a_run(algo: str, train: Any) -> None:
    flags = FLAGS[algo].split()
    vectors = "atari" not in algo
    save = (
        ["--save-model"] if vectors else []
    )  # ten games of Atari take a while; model files of images have a test of theirs
    whole = train(algo, [*flags, *save], moments=[203 if vectors else 131], into="whole")
    middle, end = (load_checkpoint(path) for path in whole.checkpoints)
    assert different(end.state["kept"]["agent"], middle.state["kept"]["agent"]), "nothing was learned after the cut"
    assert any(middle.state["kept"]["envs"]["lengths"]), "the cut should be in the middle of an episode"
    assert not continued(train, algo, flags, whole, middle.path)

    env_id = end.meta["env_id"]
    if save:
        assert len(logged(whole.folder, "eval/episodic_return")) == 10
        assert same_actions(env_id, whole.model, end.path)
    else:
        same_actions(env_id, end.path, end.path)


@pytest.mark.timeout(900)  # trains several times, where JAX compiles each time
@pytest.mark.covers(once=True, resume="bitwise", evaluation="plays")
@pytest.mark.parametrize("algo", ["qdagger_dqn_atari_impalacnn", "qdagger_dqn_atari_jax_impalacnn"])
def test_a_student(algo: str, train: Any, teacher: Path) -> None:
    """The cuts are while the teacher plays, while the student learns offline, and while it plays."""
    flags = [*STUDENT.split(), "--teacher-model-path", str(teacher)]
    first = train(algo, flags, into="counted")
    measured = attends_of_an_evaluation(teacher)
    offline = attends_of_an_evaluation(next(first.folder.glob("runs/*/*-offline-20.cleanrl_model")))
    moments = [measured + 21, measured + 40 + 11, measured + 40 + 20 + offline + 51]
    whole = train(algo, flags, moments=moments, into="whole")
    *cuts, end = (load_checkpoint(path) for path in whole.checkpoints)
    assert [cut.state["kept"]["done"]["teacher_steps"] for cut in cuts] == [21, 40, 40]
    assert [cut.state["kept"]["done"]["offline_steps"] for cut in cuts] == [0, 11, 20]
    assert [cut.step for cut in cuts] == [0, 0, 51]
    for cut in cuts if algo == "qdagger_dqn_atari_impalacnn" else cuts[1:2]:
        assert not continued(train, algo, flags, whole, cut.path)
    assert same_actions("BreakoutNoFrameskip-v4", first.checkpoints[-1], end.path)


def continued(train: Any, algo: str, flags: list[str], whole: Any, cut: Path) -> list[str]:
    """Where the run that goes on from `cut` ends otherwise than the whole one."""
    half = whole.folder.with_name(f"half-{cut.name}")
    shutil.copytree(whole.folder / "checkpoints", half / "checkpoints")
    for path in whole.checkpoints[whole.checkpoints.index(cut) + 1 :]:
        shutil.rmtree(half / "checkpoints" / path.name)
    resumed = train(algo, flags, into=half.name, CLEANRL_CONTINUE="1")
    end, other = load_checkpoint(whole.checkpoints[-1]), load_checkpoint(resumed.checkpoints[-1])
    assert other.step == end.step
    return different({**end.state, "tensorboard": None}, {**other.state, "tensorboard": None})


def attends_of_an_evaluation(model: Path) -> int:
    """How often the run is attended to while this model plays one game, as the algorithm plays it."""
    evaluation, count = Evaluation(model, "BreakoutNoFrameskip-v4", most_episodes=1), []
    evaluation.play(1, 10_001, on_step=count.append)
    evaluation.close()
    return len(count)


def same_actions(env_id: str, *sources: Path) -> bool:
    """Whether policies from these files act alike over some steps of the environment."""
    taken = []
    for source in sources:
        evaluation = Evaluation(source, env_id, most_episodes=1)
        envs, rng = evaluation.envs, np.random.default_rng(3)
        envs.reset(5)
        actions = []
        for _ in range(25):
            actions.append(evaluation.policy(envs.obs, envs.starts, rng, False))
            envs.step(actions[-1])
        evaluation.close()
        taken.append(np.array(actions))
    return all(np.array_equal(taken[0], other) for other in taken[1:])


def logged(folder: Path, tag: str) -> list[float]:
    (events,) = (folder / "tensorboard").iterdir()
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    return [scalar.value for scalar in accumulator.Scalars(tag)]

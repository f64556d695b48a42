"""Every one of them stops with a checkpoint, goes on from it to its end, and its checkpoint plays in its own environment."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.evals import evaluate
from cleanrl_worker.tools import schemas

FEW = [
    "--num-envs",
    "2",
    "--num-steps",
    "8",
    "--num-minibatches",
    "2",
    "--update-epochs",
    "1",
    "--total-timesteps",
    "48",
]
LOCAL = ["--local-num-envs", "2", *FEW[2:-1], "96", "--device-ids", "0", "1"]
PHASES = [*FEW[:6], "--n-iteration", "2", "--e-auxiliary", "1", "--num-aux-rollouts", "2", "--total-timesteps", "64"]

FLAGS = {
    "ppo_atari": FEW,
    "ppo_atari_envpool": FEW,
    "ppo_atari_lstm": FEW,
    "ppo_procgen": FEW,
    "ppg_procgen": PHASES,
    "ppo_rnd_envpool": [*FEW, "--num-iterations-obs-norm-init", "1"],
    "ppo_pettingzoo_ma_atari": [*FEW, "--cuda", "False", "--capture_video", "False"],
    "ppo_atari_multigpu": LOCAL,
    "pqn_atari_envpool": FEW,
    "pqn_atari_envpool_lstm": FEW,
    "ppo_atari_envpool_xla_jax": FEW,
    "ppo_atari_envpool_xla_jax_scan": FEW,
}


def leaves(tree: Any) -> list[np.ndarray]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, list | tuple):
        return [leaf for value in tree for leaf in leaves(value)]
    if isinstance(tree, np.ndarray) or hasattr(tree, "detach"):
        return [np.asarray(tree)]
    return [np.frombuffer(repr(tree).encode(), np.uint8)]


@pytest.mark.integration
@pytest.mark.covers(once=True, resume="goes on", evaluation="plays")
@pytest.mark.parametrize("algo", FLAGS)
def test_a_stopped_run_goes_on_to_its_end_and_is_evaluated(algo: str, train: Callable[..., Any], capfd: Any) -> None:
    flags = FLAGS[algo]
    total = int(flags[flags.index("--total-timesteps") + 1])
    stopped = train(algo, flags, stop_at=total // 2 - 4).newest()
    assert 0 < stopped.step < total
    ended = train(algo, flags, go_on=True)
    last = ended.newest()
    assert last.step >= total
    moved = zip(leaves(stopped.state["kept"]["agent"]), leaves(last.state["kept"]["agent"]), strict=True)
    assert any((a != b).any() for a, b in moved), "nothing was learned after the resume"
    assert all(np.isfinite(leaf).all() for leaf in leaves(last.state["kept"]["agent"]))
    said = capfd.readouterr()
    if "envpool" in algo or "procgen" in algo or "pettingzoo" in algo:
        assert "begin a fresh episode" in said.err

    env_id = schemas.generate()["algorithms"][algo]["env_id"]
    played = evaluate(algo, last.path, env_id, episodes=2, seed=3, max_episode_steps=6)
    again = evaluate(algo, last.path, env_id, episodes=2, seed=3, max_episode_steps=6)
    assert played.episodes == 2 and all(math.isfinite(ret) for ret in played.returns)
    assert (played.returns, played.lengths) == (again.returns, again.lengths)


@pytest.mark.covers(once=True)
@pytest.mark.parametrize("algo", ["ppo_atari_multigpu"])
def test_an_extended_run_adds_its_steps_in_every_process(algo: str, train: Callable[..., Any]) -> None:
    first = train(algo, FLAGS[algo], into="first").newest()
    longer = train(algo, FLAGS[algo], into="longer", extend=first.path).newest()
    assert (first.step, longer.step) == (96, 192)


@pytest.mark.covers(once=True, resume="bitwise")
@pytest.mark.parametrize(
    ("algo", "in_update"),
    [("ppo_atari", False), ("ppo_atari", True), ("ppo_atari_lstm", False)],
    ids=["ppo_atari in a rollout", "ppo_atari in an update", "ppo_atari_lstm in a rollout"],
)
def test_two_halves_equal_one_whole_where_games_can_be_restored(
    algo: str, in_update: bool, train: Callable[..., Any]
) -> None:
    whole = train(algo, FLAGS[algo], into="whole").newest()
    cut = train(algo, FLAGS[algo], stop_at=16 if in_update else 20, in_update=int(in_update), into="half").newest()
    assert (cut.step, int(cut.state["kept"]["rollout"]["t"])) == ((16, 8) if in_update else (20, 2))
    resumed = train(algo, FLAGS[algo], go_on=True, into="half").newest()
    assert resumed.step == whole.step
    for name in ("agent", "optimizer", "rollout", "envs"):
        ours, theirs = leaves(resumed.state["kept"][name]), leaves(whole.state["kept"][name])
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), name


@pytest.mark.covers(once=True)
@pytest.mark.parametrize(
    ("algo", "minibatches", "part", "begun"),
    [("ppo_rnd_envpool", 1, "passes", (0, 1)), ("ppg_procgen", 3, "auxiliary", (0, 1))],
)
def test_a_long_update_is_cut_and_goes_on(
    algo: str, minibatches: int, part: str, begun: tuple[int, int], train: Callable[..., Any]
) -> None:
    cut = train(algo, FLAGS[algo], stop_at=32, in_update=minibatches).newest()
    saved = cut.state["kept"][part]
    assert cut.step == 32 and (saved["epoch"], saved["minibatch"]) == begun
    ended = train(algo, FLAGS[algo], go_on=True).newest()
    assert ended.step >= 48 and ended.state["kept"][part]["minibatch"] == 0
    # no minibatch is learned twice: the rest of this update, and those of the rollouts that were left
    steps = [int(at.state["kept"]["optimizer"]["step"]) for at in (cut, ended)]
    assert steps[1] - steps[0] == {"ppo_rnd_envpool": 1 + 2, "ppg_procgen": 1 + 2 + 2 + 2}[algo]

"""Small scripts of our own, written as for gymnasium 0.29, run unmodified on the gymnasium that is installed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanrl_worker.compat.gymnasium029 import keeps_resets_apart

RunScript = Callable[..., subprocess.CompletedProcess[str]]


def returns(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("return")]


def test_returns_of_several_environments(run_script: RunScript) -> None:
    found = returns(run_script("rollout_like.py", "CartPole-v1", "3", "200"))
    assert len(found) > 10
    assert all(value >= 8 for value in found)


def test_without_the_layer_the_same_script_fails(run_script: RunScript) -> None:
    """So that the tests here cannot pass by themselves once gymnasium changes back."""
    assert "deque_size" in run_script("rollout_like.py", "CartPole-v1", "1", "50", patched=False).stderr
    assert "final_observation" in run_script("replay_like.py", patched=False).stderr


def test_real_next_observation(run_script: RunScript) -> None:
    done = run_script("replay_like.py")
    assert returns(done)
    ended = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert ended == [20, 40, 60, 80, 100], "no step is spent on a reset"


def test_a_script_for_1_x_that_leaves_resets_out_learns_from_whole_episodes(run_script: RunScript) -> None:
    done = run_script("resets_apart_like.py")
    assert returns(done)
    assert [int(line.split()[1]) for line in done.stdout.splitlines()] == [20, 40, 60]


def test_a_script_for_1_x_finds_its_vectors_as_1_x_makes_them(run_script: RunScript) -> None:
    done = run_script("vector_wrappers_like.py")
    assert len(returns(done)) > 5
    assert done.stdout.splitlines()[-2:] == [
        "mass [3.0, 4.0] (3.0, 4.0) (1, 1)",
        "ended ['final_info', 'final_obs']",
    ]


@pytest.mark.parametrize(
    ("source", "apart"),
    [
        ("autoreset = np.logical_or(terminations, truncations)", True),
        ("self._has_autoreset[i] = True", True),
        ("envs = gym.wrappers.vector.NormalizeReward(envs)", True),
        ("from gymnasium.wrappers import vector", True),
        ("envs = gym.vector.SyncVectorEnv([gym.wrappers.Autoreset])", None),
        ("gym.make(env_id, autoreset=True)", None),
        ("env = gym.wrappers.AutoResetWrapper(env)", None),
        ("autoreset = 1\nreal = infos['final_observation'][0]", False),
        ("obs = envs.reset()", None),
        ("this is no Python", None),
    ],
)
def test_who_leaves_resets_out_is_told_by_its_names(tmp_path: Path, source: str, apart: bool | None) -> None:
    (tmp_path / "script.py").write_text(source)
    assert keeps_resets_apart(str(tmp_path / "script.py")) is apart


def test_continuous_wrappers(run_script: RunScript) -> None:
    found = returns(run_script("continuous_like.py"))
    assert len(found) == 2
    assert all(value < -100 for value in found), "the raw return, not the normalised one"


def test_atari_names(run_script: RunScript) -> None:
    done = run_script("atari_like.py")
    assert done.stdout.splitlines() == ["shape (1, 4, 84, 84) uint8", "square (84, 84, 3)"], done.stderr


def test_minigrid_is_registered(run_script: RunScript) -> None:
    source = "rollout_like.py"
    done = run_script(source, "MiniGrid-Empty-5x5-v0", "1", "30")
    assert done.returncode == 0, done.stderr


def test_a_version_that_no_longer_exists_is_replaced_and_said(run_script: RunScript) -> None:
    done = run_script("rollout_like.py", "Taxi-v1", "1", "10")
    assert done.returncode == 0, done.stderr
    assert "Taxi-v1 no longer exists in gymnasium" in done.stderr


@pytest.mark.parametrize("env_id", ["NoSuchThing-v0", "ALE/NoSuchGame-v5"])
def test_an_unknown_environment_is_gymnasiums_own_error(run_script: RunScript, env_id: str) -> None:
    done = run_script("rollout_like.py", env_id, "1", "10")
    assert done.returncode == 1
    assert "gymnasium.error" in done.stderr

"""What can't be trained is refused before the first step, with exit code 2 and a sentence that says what to change."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

QDAGGER = "qdagger_dqn_atari_impalacnn"
ONE_ENVIRONMENT = (
    "dqn_jax",
    "c51_jax",
    "dqn_atari",
    "c51_atari",
    "rainbow_atari",
    "dqn_atari_jax",
    "c51_atari_jax",
    QDAGGER,
)
CASES = [
    *((algo, "--num-envs 2", ["--num-envs 1"]) for algo in ONE_ENVIRONMENT),
    *((algo, "--env-id Pendulum-v1", ["discrete actions", "use --algo"]) for algo in ("dqn_jax", "c51_jax")),
    *(
        (algo, "--env-id CartPole-v1", ["continuous actions", "use --algo dqn_jax"])
        for algo in ("ddpg_continuous_action_jax", "td3_continuous_action_jax")
    ),
    *((algo, "--env-id CartPole-v1", ["not an Atari game"]) for algo in ("dqn_atari", "sac_atari", "rainbow_atari")),
    ("dqn_atari", "--env-id BreakoutNoFrameskip-v5", ["did you mean", "BreakoutNoFrameskip-v4"]),
    ("dqn_atari", "--buffer-size 100000000000", ["GiB", "Set --buffer-size to"]),
    ("sac_atari", "--update-frequency 0", ["--update-frequency must be at least 1"]),
    ("rainbow_atari", "--n-step 0", ["--n-step must be at least 1"]),
    ("rainbow_atari", "--n-atoms 1", ["--n-atoms"]),
    ("c51_atari_jax", "--v-min 5 --v-max 5", ["--v-min below --v-max"]),
    (QDAGGER, "", ["hub", "--teacher-model-path"]),
    (QDAGGER, "--teacher-model-path nowhere.cleanrl_model", ["nowhere.cleanrl_model does not exist"]),
    (QDAGGER, "--expert-trajectories games", ["holds no .npz file"]),
    (QDAGGER, "--expert-trajectories bad.npz", ["bad.npz", "for each action"]),
    (QDAGGER, "--offline-steps 0", ["--offline-steps must be at least 1"]),
    (QDAGGER, "--temperature 0 --expert-trajectories games", ["--temperature must be above 0"]),
]


@pytest.mark.parametrize(("algo", "flags", "words"), CASES, ids=[f"{a} {f}" for a, f, _ in CASES])
def test_refused(
    algo: str,
    flags: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "games").mkdir()
    np.savez(
        "bad.npz",
        frames=np.zeros((3, 84, 84), np.uint8),
        actions=[1, 2],
        rewards=[0.0],
        ends=[False, True],
        terminated=1,
    )
    assert import_module(f"cleanrl_worker.algorithms.{algo}").main(flags.split()) == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message
    assert not list(tmp_path.glob("runs/*")), "a refused run leaves nothing behind"

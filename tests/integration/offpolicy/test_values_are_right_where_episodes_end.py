"""A time limit does not end the value of what comes next, a termination does, and resets are never learned from.

`Forever` pays 1 a step and is cut off after 5: with gamma 0.9 a state is worth 10. Treating the cut as an end would give
5.2, learning from resets less than 10. `Countdown` pays 1 a step for 5 steps and terminates: 4.1 at its start, 1 at its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cleanrl_worker.algorithms import c51
from cleanrl_worker.training.dense import Net

GAMMA = 0.9
FOREVER = 1.0 / (1.0 - GAMMA)
REPLAY = "--learning-starts 100 --batch-size 32 --buffer-size 2000"
VALUE = f"{REPLAY} --gamma 0.9 --train-frequency 1 --target-network-frequency 20 --learning-rate 0.003 --total-timesteps 2000"
ACTOR = f"{REPLAY} --gamma 0.9 --tau 0.05 --total-timesteps 1200"
FLAGS = {
    "dqn": VALUE,
    "c51": f"{VALUE} --v-min 0 --v-max 20 --n-atoms 41",
    "pqn": "--gamma 0.9 --learning-rate 0.003 --num-steps 16 --total-timesteps 8192 --no-anneal-lr",
    "ddpg_continuous_action": f"{ACTOR} --learning-rate 0.001",
    "td3_continuous_action": f"{ACTOR} --learning-rate 0.001",
    "sac_continuous_action": f"{ACTOR} --no-autotune --alpha 0.0",
}


def values(algo: str, kept: dict[str, Any], obs: np.ndarray) -> np.ndarray:
    """What the trained critic says the observations are worth, averaged over actions (which do not matter here)."""
    agent = kept["agent"]
    if algo in ("dqn", "pqn"):
        q = Net(5, (120, 84), heads=(2,), activation="relu", layer_norm=algo == "pqn")
        q.load_state_dict(agent)
        return np.asarray(q.forward(obs)[0].mean(axis=1))
    if algo == "c51":
        atoms = np.linspace(0, 20, 41, dtype=np.float32)
        network = c51.QNetwork(5, 2, atoms)
        network.load_state_dict(agent)
        return np.asarray((c51.softmax(network.logits(obs)) @ atoms).mean(axis=1))
    critic = Net(6, (256, 256), heads=(1,), activation="relu", names=(("fc1", "fc2", "fc3"),))
    critic.load_state_dict(agent["model"][1])
    actions = np.zeros((len(obs), 1), np.float32)
    return critic.forward(np.concatenate((obs, actions), axis=1))[0][:, 0]


def env(algo: str, name: str) -> str:
    return f"{name}Continuous-v0" if algo.endswith("continuous_action") else f"{name}-v0"


@pytest.mark.parametrize("algo", FLAGS)
def test_a_time_limit_is_bootstrapped(algo: str, run: Any) -> None:
    ended = run(algo, f"--env-id {env(algo, 'Forever')} {FLAGS[algo]}")
    assert ended.exit_code == 0
    (value,) = values(algo, ended.checkpoint.state["kept"], np.eye(5, dtype=np.float32)[:1])
    assert value == pytest.approx(FOREVER, rel=0.12)


@pytest.mark.parametrize("algo", FLAGS)
def test_a_termination_is_not(algo: str, run: Any) -> None:
    ended = run(algo, f"--env-id {env(algo, 'Countdown')} {FLAGS[algo]}")
    assert ended.exit_code == 0
    learned = values(algo, ended.checkpoint.state["kept"], np.eye(5, dtype=np.float32))
    expected = [(1.0 - GAMMA ** (5 - at)) / (1.0 - GAMMA) for at in range(5)]
    np.testing.assert_allclose(learned, expected, rtol=0.12, atol=0.15)

"""Short runs get well past chance. How well they end up is for the benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cleanrl_worker.training.run import Run

CASES = {
    "dqn": ("--total-timesteps 20000 --learning-starts 1000 --exploration-fraction 0.3", 60.0),
    "c51": ("--total-timesteps 20000 --learning-starts 1000 --exploration-fraction 0.3", 60.0),
    "pqn": ("--total-timesteps 40000 --learning-rate 0.001 --no-anneal-lr", 60.0),
    "sac_continuous_action": (
        "--env-id Pendulum-v1 --total-timesteps 3200 --learning-starts 200 --batch-size 32 --buffer-size 5000",
        -800.0,
    ),
}
"""Random play gives 22 on CartPole-v1 and about -1200 on Pendulum-v1."""


@pytest.mark.parametrize("algo", CASES)
def test_returns_rise(algo: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    returns: list[float] = []
    episode = Run.episode

    def remember(self: Run, ret: float, *facts: Any) -> None:
        returns.append(ret)
        episode(self, ret, *facts)

    monkeypatch.setattr(Run, "episode", remember)
    flags, wanted = CASES[algo]
    assert run(algo, flags).exit_code == 0
    count = 5 if "Pendulum" in flags else 20
    assert np.mean(returns[-count:]) > wanted
    assert np.mean(returns[-count:]) > np.mean(returns[:count])

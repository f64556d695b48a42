"""The compiled PPOs' model files, flags first and then three networks, as upstream's are, can be gone on from."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")


class State(NamedTuple):
    network: Any
    actor: Any
    critic: Any

    @property
    def params(self) -> tuple[Any, Any, Any]:
        return self.network, self.actor, self.critic


def state(value: float) -> State:
    network, actor, critic = (
        {"params": {name: {"kernel": np.full((2, 2), value + n, np.float32)}}}
        for n, name in enumerate(("Conv_0", "Dense_0", "Dense_0"))
    )
    return State(network, actor, critic)


def test_its_networks_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cleanrl_worker.agents.loading import read_model, weights_and_step, write_model
    from cleanrl_worker.algorithms.ppo_atari_envpool_xla_jax import Args, finish
    from cleanrl_worker.training.jax_tools import Learner, plain

    monkeypatch.delenv("CLEANRL_RESUME_GLOBAL_STEP", raising=False)
    path = tmp_path / "ppo.cleanrl_model"
    run: Any = SimpleNamespace(finish=lambda model: write_model(model(), path))
    trained: Learner[Any] = Learner(state(1.0))
    finish(Args(), run, trained)

    weights, step = weights_and_step(read_model(path))
    fresh: Learner[Any] = Learner(state(0.0))
    fresh.part("network", "actor", "critic").load_state_dict(weights)
    assert step == 0
    assert str(plain(fresh.state.params)) == str(plain(trained.state.params))

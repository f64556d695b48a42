"""Whatever a path leads to, the answer is a policy that fits or one sentence with a remedy; nothing in a file is ever run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cleanrl_worker.agents.loading import read_model
from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.evals.policies import load_policy
from cleanrl_worker.training.envs import Envs
from cleanrl_worker.training.errors import BadConfig


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("echo this must never run > pwned",))


def network(outputs: int = 2, inputs: int = 4) -> dict[str, torch.Tensor]:
    return MLPAgent(inputs, outputs).state_dict()


def value_network() -> dict[str, torch.Tensor]:
    shapes = {"network.0": (120, 4), "network.2": (84, 120), "network.4": (2, 84)}
    weights = {f"{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    return weights | {f"{name}.bias": torch.ones(shape[0]) for name, shape in shapes.items()}


def continuous_actor() -> tuple[dict[str, torch.Tensor], ...]:
    shapes = {"fc1": (256, 4), "fc2": (256, 256), "fc_mu": (1, 256)}
    weights = {f"{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    return (weights | {f"{name}.bias": torch.ones(shape[0]) for name, shape in shapes.items()}, {}, {})


def text(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def saved(model: Any) -> Callable[[Path], object]:
    return lambda path: torch.save(model() if callable(model) else model, path)


def cut(path: Path) -> None:
    torch.save(network(), path)
    path.write_bytes(path.read_bytes()[:700])


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty file": (text(b""), "it is empty or cut off"),
    "a text": (text(b"hello"), "it holds no weights that torch saved"),
    "a JSON file": (text(b"{}"), "it holds no weights that torch saved"),
    "a file that was cut off": (cut, "it is damaged or cut off"),
    "a program": (saved({"a": Evil()}), "it holds more than weights, namely posix.system"),
    "a number": (saved(5), "holds no network that is known here"),
    "a list": (saved([1, 2]), "holds no network that is known here"),
    "an empty tuple": (saved(()), "holds no whole network that is known here"),
    "nothing": (saved({"model_state_dict": None}), "holds no network that is known here"),
    "another network": (saved({"foo": torch.zeros(3)}), "holds no network that is known here"),
    "half a network": (saved({"actor.4.weight": torch.zeros(2, 64)}), "holds no whole network"),
    "words for weights": (saved(lambda: {**network(), "actor.4.weight": "x"}), "holds no whole network"),
    "weights that diverged": (saved(lambda: {k: v * float("nan") for k, v in network().items()}), "are not finite"),
    "another algorithm's network": (
        saved(value_network),
        "is no model of ppo, but of dqn or dqn_jax or pqn: say so with --algo",
    ),
    "more actions": (saved(lambda: network(outputs=3)), "3 discrete actions, and this environment has 2"),
    "continuous actions": (saved(continuous_actor), "chooses continuous actions"),
    "other observations": (saved(lambda: network(inputs=6)), "vectors of 6, and this environment shows (4,)"),
}


@pytest.mark.parametrize("what", FILES)
def test_it_is_refused_with_a_sentence(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, said = FILES[what]
    path = tmp_path / "m.cleanrl_model"
    make(path)
    envs = Envs.make("CartPole-v1", 1)
    with pytest.raises(BadConfig) as refused:
        load_policy(path, envs, algo="ppo", env_id="CartPole-v1")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "weights_only" not in str(refused.value), "nobody is told to read it unsafely"
    assert not (tmp_path / "pwned").exists()


def test_a_model_is_known_by_its_network_where_no_algorithm_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.cleanrl_model"
    torch.save(value_network(), path)
    envs = Envs.make("CartPole-v1", 1)
    assert load_policy(path, envs).algorithms == load_policy(path, envs, algo="dqn").algorithms
    assert load_policy(path, envs, algo="plugin.mine").algorithms, "who brings an algorithm knows what it saves"


def test_weights_that_diverged_are_no_start_for_training(tmp_path: Path) -> None:
    path = tmp_path / "m.cleanrl_model"
    torch.save({name: value * float("inf") for name, value in network().items()}, path)
    with pytest.raises(BadConfig, match="Choose a model or a checkpoint from before"):
        read_model(path)

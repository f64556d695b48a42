"""Policies of the value networks and of SAC's actor on Atari's images, in torch and in flax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.agents.flax_files import layers_of
from cleanrl_worker.evals.policies import Policy, ValuePolicy
from cleanrl_worker.training.errors import BadConfig

Values = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]


class ImageValuePolicy(ValuePolicy):
    """The action of the largest value, of any network that has values."""

    def __init__(self, network: Values, channels: int) -> None:
        self._network, self._channels = network, channels
        self.obs_size = None

    def values(self, obs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return self._network(obs[:, -self._channels :])


class ImageActorPolicy(Policy):
    """Discrete SAC: a sample of the actor's distribution, or its likeliest action."""

    def __init__(self, log_probs: Values, channels: int) -> None:
        self._log_probs, self._channels = log_probs, channels

    def __call__(self, obs: Any, _starts: Any, rng: np.random.Generator, greedy: bool) -> npt.NDArray[Any]:
        scores = self._log_probs(obs[:, -self._channels :])
        if not greedy:
            scores = scores - np.log(rng.standard_exponential(scores.shape))
        return np.asarray(scores.argmax(axis=1))


def image_policy(model: Any, actions: int | None) -> Policy | None:
    """The policy in a loaded model that is one of these networks, else None. `actions` is what the environment has."""
    args = model.get("args", {}) if isinstance(model, Mapping) else {}
    weights = model.get("model_weights", model) if isinstance(model, Mapping) else model
    actor = weights[0] if isinstance(weights, list | tuple) and weights else None
    if isinstance(actor, Mapping) and "fc_logits.weight" in actor:
        return _torch_actor(actor)
    layers = layers_of(weights)
    if layers is not None and actions is not None and ("Conv_0" in layers or "ConvSequence_0" in layers):
        return _flax_values(weights, layers, args, actions)
    if isinstance(weights, Mapping) and actions is not None:
        return _torch_values(weights, actions)
    return None


def _torch_values(weights: Mapping[str, Any], actions: int) -> Policy | None:
    impala = "network.0.conv.weight" in weights
    first = weights.get("network.0.conv.weight" if impala else "network.0.weight")
    if first is None or len(first.shape) != 4 or "actor.weight" in weights:
        return None
    if not impala and "network.1.weight" in weights:  # normalised layers: another network
        return None
    from cleanrl_worker.agents import atari_values
    from cleanrl_worker.agents.loading import load_into

    channels = int(first.shape[1])
    network: Any
    if impala:
        network = atari_values.ImpalaQNetwork(actions, (channels, 84, 84))
    elif "atoms" in weights:
        count, ends = len(weights["atoms"]), (float(weights["atoms"][0]), float(weights["atoms"][-1]))
        rainbow = "value_head.0.weight" in weights
        kind = atari_values.RainbowNetwork if rainbow else atari_values.CategoricalQNetwork
        network = kind(actions, count, *ends, channels)
    else:
        network = atari_values.QNetwork(actions, channels)
    _load(load_into, network, weights)
    return ImageValuePolicy(_torch_function(network.eval(), "values"), channels)


def _torch_actor(weights: Mapping[str, Any]) -> Policy:
    from cleanrl_worker.agents.atari_values import CategoricalActor
    from cleanrl_worker.agents.loading import load_into

    channels = int(weights["conv.0.weight"].shape[1])
    network = CategoricalActor(int(weights["fc_logits.weight"].shape[0]), channels)
    _load(load_into, network, weights)
    return ImageActorPolicy(_torch_function(network.eval(), "forward"), channels)


def _torch_function(network: Any, name: str) -> Values:
    import torch

    def call(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(getattr(network, name)(torch.from_numpy(np.ascontiguousarray(images))).numpy())

    return call


def _flax_values(weights: Any, layers: Mapping[str, Any], args: Mapping[str, Any], actions: int) -> Policy:
    import jax

    from cleanrl_worker.agents import jax_atari

    impala = "ConvSequence_0" in layers
    first = layers["ConvSequence_0"]["Conv_0"] if impala else layers["Conv_0"]
    outputs = int(layers["Dense_1"]["bias"].shape[0])
    network: Any = (jax_atari.ImpalaQNetwork if impala else jax_atari.QNetwork)(actions)
    atoms = None
    if outputs != actions:
        if outputs % actions or "v_min" not in args:
            raise BadConfig(_misfit(outputs, actions))
        count = outputs // actions
        atoms = np.linspace(float(args["v_min"]), float(args["v_max"]), count, dtype=np.float32)
        network = jax_atari.CategoricalQNetwork(actions, count)

    def values(images: Any) -> Any:
        answer = network.apply(weights, images)
        return answer if atoms is None else answer @ atoms

    compiled = jax.jit(values)
    return ImageValuePolicy(lambda images: np.asarray(compiled(images)), int(first["kernel"].shape[2]))


def _load(load_into: Callable[[Any, Any], None], network: Any, weights: Mapping[str, Any]) -> None:
    try:
        load_into(network, weights)
    except ValueError as error:
        raise BadConfig(f"The model does not fit the environment ({error}): use its own --env-id.") from error


def _misfit(outputs: int, actions: int) -> str:
    return f"The model has {outputs} outputs, which {actions} actions do not divide: use its own --env-id."

"""Policies of the on-policy algorithms on images: actors and PQN's values, with and without a memory, from torch and flax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.evals.policies import EPSILON, Policy, choose
from cleanrl_worker.training.errors import BadConfig


class PixelPolicy(Policy):
    """An actor samples; values take the largest, and a random action in one step of twenty."""

    def __init__(self, agent: Any, channels: int, *, recurrent: bool, values: bool) -> None:
        self.agent, self.channels = agent.eval(), channels
        self.recurrent, self.by_value = recurrent, values
        self._memory: Any = None

    def __call__(self, obs: Any, starts: Any, rng: np.random.Generator, greedy: bool) -> npt.NDArray[Any]:
        import torch

        images = torch.from_numpy(np.ascontiguousarray(obs[:, -self.channels :]))
        with torch.no_grad():
            if self.recurrent:
                if self._memory is None or self._memory.shape[1] != len(obs):
                    self._memory = self.agent.initial_memory(len(obs))
                answer = self.agent(images[None], self._memory, torch.as_tensor(starts)[None])
                self._memory, scores = answer[-1], answer[0][0]
            else:
                answer = self.agent(images)
                scores = answer if self.by_value else answer[0]
        numbers = scores.numpy()
        if not self.by_value:
            return choose(numbers, rng, greedy)
        explore = rng.random(len(obs)) < (0.0 if greedy else EPSILON)
        return np.where(explore, rng.integers(0, numbers.shape[1], len(obs)), numbers.argmax(axis=1))


def pixel_policy(model: Any, actions: int | None, shape: tuple[int, ...]) -> Policy | None:
    """The policy in a loaded model that is one of these networks, else None. `actions` and `shape` are the environment's."""
    weights = _flax(model)
    if weights is None:
        weights = model.get("model_state_dict", model) if isinstance(model, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    first = next((weights[n] for n in ("network.0.weight", "network.0.conv.weight") if n in weights), None)
    head = next(
        (n for n in ("actor.weight", "actor.2.weight", "q_func.weight", "network.13.weight") if n in weights), None
    )
    if first is None or head is None or len(first.shape) != 4 or actions is None:
        return None
    from cleanrl_worker.agents import atari, rnd
    from cleanrl_worker.agents.loading import load_into

    outputs, channels = int(weights[head].shape[0]), int(first.shape[1])
    if outputs != actions or len(shape) != 3 or shape[0] < channels:
        raise BadConfig(
            f"The model was trained on {channels} images and {outputs} actions, and this environment shows {shape} and has "
            f"{actions} actions: use its own --env-id."
        )
    recurrent, values = "lstm.weight_ih_l0" in weights, head in ("q_func.weight", "network.13.weight")
    agent: Any
    if "network.0.conv.weight" in weights:
        kind: Any = atari.PhasicAgent if "aux_critic.weight" in weights else atari.ImpalaAgent
        agent = kind(actions, (channels, *shape[1:]))
    elif "critic_ext.weight" in weights:
        agent = rnd.RNDAgent(actions, channels)
    elif recurrent:
        agent = (atari.RecurrentNatureValues if values else atari.RecurrentNatureAgent)(actions, channels)
    else:
        agent = (atari.NatureValues if values else atari.NatureAgent)(actions, channels)
    try:
        load_into(agent, weights)
    except ValueError as error:
        raise BadConfig(f"The model does not fit the environment ({error}): use its own --env-id.") from error
    return PixelPolicy(agent, channels, recurrent=recurrent, values=values)


def _flax(model: Any) -> Mapping[str, Any] | None:
    """PPO's three modules of flax as the weights that torch has: from a model file (flags first) or a checkpoint."""
    if not isinstance(model, Mapping):
        return None
    from cleanrl_worker.agents.loading import weights_of

    parts = weights_of(model)
    if not isinstance(parts, Mapping) or set(parts) != {"0", "1", "2"}:
        return None
    trunk = parts["0"].get("params") if isinstance(parts["0"], Mapping) else None
    if not isinstance(trunk, Mapping) or "Conv_0" not in trunk:
        return None
    from cleanrl_worker.agents.jax_ppo import torch_weights

    try:
        return torch_weights(parts["0"], parts["1"], parts["2"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadConfig(
            f"The model holds networks of flax that are known to none of the algorithms ({error!r})."
        ) from error

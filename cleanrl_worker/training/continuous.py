"""What the off-policy algorithms for continuous actions share: bounds, the deterministic actor, critics of (obs, action).

All three (ddpg, td3, sac) use ReLU networks with two layers of 256 and torch's default initial weights. Model files are
tuples of state_dicts (actor, qf1[, qf2]) with the layer names fc1, fc2, ...; the actor's also holds its action bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cleanrl_worker.training.dense import Adam, Array, Net, polyak

HIDDEN = (256, 256)


class Bounds:
    """The box of valid actions: `scale * tanh + bias` covers it."""

    def __init__(self, space: Any) -> None:
        self.low, self.high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        self.scale: Array = (self.high - self.low) / np.float32(2.0)
        self.bias: Array = (self.high + self.low) / np.float32(2.0)

    def uniform(self, rng: np.random.Generator, count: int) -> Array:
        """Actions drawn from the whole box."""
        return rng.uniform(self.low, self.high, (count, len(self.low))).astype(np.float32)

    def clip(self, actions: Array) -> Array:
        """Actions moved to the nearest point of the box, in place."""
        np.maximum(actions, self.low, out=actions)
        return np.minimum(actions, self.high, out=actions)

    def state_dict(self) -> dict[str, Array]:
        return {"action_scale": self.scale, "action_bias": self.bias}


class DeterministicActor:
    """obs-256-256-actions, squashed into the bounds by tanh."""

    def __init__(self, obs_size: int, bounds: Bounds) -> None:
        self.bounds = bounds
        self.net = Net(obs_size, HIDDEN, (len(bounds.scale),), activation="relu", names=(("fc1", "fc2", "fc_mu"),))
        self._squashed: Array = np.empty(0, np.float32)

    def act(self, obs: Array) -> Array:
        """A new array of actions, one per row. Keeps what `backward` needs."""
        self._squashed = np.tanh(self.net.forward(obs)[0])
        return self._squashed * self.bounds.scale + self.bounds.bias

    def predict(self, obs: Array) -> Array:
        """The same actions where no `backward` follows."""
        return np.tanh(self.net.predict(obs)[0]) * self.bounds.scale + self.bounds.bias

    def backward(self, grad: Array) -> None:
        """From d loss / d actions of the latest `act` to the network's gradient."""
        self.net.backward((grad * self.bounds.scale * (1.0 - self._squashed**2),))

    def state_dict(self) -> dict[str, Array]:
        return {**self.bounds.state_dict(), **self.net.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.net.load_state_dict(state)


class Critics:
    """One or more Q functions, (obs, action)-256-256-1, each a network of its own."""

    def __init__(self, obs_size: int, action_size: int, count: int) -> None:
        self.obs_size = obs_size
        layers = (("fc1", "fc2", "fc3"),)
        self.nets = [Net(obs_size + action_size, HIDDEN, (1,), activation="relu", names=layers) for _ in range(count)]
        self._inputs: dict[int, Array] = {}

    def init_uniform(self, rng: np.random.Generator) -> None:
        for net in self.nets:
            net.init_uniform(rng)

    def values(self, obs: Array, actions: Array, *, first: bool = False) -> list[Array]:
        """Q(s, a) of each critic, or of the first alone: (batch,). Buffers, which the next call overwrites."""
        joined = self._joined(obs, actions)
        return [net.forward(joined)[0][:, 0] for net in (self.nets[:1] if first else self.nets)]

    def predict(self, obs: Array, actions: Array) -> list[Array]:
        """The same values of each critic where no gradient follows."""
        joined = self._joined(obs, actions)
        return [net.predict(joined)[0][:, 0] for net in self.nets]

    def backward(self, grads: Sequence[Array]) -> None:
        """From d loss / d values of the latest `values` to each network's gradient."""
        for net, grad in zip(self.nets, grads, strict=True):
            net.backward((grad[:, None],))

    def action_gradient(self, grads: Sequence[Array]) -> Array:
        """From d loss / d values of the latest `values` to d loss / d actions."""
        gradients = [
            n.input_gradient((g[:, None],))[:, self.obs_size :] for n, g in zip(self.nets, grads, strict=False)
        ]
        return gradients[0] if len(gradients) == 1 else np.add(*gradients)

    def follow(self, online: Critics, tau: float) -> None:
        """Move each network towards its twin in `online`."""
        for net, source in zip(self.nets, online.nets, strict=True):
            polyak(net.flat, source.flat, tau)

    def _joined(self, obs: Array, actions: Array) -> Array:
        joined = self._inputs.get(len(obs))
        if joined is None:
            joined = self._inputs[len(obs)] = np.empty((len(obs), self.nets[0].inputs), np.float32)
        joined[:, : self.obs_size] = obs
        joined[:, self.obs_size :] = actions
        return joined

    def state_dicts(self) -> list[dict[str, Array]]:
        return [net.state_dict() for net in self.nets]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        if len(states) != len(self.nets):
            raise ValueError(f"it has {len(states)} critics, this algorithm needs {len(self.nets)}")
        for net, state in zip(self.nets, states, strict=True):
            net.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        return {"critics": self.state_dicts()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.load_state_dicts(state["critics"])


class CriticOptimizers:
    """One Adam for each critic: the same as one for all of them."""

    def __init__(self, critics: Critics, lr: float) -> None:
        self._pairs = [(net, Adam(net.flat, lr)) for net in critics.nets]

    def step(self) -> None:
        """Move every critic down the gradient that its network holds."""
        for net, optimizer in self._pairs:
            optimizer.step(net.grad)

    def state_dict(self) -> dict[str, Any]:
        return {"critics": [optimizer.state_dict() for _, optimizer in self._pairs]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for (_, optimizer), saved in zip(self._pairs, state["critics"], strict=True):
            optimizer.load_state_dict(saved)


class ActorCritic:
    """The learned networks as one thing to keep, and the tuple that a model file holds."""

    def __init__(self, actor: Any, critics: Critics) -> None:
        self.actor, self.critics = actor, critics

    def model(self) -> tuple[dict[str, Array], ...]:
        """(actor, qf1, ...) state_dicts."""
        return (self.actor.state_dict(), *self.critics.state_dicts())

    def state_dict(self) -> dict[str, Any]:
        return {"model": list(self.model())}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take over a checkpoint's state or the tuple of a model file. An actor's weights alone set the actor alone."""
        models: Sequence[Mapping[str, Any]] = state.get("model", [state]) if isinstance(state, Mapping) else state
        self.actor.load_state_dict(models[0])
        if len(models) > 1:
            self.critics.load_state_dicts(models[1:])

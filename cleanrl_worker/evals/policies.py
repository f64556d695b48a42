"""Saved models as policies. Which network a file holds is told from its keys and shapes, not from the algorithm's name.

How a policy acts by default is what users of the algorithm expect of its evaluation: actor-critics sample, value networks take
a random action in one step of twenty, deterministic actors add a little noise, SAC takes its mean. `greedy` leaves all of that
out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training import checkpoints
from cleanrl_worker.training.dense import draw, log_softmax
from cleanrl_worker.training.envs import Envs
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.normalise import statistics_in

Weights = Mapping[str, Any]
EPSILON = 0.05
ACTOR_NOISE = 0.1


class Policy(ABC):
    """Chooses actions for a batch of observations. One instance serves one set of environments."""

    obs_size: int | None = None
    """The length of the observation vectors it was trained on; None for images."""
    flattens = False
    """Whether it takes images too, as vectors."""
    normaliser: dict[str, Any] | None = None
    """Statistics by which its observations were normalised."""
    actions: tuple[str, int] | None = None
    """`discrete` or `continuous`, and how many; None when the network's own code has compared them already."""
    algorithms: tuple[str, ...] = ()
    """Those whose model files look like this, where no others' do."""

    @abstractmethod
    def __call__(
        self, obs: npt.NDArray[Any], starts: npt.NDArray[np.bool_], rng: np.random.Generator, greedy: bool, /
    ) -> npt.NDArray[Any]:
        """An action per row. `starts` marks rows that begin an episode."""


@dataclass(frozen=True)
class Saved:
    """What a file or a checkpoint holds, before it is known to fit any environments."""

    path: Path
    model: Any

    @property
    def shows_mission(self) -> bool:
        """Whether its network is told the mission of a level (`wrappers/mission.py`)."""
        from cleanrl_worker.agents.loading import weights_of

        weights = weights_of(self.model)
        return isinstance(weights, Mapping) and "mission.weight" in weights


def load_policy(
    path: Path, envs: Envs, *, algo: str | None = None, env_id: str | None = None, sha256: str | None = None
) -> Policy:
    """Read a saved policy and check that it fits the environments. Raises BadConfig, with the remedy."""
    return fit(read_saved(path, algo=algo, env_id=env_id, sha256=sha256), envs, algo=algo)


def read_saved(path: Path, *, algo: str | None = None, env_id: str | None = None, sha256: str | None = None) -> Saved:
    """Read a model or a checkpoint. Raises BadConfig, with the remedy.

    `path` is what `checkpoints.find` takes: a model file, a checkpoint, or a folder of either. A checkpoint knows its
    algorithm and environment, which must be those given; of a model file only the shapes can be compared. `sha256` is the
    digest that it must have.
    """
    from cleanrl_worker.agents.loading import read_model

    if not path.exists():
        raise BadConfig(f"The model {path} does not exist: give the path of a model file or a checkpoint.")
    try:
        found = checkpoints.find(path, sha256)
    except (checkpoints.BadCheckpoint, OSError) as error:
        raise BadConfig(f"{error} Choose another checkpoint or model file.") from error
    if isinstance(found, Path):
        return Saved(found, read_model(found))
    return Saved(found.path, _model_of(found, algo, env_id))


def fit(saved: Saved, envs: Envs, *, algo: str | None = None) -> Policy:
    """The policy, for these environments. Raises BadConfig when it is none for them, or none of that algorithm."""
    path = saved.path
    try:
        policy = policy_of(saved.model, envs)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise BadConfig(
            f"{path} holds no whole network that is known here ({error!r}). Choose another model file."
        ) from error
    if policy is None:
        raise BadConfig(f"{path} holds no network that is known here: its keys fit none of the algorithms.")
    if policy.algorithms and algo in _TOLD_APART and algo not in policy.algorithms:
        raise BadConfig(f"{path} is no model of {algo}, but of {' or '.join(policy.algorithms)}: say so with --algo.")
    have = math.prod(envs.obs_shape) if len(envs.obs_shape) == 1 or policy.flattens else None
    if policy.obs_size != have:
        wanted = "images" if policy.obs_size is None else f"vectors of {policy.obs_size}"
        raise BadConfig(
            f"The model {path} was trained on {wanted}, and this environment shows {envs.obs_shape}: use its own --env-id."
        )
    if policy.actions is not None and policy.actions != (there := _actions_of(envs)):
        raise BadConfig(
            f"The model {path} chooses among {policy.actions[1]} {policy.actions[0]} actions, and this environment has "
            f"{there[1]} {there[0]} ones: use its own --env-id."
        )
    return policy


def _actions_of(envs: Envs) -> tuple[str, int]:
    space = envs.single_action_space
    return ("discrete", int(space.n)) if envs.discrete else ("continuous", math.prod(space.shape))


def _model_of(loaded: checkpoints.Loaded, algo: str | None, env_id: str | None) -> Any:
    """The networks in a full checkpoint, laid out as the algorithm's model file has them."""
    problem = checkpoints.mismatch(loaded, algo, env_id) if algo is not None and env_id is not None else None
    if problem is not None:
        raise BadConfig(problem)
    try:
        kept = loaded.state["kept"]
        agent, environments = kept["agent"], kept.get("envs") or {}
        if isinstance(agent.get("model"), list):  # an actor with its critics
            return tuple(agent["model"])
        statistics = environments.get("obs_normaliser")
        weights = dict(agent)
        if statistics is not None:
            weights |= {f"obs_normaliser.{name}": statistics[name] for name in ("mean", "var", "count")}
        args = dict(loaded.meta["args"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadConfig(f"The checkpoint {loaded.path} holds no networks that are known here ({error!r}).") from error
    return {"model_weights": weights, "args": args} if "n_atoms" in args else weights


def policy_of(model: Any, envs: Envs) -> Policy | None:
    """The policy inside a loaded model file, None when it is not recognised."""
    from cleanrl_worker.agents.flax_files import named_as_torch
    from cleanrl_worker.agents.loading import build_agent, weights_of
    from cleanrl_worker.evals.image_policies import image_policy
    from cleanrl_worker.evals.pixel_policies import pixel_policy

    actions = int(envs.single_action_space.n) if envs.discrete else None
    on_pixels = pixel_policy(model, actions, envs.obs_shape)
    if on_pixels is not None:
        return on_pixels
    model = named_as_torch(model)
    on_images = image_policy(model, actions)
    if on_images is not None:
        return on_images
    if isinstance(model, list | tuple):
        return _actor(model[0], envs)
    weights = weights_of(model)
    if not isinstance(weights, Mapping):
        return None
    if "actor_mean.0.weight" in weights:
        return GaussianPolicy(weights)
    if "actor.4.weight" in weights or ("network.0.weight" in weights and "actor.weight" in weights):
        return DenseActorPolicy(weights)
    agent = build_agent(weights)
    if agent is not None:
        return ActorCriticPolicy(agent)
    if "fc_mu.weight" in weights or "fc_mean.weight" in weights:
        return _actor(weights, envs)
    if "network.0.weight" in weights and isinstance(model, dict) and "model_weights" in model:
        return CategoricalValuePolicy(weights, model.get("args", {}), int(envs.single_action_space.n))
    if "network.0.weight" in weights:
        return ValuePolicy(weights)
    return None


def _actor(weights: Any, envs: Envs) -> Policy | None:
    if not isinstance(weights, Mapping) or "fc1.weight" not in weights:
        return None
    if envs.discrete:
        raise BadConfig(
            "The model chooses continuous actions, and this environment has discrete ones: use its own --env-id."
        )
    return BoundedActorPolicy(weights, envs.single_action_space)


class Dense:
    """Linear layers, each with an optional LayerNorm, with `activation` between them."""

    def __init__(self, weights: Weights, names: list[str], activation: str) -> None:
        self.layers = [
            (_array(weights[f"{n}.weight"]).T, _array(weights[f"{n}.bias"]), _norm(weights, n)) for n in names
        ]
        self.activation = np.tanh if activation == "tanh" else lambda x: np.maximum(x, 0)
        self.inputs, self.outputs = int(self.layers[0][0].shape[0]), int(self.layers[-1][0].shape[1])

    def __call__(self, x: npt.NDArray[Any], *, activate_last: bool = False) -> npt.NDArray[np.float32]:
        for index, (weight, bias, norm) in enumerate(self.layers):
            x = x @ weight + bias
            if norm is not None:
                centred = x - x.mean(axis=-1, keepdims=True)
                x = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * norm[0] + norm[1]
            if activate_last or index < len(self.layers) - 1:
                x = self.activation(x)
        return x


class ValuePolicy(Policy):
    """DQN and PQN: the action of the largest value."""

    algorithms: tuple[str, ...] = ("dqn", "dqn_jax", "pqn")

    def __init__(self, weights: Weights) -> None:
        self.network = Dense(weights, _linear_names(weights, "network"), "relu")
        self.obs_size = self.network.inputs
        self.actions = ("discrete", self.network.outputs)

    def values(self, obs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return self.network(obs)

    def __call__(self, obs: Any, _starts: Any, rng: np.random.Generator, greedy: bool) -> npt.NDArray[Any]:
        values = self.values(obs)
        actions: npt.NDArray[Any] = values.argmax(axis=1)
        if not greedy:
            explore = rng.random(len(obs)) < EPSILON
            actions = np.where(explore, rng.integers(0, values.shape[1], len(obs)), actions)
        return actions


class CategoricalValuePolicy(ValuePolicy):
    """C51: the action of the largest expected value."""

    algorithms = ("c51", "c51_jax")

    def __init__(self, weights: Weights, args: Mapping[str, Any], actions: int) -> None:
        super().__init__(weights)
        outputs = self.network.outputs
        self.actions = ("discrete", actions)
        if outputs % actions:
            raise BadConfig(
                f"The model has {outputs} outputs, which {actions} actions do not divide: use its own --env-id."
            )
        count = outputs // actions
        if "atoms" in weights:
            self.atoms = _array(weights["atoms"])
        else:
            bounds = float(args.get("v_min", -10.0)), float(args.get("v_max", 10.0))
            self.atoms = np.linspace(*bounds, count, dtype=np.float32)

    def values(self, obs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        logits = self.network(obs).reshape(len(obs), -1, len(self.atoms))
        return np.asarray(np.exp(log_softmax(logits)) @ self.atoms)


class GaussianPolicy(Policy):
    """PPO and RPO for continuous actions."""

    algorithms = ("ppo_continuous_action", "rpo_continuous_action")

    def __init__(self, weights: Weights) -> None:
        self.mean = Dense(weights, _linear_names(weights, "actor_mean"), "tanh")
        self.std = np.exp(_array(weights["actor_logstd"]))
        self.obs_size = self.mean.inputs
        self.actions = ("continuous", self.mean.outputs)
        self.normaliser = statistics_in(weights)

    def __call__(self, obs: Any, _starts: Any, rng: np.random.Generator, greedy: bool) -> npt.NDArray[Any]:
        means = self.mean(obs)
        return means if greedy else means + self.std * rng.standard_normal(means.shape, dtype=np.float32)


class BoundedActorPolicy(Policy):
    """DDPG, TD3 and SAC: tanh, scaled to the bounds of the action space."""

    def __init__(self, weights: Weights, space: Any) -> None:
        self.stochastic = "fc_mean.weight" in weights
        self.trunk = Dense(weights, ["fc1", "fc2"], "relu")
        self.head = Dense(weights, ["fc_mean" if self.stochastic else "fc_mu"], "relu")
        self.obs_size = self.trunk.inputs
        self.actions = ("continuous", self.head.outputs)
        low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        self.low, self.high = low, high
        self.scale = _array(weights["action_scale"]).reshape(-1) if "action_scale" in weights else (high - low) / 2
        self.bias = _array(weights["action_bias"]).reshape(-1) if "action_bias" in weights else (high + low) / 2

    def __call__(self, obs: Any, _starts: Any, rng: np.random.Generator, greedy: bool) -> npt.NDArray[Any]:
        actions = np.tanh(self.head(self.trunk(obs, activate_last=True))) * self.scale + self.bias
        if not greedy and not self.stochastic:
            actions = actions + rng.standard_normal(actions.shape, dtype=np.float32) * (self.scale * ACTOR_NOISE)
        return np.asarray(np.clip(actions, self.low, self.high))


class DenseActorPolicy(Policy):
    """PPO for discrete actions and vectors: an actor of its own, or one over a shared trunk."""

    algorithms = ("ppo",)

    def __init__(self, weights: Weights) -> None:
        shared = "actor.weight" in weights
        self.trunk = Dense(weights, _linear_names(weights, "network"), "tanh") if shared else None
        self.actor = Dense(weights, ["actor"] if shared else _linear_names(weights, "actor"), "tanh")
        self.obs_size = (self.trunk or self.actor).inputs
        self.actions = ("discrete", self.actor.outputs)

    def __call__(self, obs: Any, _starts: Any, rng: np.random.Generator, greedy: bool) -> npt.NDArray[Any]:
        hidden = obs if self.trunk is None else self.trunk(obs, activate_last=True)
        return choose(self.actor(hidden), rng, greedy)


class ActorCriticPolicy(Policy):
    """PPO for discrete actions, convolutional or recurrent."""

    def __init__(self, agent: Any) -> None:
        from cleanrl_worker.agents.gru import GRUAgent

        self.agent = agent.eval()
        self.recurrent = self.flattens = isinstance(agent, GRUAgent)
        self.memory: Any = None
        self.algorithms = ("ppo_gru",) if self.recurrent else ("ppo",)
        head = agent.actor if self.recurrent else agent.actor[-1]
        self.actions = ("discrete", head.out_features)
        if self.recurrent:
            self.obs_size = agent.encoder[0].in_features

    def __call__(self, obs: Any, starts: Any, rng: np.random.Generator, greedy: bool) -> npt.NDArray[Any]:
        import torch

        with torch.no_grad():
            if self.recurrent:
                if self.memory is None:
                    self.memory = self.agent.initial_memory(len(obs))
                batch = torch.as_tensor(obs)[None], self.memory, torch.as_tensor(starts)[None]
                logits, _, self.memory = self.agent(*batch)
                logits = logits[0]
            else:
                logits, _ = self.agent(torch.as_tensor(obs))
        return choose(logits.numpy(), rng, greedy)


_TOLD_APART = {
    name
    for kind in (ValuePolicy, CategoricalValuePolicy, GaussianPolicy, DenseActorPolicy)
    for name in (*kind.algorithms, "ppo_gru")
}
"""Algorithms that no other's model file is taken for. (DDPG's and TD3's actors look alike, and images have many networks.)"""


def choose(logits: npt.NDArray[np.float32], rng: np.random.Generator, greedy: bool) -> npt.NDArray[Any]:
    """The likeliest action of each row, or one drawn from the softmax."""
    return np.asarray(logits.argmax(axis=1)) if greedy else draw(logits, rng)


def _array(value: Any) -> npt.NDArray[np.float32]:
    return np.asarray(value, np.float32)


def _linear_names(weights: Weights, prefix: str) -> list[str]:
    """The Linear layers of a Sequential, in order: those whose weight is a matrix."""
    found = [name.split(".") for name in weights if name.startswith(f"{prefix}.") and name.endswith(".weight")]
    numbers = sorted(int(parts[1]) for parts in found if len(parts) == 3 and parts[1].isdigit())
    return [f"{prefix}.{n}" for n in numbers if len(weights[f"{prefix}.{n}.weight"].shape) == 2]


def _norm(weights: Weights, linear: str) -> tuple[Any, Any] | None:
    """The LayerNorm right after a Linear of a Sequential, if there is one."""
    prefix, _, index = linear.rpartition(".")
    name = f"{prefix}.{int(index) + 1}" if index.isdigit() else ""
    if f"{name}.weight" not in weights or math.prod(weights[f"{name}.weight"].shape) != max(
        weights[f"{name}.weight"].shape
    ):
        return None
    return _array(weights[f"{name}.weight"]), _array(weights[f"{name}.bias"])

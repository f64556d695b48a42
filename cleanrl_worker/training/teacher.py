"""Who a student learns from: a saved value network, recorded games, or both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training import hub, trajectories
from cleanrl_worker.training.errors import BadConfig

if TYPE_CHECKING:
    from cleanrl_worker.training.envs import Envs
    from cleanrl_worker.training.replay import Batch

Floats = npt.NDArray[np.float32]
VAGUE = 0.98
"""Advice with this share of the largest entropy or more tells one action from another only in its last digits."""


@dataclass
class Teacher:
    """`policy` is a saved value network with its file, `games` are recorded; at least one of the two is there."""

    policy: Any
    path: Path | None
    games: list[trajectories.Game]
    temperature: float
    num_actions: int

    def act(self, obs: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """The best actions. Only with a policy."""
        return np.asarray(self.policy.values(obs).argmax(axis=1))

    def advice(self, batch: Batch) -> Floats:
        """Probabilities over actions: those of the policy's values, else the recorded action for certain."""
        if self.policy is None:
            certain: Floats = np.eye(self.num_actions, dtype=np.float32)[batch.action]
            return certain
        scores = self.policy.values(batch.obs) / self.temperature
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True), np.float32)


def vague_advice(advice: Floats, temperature: float) -> str:
    """What to do about probabilities that are almost the same for all actions; empty when they say something.

    Values that differ by a few hundredths, as those of games with rare rewards do, are drowned by a temperature of 1.
    """
    logs = np.log(np.maximum(advice, np.finfo(np.float32).tiny))
    entropy = -(advice * logs).sum(axis=1).mean()
    if entropy < VAGUE * np.log(advice.shape[1]):
        return ""
    apart = float((logs.max(axis=1) - logs.min(axis=1)).mean()) * temperature
    if apart == 0:
        return "The teacher values every action the same and teaches nothing: take one that has learned something."
    return (
        f"The teacher's advice is almost the same for every action: its values are {apart:.2g} apart, and --temperature "
        f"{temperature:g} drowns that. The student learns little from it: try --temperature {apart / 4:.1g}."
    )


def find_teacher(args: Any, envs: Envs, num_actions: int) -> Teacher:
    """By the flags: a local file or run, recorded games, or else the hub. Raises BadConfig with the remedy."""
    if args.temperature <= 0:
        raise BadConfig(f"--temperature must be above 0, not {args.temperature}.")
    games = trajectories.read_games(Path(args.expert_trajectories)) if args.expert_trajectories else []
    path: Path | None = None
    if args.teacher_model_path:
        path = Path(args.teacher_model_path)
    elif args.teacher_policy_hf_repo or not games:
        name = args.teacher_model_exp_name
        repository = args.teacher_policy_hf_repo or f"cleanrl/{args.env_id.replace('/', '-')}-{name}-seed1"
        path = hub.fetch(repository, f"{name}.cleanrl_model")
    policy = _value_network(path, envs, num_actions) if path is not None else None
    return Teacher(policy, path, games, args.temperature, num_actions)


def _value_network(path: Path, envs: Envs, num_actions: int) -> Any:
    from cleanrl_worker.evals.policies import load_policy

    policy = load_policy(path, envs)
    if not hasattr(policy, "values"):
        raise BadConfig(f"The teacher {path} is not a value network: take one of dqn_atari, c51_atari or their like.")
    outputs = policy.values(np.zeros((1, *envs.obs_shape), np.uint8)).shape[1]
    if outputs != num_actions:
        raise BadConfig(
            f"The teacher {path} knows {outputs} actions, and this game has {num_actions}: it is of another game."
        )
    return policy

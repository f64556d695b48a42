"""Proximal policy optimisation (Schulman et al. 2017) with clipping, for discrete actions.

Vector observations train small dense networks in NumPy, where the gradient of the loss at the networks' outputs is written
out below (`DenseLearner`). MiniGrid and BabyAI images, and `--network shared`, train in torch (`TorchLearner`). Both are the
same algorithm; a test compares their gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.dense import Adam, Net, clip_grad_norm, draw, log_softmax, sequential
from cleanrl_worker.training.envs import Envs, is_minigrid, require_discrete_actions, require_vectors
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.rollout import Rollout, advantages, explained_variance
from cleanrl_worker.training.run import Run, launch
from cleanrl_worker.wrappers.mission import MissionChoice, is_shown

Floats = npt.NDArray[np.float32]


@dataclass
class Args(SaveArgs):
    exp_name: str = "ppo"
    """the name of this experiment"""

    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = 500_000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 4
    """the number of parallel environments"""
    num_steps: int = 128
    """the number of steps in each environment per rollout"""
    anneal_lr: bool = True
    """whether the learning rate falls linearly to 0 over the run"""
    gamma: float = 0.99
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalised advantage estimation"""
    num_minibatches: int = 4
    """the number of minibatches per epoch"""
    update_epochs: int = 4
    """the number of passes over each rollout"""
    norm_adv: bool = True
    """whether advantages are normalised in each minibatch"""
    clip_coef: float = 0.2
    """how far the probability ratio may move from 1 before the surrogate is clipped"""
    clip_vloss: bool = True
    """whether the value loss is clipped as well"""
    ent_coef: float = 0.01
    """the weight of the entropy bonus"""
    vf_coef: float = 0.5
    """the weight of the value loss"""
    max_grad_norm: float = 0.5
    """the norm to which gradients are clipped"""
    target_kl: float | None = None
    """stop the passes over a rollout when the policy has moved this far"""

    network: Literal["separate", "shared"] = "separate"
    """vector observations: separate networks for actor and critic, or one shared 64-64 trunk"""
    procedural_generation: bool = True
    """whether each episode is a new level; if not, every episode starts from the same seed"""
    max_episode_steps: int | None = None
    """the time limit of an episode; unset means 256 in MiniGrid and BabyAI, and the environment's own elsewhere"""
    minigrid_scale: float = 10.0
    """the cell codes of MiniGrid's and BabyAI's images are divided by this; 10 is the largest code"""
    minigrid_mission: MissionChoice = "auto"
    """whether the network is told the mission of MiniGrid and BabyAI levels: its words, nothing, or (auto) its words where
    missions differ from level to level"""
    reward_scale: float = 1.0
    """rewards are multiplied by this for learning; logged returns are not"""

    batch_size: int = 0
    """the size of a rollout (computed)"""
    minibatch_size: int = 0
    """the size of a minibatch (computed)"""
    num_iterations: int = 0
    """the number of rollouts (computed)"""


class Minibatch(NamedTuple):
    obs: Any
    actions: npt.NDArray[np.int64]
    logprobs: Floats
    values: Floats
    advantages: Floats
    returns: Floats


class Figures(NamedTuple):
    """What is logged about an update."""

    policy_loss: float
    value_loss: float
    entropy: float
    old_approx_kl: float
    approx_kl: float
    clipfrac: float


class Learner(Protocol):
    """A policy and a value function, and how they learn from a minibatch."""

    agent: Any
    optimizer: Any

    def evaluate(self, obs: Any) -> tuple[Floats, Floats]:
        """Logits and values."""

    def learn(self, batch: Minibatch, lr: float) -> Figures:
        """One step down the gradient."""


class DenseLearner:
    """Two networks obs-64-64-out with tanh, and PPO's gradient at their outputs, written out."""

    def __init__(self, obs_size: int, actions: int, args: Args, rng: np.random.Generator) -> None:
        self.args = args
        self.agent = Net(
            obs_size, (64, 64), (actions, 1), activation="tanh", names=(sequential("actor"), sequential("critic"))
        )
        self.agent.init_orthogonal(rng, head_gains=(0.01, 1.0))
        self.optimizer = Adam(self.agent.flat, eps=1e-5)
        self._rows = np.arange(args.minibatch_size)

    def evaluate(self, obs: Any) -> tuple[Floats, Floats]:
        logits, values = self.agent.forward(obs)
        return logits, values[:, 0]

    def learn(self, batch: Minibatch, lr: float) -> Figures:
        figures, grad_logits, grad_values = self.gradient(batch)
        self.agent.backward((grad_logits, grad_values[:, None]))
        clip_grad_norm(self.agent.grad, self.args.max_grad_norm)
        self.optimizer.step(self.agent.grad, lr)
        return figures

    def gradient(self, batch: Minibatch) -> tuple[Figures, Floats, Floats]:
        """Forward pass, and d loss / d logits and d loss / d values."""
        args, rows, n = self.args, self._rows, len(batch.actions)
        clip = args.clip_coef
        logits, values = self.evaluate(batch.obs)
        logprobs = log_softmax(logits)
        probs = np.exp(logprobs)

        # Policy: loss = mean max(-A r, -A clip(r)). Where the clipped term is the larger one, r has no influence.
        advantage = batch.advantages
        if args.norm_adv:
            centred = advantage - advantage.sum() / n
            advantage = centred / (math.sqrt(float(np.dot(centred, centred)) / (n - 1)) + 1e-8)
        logratio = logprobs[rows, batch.actions] - batch.logprobs
        ratio = np.exp(logratio)
        surrogate = advantage * ratio
        clipped = advantage * np.minimum(np.maximum(ratio, 1 - clip), 1 + clip)
        pull = np.where(surrogate <= clipped, surrogate, 0) * (-1 / n)  # d loss / d log-probability of the action taken
        grad_logits = probs * -pull[:, None]
        grad_logits[rows, batch.actions] += pull

        # Entropy: H = -sum p log p, dH / d logit = -p (log p + H).
        entropy = -np.einsum("ij,ij->i", probs, logprobs)
        if args.ent_coef:
            grad_logits += probs * (logprobs + entropy[:, None]) * (args.ent_coef / n)

        # Value: loss = mean max((v - R)^2, (v_near - R)^2) / 2, with v_near within `clip` of the old value.
        error = values - batch.returns
        grad_values = error
        square = error * error
        if args.clip_vloss:
            moved = values - batch.values
            near_error = np.minimum(np.maximum(moved, -clip), clip) + (batch.values - batch.returns)
            near_square = near_error * near_error
            # Outside the clip range v_near does not move with v: no gradient where its error is the larger one.
            grad_values = np.where((near_square > square) & (np.abs(moved) > clip), 0, error)
            square = np.maximum(square, near_square)
        grad_values = grad_values * np.float32(args.vf_coef / n)

        figures = Figures(
            policy_loss=-float(np.minimum(surrogate, clipped).sum()) / n,
            value_loss=0.5 * float(square.sum()) / n,
            entropy=float(entropy.sum()) / n,
            old_approx_kl=-float(logratio.sum()) / n,
            approx_kl=float((ratio - 1 - logratio).sum()) / n,
            clipfrac=float(np.count_nonzero(np.abs(ratio - 1) > clip)) / n,
        )
        return figures, np.asarray(grad_logits, np.float32), np.asarray(grad_values, np.float32)


class TorchLearner:
    """Convolutions, shared trunks and GPUs: the same loss, differentiated by torch."""

    def __init__(self, envs: Envs, actions: int, args: Args) -> None:
        import torch

        from cleanrl_worker.agents.minigrid import MinigridAgent
        from cleanrl_worker.agents.mlp import MLPAgent
        from cleanrl_worker.training import ppo_torch
        from cleanrl_worker.wrappers.mission import VOCABULARY

        ppo_torch.seed_torch(args)
        self.args, self.torch, self.ppo = args, torch, ppo_torch
        self.device = ppo_torch.device_for(args)
        images = len(envs.obs_shape) == 3
        agent = (
            MinigridAgent(
                actions,
                envs.obs_shape[0],
                scale=args.minigrid_scale,
                words=VOCABULARY if args.minigrid_mission == "words" else None,
            )
            if images
            else MLPAgent(envs.obs_shape[0], actions, shared=True)
        )
        self.agent: Any = agent.to(self.device)
        self.optimizer = ppo_torch.FlatAdam(self.agent)

    def evaluate(self, obs: Any) -> tuple[Floats, Floats]:
        with self.torch.no_grad():
            logits, values = self.agent(self._tensor(obs))
        return logits.cpu().numpy(), values.cpu().numpy()

    def learn(self, batch: Minibatch, lr: float) -> Figures:
        logits, values = self.agent(self._tensor(batch.obs))
        actions, logprobs, old_values, gained, returns = (self._tensor(part) for part in batch[1:])
        parts = self.ppo.ppo_loss(logits, values, actions, logprobs, old_values, gained, returns, self.args)
        self.optimizer.zero_grad()
        self.torch.autograd.backward(parts.loss)
        self.optimizer.step(lr, self.args.max_grad_norm)
        return Figures(*parts.figures())

    def _tensor(self, array: Any) -> Any:
        return self.torch.as_tensor(array, device=self.device)


def check(args: Args) -> None:
    """Fill in the computed flags and refuse what can't work."""
    if min(args.num_envs, args.num_steps, args.update_epochs) < 1:
        raise BadConfig("--num-envs, --num-steps and --update-epochs must be at least 1.")
    if not (args.minigrid_scale > 0 and math.isfinite(args.minigrid_scale)):
        raise BadConfig(f"--minigrid-scale must be more than 0, not {args.minigrid_scale}.")
    args.batch_size = args.num_envs * args.num_steps
    if args.num_minibatches < 1 or args.batch_size % args.num_minibatches:
        raise BadConfig(
            f"--num-minibatches {args.num_minibatches} does not divide the rollout of {args.batch_size} steps "
            f"({args.num_envs} environments times {args.num_steps} steps): choose a divisor of {args.batch_size}."
        )
    args.minibatch_size = args.batch_size // args.num_minibatches
    if args.norm_adv and args.minibatch_size < 2:
        raise BadConfig("A minibatch of one step can't be normalised: use fewer --num-minibatches, or --no-norm-adv.")
    args.num_iterations = args.total_timesteps // args.batch_size
    if args.num_iterations < 1:
        raise BadConfig(
            f"--total-timesteps {args.total_timesteps} is less than one rollout of {args.batch_size} steps "
            f"({args.num_envs} environments times {args.num_steps} steps): nothing would be learned. "
            f"Use at least {args.batch_size}."
        )


def make_learner(envs: Envs, args: Args, rng: np.random.Generator) -> Learner:
    """The network that fits the environment: convolutions for MiniGrid's images, dense layers for vectors."""
    actions = require_discrete_actions(envs, "ppo", instead="ppo_continuous_action")
    if is_minigrid(args.env_id) and len(envs.obs_shape) == 3:
        return TorchLearner(envs, actions, args)
    size = require_vectors(envs, "ppo")
    return DenseLearner(size, actions, args, rng) if args.network == "separate" else TorchLearner(envs, actions, args)


def train(args: Args, run: Run) -> None:
    check(args)
    mission = is_minigrid(args.env_id) and is_shown(args.minigrid_mission, run.env_ids, run.saved_agent)
    args.minigrid_mission = "words" if mission else "none"  # a checkpoint says which
    envs = run.make_envs(
        args.num_envs,
        mission=mission,
        max_episode_steps=args.max_episode_steps,
        procedural_generation=args.procedural_generation,
        reward_scale=args.reward_scale,
    )
    learner = make_learner(envs, args, run.rng)
    rollout = Rollout(
        args.num_steps,
        args.num_envs,
        obs=(envs.obs_shape, envs.obs_dtype),
        actions=((), np.int64),
        logits=((envs.single_action_space.n,), np.float32),
        values=((), np.float32),
        rewards=((), np.float32),
        ends=((), np.bool_),
        end_values=((), np.float32),
    )
    run.keep(agent=learner.agent, optimizer=learner.optimizer, rollout=rollout)
    run.start()
    if envs.restarted:
        rollout.clear()

    while (iteration := (run.step - rollout.t * args.num_envs) // args.batch_size) < args.num_iterations:
        while not rollout.full:
            t = rollout.t
            logits, values = learner.evaluate(envs.obs)
            actions = draw(logits, run.rng)
            rollout.obs[t] = envs.obs
            rollout.actions[t] = actions
            rollout.logits[t] = logits
            rollout.values[t] = values
            step = envs.step(actions)
            rollout.rewards[t] = step.rewards
            rollout.ends[t] = False
            if step.episodes:
                rollout.ends[t] = step.dones
                # Time limits are not the end of the world: the final observation's value is bootstrapped.
                rollout.end_values[t] = learner.evaluate(step.next_obs)[1] * step.truncated
            rollout.t += 1
            run.tick(step)

        lr = args.learning_rate * (1 - iteration / args.num_iterations) if args.anneal_lr else args.learning_rate
        figures, explained = update(args, run, learner, rollout, learner.evaluate(envs.obs)[1], lr)
        rollout.clear()
        run.guard(**figures)
        run.scalars(
            {"charts/learning_rate": lr, "charts/SPS": run.sps, "losses/explained_variance": explained, **figures}
        )
    run.finish(model=learner.agent.state_dict)


def update(
    args: Args, run: Run, learner: Learner, rollout: Rollout, last_values: Floats, lr: float
) -> tuple[dict[str, float], float]:
    """Learn from a full rollout. Returns the losses by tag, and how much of the returns' variance the values explain."""
    gained = advantages(
        rollout.rewards, rollout.values, last_values, rollout.ends, rollout.end_values, args.gamma, args.gae_lambda
    ).reshape(-1)
    obs, actions, values = rollout.flat("obs"), rollout.flat("actions"), rollout.flat("values")
    returns = gained + values
    logprobs = log_softmax(rollout.flat("logits"))[np.arange(args.batch_size), actions]

    clipfracs: list[float] = []
    for _ in range(args.update_epochs):
        order = run.rng.permutation(args.batch_size)
        for start in range(0, args.batch_size, args.minibatch_size):
            rows = order[start : start + args.minibatch_size]
            batch = Minibatch(obs[rows], actions[rows], logprobs[rows], values[rows], gained[rows], returns[rows])
            figures = learner.learn(batch, lr)
            clipfracs.append(figures.clipfrac)
        if args.target_kl is not None and figures.approx_kl > args.target_kl:
            break
    losses = {
        f"losses/{name}": value
        for name, value in figures._replace(clipfrac=float(np.mean(clipfracs)))._asdict().items()
    }
    return losses, explained_variance(values, returns)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""Proximal policy optimisation (Schulman et al. 2017) with clipping, for continuous actions.

A Gaussian policy with a mean from a small dense network and a standard deviation that does not depend on the state. Actions
are clipped to the environment's bounds, observations and rewards are normalised by running statistics. The networks are small
enough for the CPU to beat a GPU, so `--cuda` changes nothing here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.dense import Adam, Net, clip_grad_norm, sequential
from cleanrl_worker.training.envs import require_continuous_actions, require_vectors
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.rollout import Rollout, advantages, explained_variance
from cleanrl_worker.training.run import Run, launch

Floats = npt.NDArray[np.float32]
LOG_2PI = math.log(2 * math.pi)


@dataclass
class Args(SaveArgs):
    exp_name: str = "ppo_continuous_action"
    """the name of this experiment"""

    env_id: str = "HalfCheetah-v4"
    """the id of the environment"""
    total_timesteps: int = 1_000_000
    """total timesteps of the experiment"""
    learning_rate: float = 3e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of parallel environments"""
    num_steps: int = 2048
    """the number of steps in each environment per rollout"""
    anneal_lr: bool = True
    """whether the learning rate falls linearly to 0 over the run"""
    gamma: float = 0.99
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalised advantage estimation"""
    num_minibatches: int = 32
    """the number of minibatches per epoch"""
    update_epochs: int = 10
    """the number of passes over each rollout"""
    norm_adv: bool = True
    """whether advantages are normalised in each minibatch"""
    clip_coef: float = 0.2
    """how far the probability ratio may move from 1 before the surrogate is clipped"""
    clip_vloss: bool = True
    """whether the value loss is clipped as well"""
    ent_coef: float = 0.0
    """the weight of the entropy bonus"""
    vf_coef: float = 0.5
    """the weight of the value loss"""
    max_grad_norm: float = 0.5
    """the norm to which gradients are clipped"""
    target_kl: float | None = None
    """stop the passes over a rollout when the policy has moved this far"""

    batch_size: int = 0
    """the size of a rollout (computed)"""
    minibatch_size: int = 0
    """the size of a minibatch (computed)"""
    num_iterations: int = 0
    """the number of rollouts (computed)"""


class Minibatch(NamedTuple):
    obs: Floats
    actions: Floats
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


class Learner:
    """Mean and value networks obs-64-64-out with tanh, a free log-std, and PPO's gradient at their outputs, written out."""

    def __init__(self, obs_size: int, action_size: int, args: Args, rng: np.random.Generator) -> None:
        self.args = args
        self.agent = Net(
            obs_size,
            (64, 64),
            (action_size, 1),
            activation="tanh",
            names=(sequential("actor_mean"), sequential("critic")),
            extra={"actor_logstd": (1, action_size)},
        )
        self.agent.init_orthogonal(rng, head_gains=(0.01, 1.0))
        self.logstd = self.agent.views["actor_logstd"]
        self.optimizer = Adam(self.agent.flat, eps=1e-5)

    def evaluate(self, obs: Floats) -> tuple[Floats, Floats]:
        """Means and values."""
        means, values = self.agent.forward(obs)
        return means, values[:, 0]

    def learn(self, batch: Minibatch, lr: float, shift: Floats | None = None) -> Figures:
        """One step down the gradient. `shift` is added to the means."""
        figures, grad_means, grad_logstd, grad_values = self.gradient(batch, shift)
        self.agent.backward((grad_means, grad_values[:, None]))
        self.agent.grad_views["actor_logstd"][0] = grad_logstd
        clip_grad_norm(self.agent.grad, self.args.max_grad_norm)
        self.optimizer.step(self.agent.grad, lr)
        return figures

    def gradient(self, batch: Minibatch, shift: Floats | None = None) -> tuple[Figures, Floats, Floats, Floats]:
        """Forward pass, and d loss / d means, d loss / d log-std and d loss / d values."""
        args, n = self.args, len(batch.obs)
        clip = args.clip_coef
        means, values = self.evaluate(batch.obs)
        logstd = self.logstd[0]
        precision = np.exp(-logstd)
        scaled = (batch.actions - means if shift is None else batch.actions - means - shift) * precision
        logprobs = _log_density(scaled, logstd)

        # Policy: loss = mean max(-A r, -A clip(r)). Where the clipped term is the larger one, r has no influence.
        advantage = batch.advantages
        if args.norm_adv:
            centred = advantage - advantage.sum() / n
            advantage = centred / (math.sqrt(float(np.dot(centred, centred)) / (n - 1)) + 1e-8)
        logratio = logprobs - batch.logprobs
        ratio = np.exp(logratio)
        surrogate = advantage * ratio
        clipped = advantage * np.minimum(np.maximum(ratio, 1 - clip), 1 + clip)
        pull = np.where(surrogate <= clipped, surrogate, 0) * np.float32(-1 / n)  # d loss / d log-probability
        # With s = (a - mean) / std: d log p / d mean = s / std, d log p / d log-std = s^2 - 1.
        grad_means = (scaled * precision) * pull[:, None]
        grad_logstd = pull @ (scaled * scaled - 1)

        # Entropy: H = sum log-std + constant.
        entropy = float(logstd.sum()) + 0.5 * len(logstd) * (1 + LOG_2PI)
        grad_logstd = grad_logstd - args.ent_coef

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
            entropy=entropy,
            old_approx_kl=-float(logratio.sum()) / n,
            approx_kl=float((ratio - 1 - logratio).sum()) / n,
            clipfrac=float(np.count_nonzero(np.abs(ratio - 1) > clip)) / n,
        )
        return figures, grad_means, grad_logstd, np.asarray(grad_values, np.float32)

    def shift(self, rng: np.random.Generator, rows: int) -> Floats | None:
        """A perturbation of the means in the update: none here. See rpo_continuous_action."""
        del rng, rows
        return None


def _log_density(scaled: Floats, logstd: Floats) -> Floats:
    """The log-density of a diagonal Gaussian, given (action - mean) / std."""
    density: Floats = -0.5 * np.einsum("ij,ij->i", scaled, scaled) - (
        logstd.sum() + np.float32(0.5 * len(logstd) * LOG_2PI)
    )
    return density


def check(args: Args) -> None:
    """Fill in the computed flags and refuse what can't work."""
    if min(args.num_envs, args.num_steps, args.update_epochs) < 1:
        raise BadConfig("--num-envs, --num-steps and --update-epochs must be at least 1.")
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


def train(args: Args, run: Run, learner_type: type[Learner] = Learner) -> None:
    check(args)
    envs = run.make_envs(args.num_envs, clip_actions=True, obs_normaliser=True, reward_normaliser_gamma=args.gamma)
    action_size = require_continuous_actions(envs, args.exp_name, instead="ppo")
    learner = learner_type(require_vectors(envs, args.exp_name), action_size, args, run.rng)
    rollout = Rollout(
        args.num_steps,
        args.num_envs,
        obs=(envs.obs_shape, np.float32),
        actions=((action_size,), np.float32),
        noise=((action_size,), np.float32),
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
        std = np.exp(learner.logstd)
        while not rollout.full:
            t = rollout.t
            means, values = learner.evaluate(envs.obs)
            noise = run.rng.standard_normal(means.shape, dtype=np.float32)
            actions = means + std * noise
            rollout.obs[t] = envs.obs
            rollout.actions[t] = actions
            rollout.noise[t] = noise
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

    def model() -> dict[str, Any]:
        assert envs.obs_normaliser is not None
        statistics = envs.obs_normaliser.state_dict()
        saved = {f"obs_normaliser.{name}": np.asarray(statistics[name]) for name in ("mean", "var", "count")}
        return {**learner.agent.state_dict(), **saved}

    run.finish(model=model)


def update(
    args: Args, run: Run, learner: Learner, rollout: Rollout, last_values: Floats, lr: float
) -> tuple[dict[str, float], float]:
    """Learn from a full rollout. Returns the losses by tag, and how much of the returns' variance the values explain."""
    gained = advantages(
        rollout.rewards, rollout.values, last_values, rollout.ends, rollout.end_values, args.gamma, args.gae_lambda
    ).reshape(-1)
    obs, actions, values = rollout.flat("obs"), rollout.flat("actions"), rollout.flat("values")
    returns = gained + values
    logprobs = _log_density(rollout.flat("noise"), learner.logstd[0])

    clipfracs: list[float] = []
    for _ in range(args.update_epochs):
        order = run.rng.permutation(args.batch_size)
        for start in range(0, args.batch_size, args.minibatch_size):
            rows = order[start : start + args.minibatch_size]
            batch = Minibatch(obs[rows], actions[rows], logprobs[rows], values[rows], gained[rows], returns[rows])
            figures = learner.learn(batch, lr, learner.shift(run.rng, len(rows)))
            clipfracs.append(figures.clipfrac)
        if args.target_kl is not None and figures.approx_kl > args.target_kl:
            break
    figures = figures._replace(clipfrac=float(np.mean(clipfracs)))
    return {f"losses/{name}": value for name, value in figures._asdict().items()}, explained_variance(values, returns)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""SAC (Haarnoja et al. 2018): off-policy learning of a stochastic policy that is rewarded for its entropy.

Two critics learn y = r + gamma * (min_i Q_i,target(s', a') - alpha * log pi(a'|s')) with a' drawn from the policy. The policy
is a Gaussian squashed by tanh and learns to lower alpha * log pi(a|s) - min_i Q_i(s, a) through its own samples. With
`autotune`, alpha itself is learned so that the policy's entropy stays at minus the number of action dimensions.

The networks are computed in NumPy on the CPU (see `training/dense.py`), so `--cuda` changes nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.continuous import HIDDEN, ActorCritic, Bounds, CriticOptimizers, Critics
from cleanrl_worker.training.dense import Adam, Array, Net, mean
from cleanrl_worker.training.envs import require_continuous_actions, require_vectors
from cleanrl_worker.training.replay import make_replay
from cleanrl_worker.training.run import Run, launch

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass
class Args(SaveArgs):
    """SAC on environments with vector observations and bounded continuous actions."""

    exp_name: str = "sac_continuous_action"
    """the name of this experiment"""
    env_id: str = "Hopper-v4"
    """the id of the environment"""
    total_timesteps: int = 1000000
    """total timesteps of the experiment"""
    num_envs: int = 1
    """the number of environments; each step of all of them is followed by one gradient step"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 0.005
    """how far the target networks move towards the online ones at each update of them"""
    batch_size: int = 256
    """the transitions sampled from the replay memory for one gradient step"""
    learning_starts: int = 5000
    """the timestep after which learning starts; actions are random until then"""
    policy_lr: float = 3e-4
    """the learning rate of the policy"""
    q_lr: float = 1e-3
    """the learning rate of the critics, and of alpha"""
    policy_frequency: int = 2
    """the critics' gradient steps between updates of the policy, which then takes as many at once"""
    target_network_frequency: int = 1
    """the critics' gradient steps between updates of the target networks"""
    alpha: float = 0.2
    """the weight of the entropy; its value throughout when `autotune` is off"""
    autotune: bool = True
    """whether alpha is learned"""


class Actor:
    """obs-256-256-(mean, log-std) of a Gaussian that is squashed into the bounds by tanh."""

    def __init__(self, obs_size: int, bounds: Bounds) -> None:
        self.bounds, self.size = bounds, len(bounds.scale)
        names = (("fc1", "fc2", "fc_head"),)
        self.net = Net(obs_size, HIDDEN, (2 * self.size,), activation="relu", names=names)

    def sample(self, obs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions drawn from the policy and the logarithms of their densities. Keeps what `backward` needs."""
        self._head = self.net.forward(obs)[0]
        return self.sample_again(rng)

    def sample_again(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """The same for the observations of the latest `sample`, as long as the weights are the same."""
        head = self._head
        mean, self._log_std_tanh = head[:, : self.size], np.tanh(head[:, self.size :])
        log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (self._log_std_tanh + 1.0)
        noise = rng.standard_normal(mean.shape, np.float32)
        self._spread = np.exp(log_std) * noise  # d x / d log-std of x = mean + std * noise
        self._squashed = np.tanh(mean + self._spread)
        # the density of the Gaussian sample, divided by the slope of the squashing; 1e-6 keeps the logarithm finite
        self._slope = self.bounds.scale * (1.0 - self._squashed**2) + 1e-6
        log_prob = -0.5 * noise**2 - log_std - HALF_LOG_2PI - np.log(self._slope)
        return self._squashed * self.bounds.scale + self.bounds.bias, log_prob.sum(axis=1)

    def backward(self, grad_actions: Array, grad_log_prob: Array) -> None:
        """From d loss / d (actions, log-densities) of the latest `sample` to the network's gradient."""
        through = grad_log_prob[:, None]
        squashed = self._squashed
        grad_squashed = grad_actions * self.bounds.scale
        grad_squashed += through * 2.0 * self.bounds.scale * squashed / self._slope
        grad_x = grad_squashed * (1.0 - squashed**2)
        grad_log_std = grad_x * self._spread - through
        grad_raw = grad_log_std * (0.5 * (LOG_STD_MAX - LOG_STD_MIN)) * (1.0 - self._log_std_tanh**2)
        self.net.backward((np.concatenate((grad_x, grad_raw), axis=1),))

    def state_dict(self) -> dict[str, Array]:
        """With the head as two layers, fc_mean and fc_logstd, and the action bounds."""
        state = self.net.state_dict()
        weight, bias, n = state.pop("fc_head.weight"), state.pop("fc_head.bias"), self.size
        heads = {"fc_mean.weight": weight[:n], "fc_mean.bias": bias[:n]}
        heads |= {"fc_logstd.weight": weight[n:], "fc_logstd.bias": bias[n:]}
        return {**self.bounds.state_dict(), **state, **heads}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        head = {
            p: np.concatenate([state[f"{name}.{p}"] for name in ("fc_mean", "fc_logstd")]) for p in ("weight", "bias")
        }
        self.net.load_state_dict({**state, **{f"fc_head.{p}": value for p, value in head.items()}})


def train(args: Args, run: Run) -> None:
    envs = run.make_envs(args.num_envs, clip_actions=True)
    obs_size = require_vectors(envs, "sac_continuous_action", instead="sac_atari")
    action_size = require_continuous_actions(envs, "sac_continuous_action", instead="dqn", bounded=True)
    rng, bounds = run.rng, Bounds(envs.single_action_space)
    replay = make_replay(run, envs)

    actor = Actor(obs_size, bounds)
    critics, target_critics = (Critics(obs_size, action_size, count=2) for _ in range(2))
    actor.net.init_uniform(rng)
    critics.init_uniform(rng)
    actor_optimizer = Adam(actor.net.flat, args.policy_lr)
    q_optimizer = CriticOptimizers(critics, args.q_lr)
    log_alpha = np.zeros(1, np.float32)
    alpha_optimizer = Adam(log_alpha, args.q_lr)
    target_entropy = -float(action_size)
    alpha = 1.0 if args.autotune else args.alpha
    agent = ActorCritic(actor, critics)
    run.keep(agent=agent, target_critics=target_critics, log_alpha=log_alpha)
    run.keep(actor_optimizer=actor_optimizer, q_optimizer=q_optimizer, alpha_optimizer=alpha_optimizer)
    run.keep(losses=(latest := {"actor": 0.0, "alpha": 0.0}))
    run.start()
    if not run.restored:
        target_critics.follow(critics, tau=1.0)

    while run.step < args.total_timesteps:
        obs = envs.obs
        if run.step < args.learning_starts:
            actions = bounds.uniform(rng, args.num_envs)
        else:
            actions, _ = actor.sample(obs, rng)
        step = envs.step(actions)
        for i in range(args.num_envs):
            replay.add(obs[i], actions[i], step.rewards[i], step.next_obs[i], step.terminated[i])

        if run.step > args.learning_starts:
            iteration, size = run.step // args.num_envs, args.batch_size
            alpha = math.exp(log_alpha[0]) if args.autotune else args.alpha
            batch = replay.sample(size)
            next_actions, next_log_prob = actor.sample(batch.next_obs, rng)
            next_value = np.minimum(*target_critics.predict(batch.next_obs, next_actions)) - alpha * next_log_prob
            target = batch.reward + args.gamma * (1.0 - batch.terminated) * next_value

            values = critics.values(batch.obs, batch.action)
            mean_values = [mean(value) for value in values]
            errors = [value - target for value in values]
            qf1_loss, qf2_loss = (float(np.dot(error, error)) / size for error in errors)
            run.guard(qf1_loss=qf1_loss, qf2_loss=qf2_loss)
            critics.backward([(2.0 / size) * error for error in errors])
            q_optimizer.step()

            if iteration % args.policy_frequency == 0:
                for again in range(args.policy_frequency):  # makes up for the delay
                    # after the sample for alpha below, all that a second one needs is new noise
                    renew = args.autotune and again
                    sampled, log_prob = actor.sample_again(rng) if renew else actor.sample(batch.obs, rng)
                    first, second = critics.values(batch.obs, sampled)
                    latest["actor"] = mean(alpha * log_prob - np.minimum(first, second))
                    run.guard(actor_loss=latest["actor"])
                    # the smaller of the two values passes the gradient; where they are equal, each passes half
                    share = np.where(first == second, 0.5, first < second).astype(np.float32) * np.float32(-1.0 / size)
                    grad_actions = critics.action_gradient([share, np.float32(-1.0 / size) - share])
                    actor.backward(grad_actions, np.full(size, alpha / size, np.float32))
                    actor_optimizer.step(actor.net.grad)

                    if args.autotune:
                        _, log_prob = actor.sample(batch.obs, rng)
                        surplus = mean(log_prob) + target_entropy
                        latest["alpha"] = -alpha * surplus
                        alpha_optimizer.step(np.full(1, -alpha * surplus, np.float32))  # d exp(x) / dx is exp(x)
                        alpha = math.exp(log_alpha[0])

            if iteration % args.target_network_frequency == 0:
                target_critics.follow(critics, args.tau)

            if iteration % 100 == 0:
                report = {
                    "losses/qf1_values": mean_values[0],
                    "losses/qf2_values": mean_values[1],
                    "losses/qf1_loss": qf1_loss,
                    "losses/qf2_loss": qf2_loss,
                    "losses/qf_loss": (qf1_loss + qf2_loss) / 2.0,
                    "losses/actor_loss": latest["actor"],
                    "losses/alpha": alpha,
                    "charts/SPS": run.sps,
                }
                run.scalars(report | ({"losses/alpha_loss": latest["alpha"]} if args.autotune else {}))
        run.tick(step)

    run.finish(model=agent.model)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

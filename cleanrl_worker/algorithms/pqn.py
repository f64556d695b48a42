"""PQN (Gallici et al. 2024): Q-learning without replay and without a target network.

Several environments are stepped together with an epsilon-greedy policy; LayerNorm keeps the bootstrap stable. After
`num_steps` steps the Q(lambda) returns of the whole rollout are the targets of a few epochs of minibatch regression.

The networks are computed in NumPy on the CPU (see `training/dense.py`), so `--cuda` changes nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.dense import Array, Net, RAdam, clip_grad_norm, mean
from cleanrl_worker.training.envs import require_discrete_actions, require_vectors
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.run import Run, launch
from cleanrl_worker.training.snapshot import Snapshot


@dataclass
class Args(SaveArgs):
    """PQN on environments with vector observations and discrete actions."""

    exp_name: str = "pqn"
    """the name of this experiment"""
    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = 500000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 4
    """the number of environments stepped together"""
    num_steps: int = 128
    """the steps each environment takes between two updates"""
    num_minibatches: int = 4
    """the number of minibatches an epoch is cut into"""
    update_epochs: int = 4
    """how often an update goes over the rollout"""
    anneal_lr: bool = True
    """whether the learning rate falls to 0 in a straight line"""
    gamma: float = 0.99
    """the discount factor gamma"""
    start_e: float = 1
    """the exploration rate epsilon at the start"""
    end_e: float = 0.05
    """the exploration rate epsilon at the end of its schedule"""
    exploration_fraction: float = 0.5
    """the fraction of `total_timesteps` over which epsilon goes from `start_e` to `end_e`"""
    max_grad_norm: float = 10.0
    """the largest norm a gradient may have before it is scaled down"""
    q_lambda: float = 0.65
    """the lambda of Q(lambda): 0 is one-step, 1 is the whole rollout"""
    batch_size: int = 0
    """the transitions of one rollout (computed at run time)"""
    minibatch_size: int = 0
    """the transitions of one gradient step (computed at run time)"""
    num_iterations: int = 0
    """the number of rollouts (computed at run time)"""


class Rollout:
    """What the environments did since the last update: arrays of (num_steps, num_envs)."""

    def __init__(self, steps: int, envs: int, obs_size: int) -> None:
        self.t = 0
        """The steps that were collected so far."""
        self.obs = np.zeros((steps, envs, obs_size), np.float32)
        self.actions = np.zeros((steps, envs), np.int64)
        self.rewards = np.zeros((steps, envs), np.float32)
        self.values = np.zeros((steps, envs), np.float32)
        """max_a Q(s, a) where the action was chosen."""
        self.ends = np.zeros((steps, envs), np.float32)
        """1 where the action ended its episode."""
        self.after_end = np.zeros((steps, envs), np.float32)
        """The value of the last observation of an episode that was cut off; 0 for one that terminated."""
        self.explore = np.zeros((steps, envs), np.float32)
        """Numbers in [0, 1): the action is random where they are below epsilon."""
        self.random_actions = np.zeros((steps, envs), np.int64)

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        arrays = {name: array for name, array in vars(self).items() if name != "t"}
        for name, array in arrays.items():
            if array.shape != state[name].shape:
                raise ValueError(f"the rollout's {name} has shape {state[name].shape}, this run needs {array.shape}")
        for name, array in arrays.items():
            array[...] = state[name]
        self.t = int(state.get("t", -1))


def q_lambda_returns(rollout: Any, last_value: Array, gamma: float, q_lambda: float) -> Array:
    """G_t = r_t + gamma * (lambda * G_{t+1} + (1 - lambda) * max_a Q(s_{t+1}, a)), bootstrapped at the rollout's end.

    Where an episode ended, what follows is worth `after_end` instead: nothing of the next episode flows back.
    """
    next_values = np.concatenate((rollout.values[1:], last_value[None]))
    going_on = np.float32(1.0) - rollout.ends
    one_step = going_on * np.float32(1.0 - q_lambda) * next_values + rollout.ends * rollout.after_end
    returns = np.asarray(rollout.rewards + np.float32(gamma) * one_step, np.float32)
    carry = np.float32(gamma * q_lambda) * going_on
    following = last_value
    for t in range(len(returns) - 1, -1, -1):
        returns[t] += carry[t] * following
        following = returns[t]
    return returns


def update(
    q_network: Net, optimizer: RAdam, rollout: Rollout, returns: Array, lr: float, args: Args, rng: np.random.Generator
) -> tuple[float, float]:
    """Regress Q(s, a) on the returns. Returns the last minibatch's loss and mean of Q(s, a)."""
    obs = rollout.obs.reshape(args.batch_size, -1)
    actions, targets = rollout.actions.reshape(-1), returns.reshape(-1)
    rows = np.arange(args.minibatch_size)
    loss = mean_q = 0.0
    for _ in range(args.update_epochs):
        order = rng.permutation(args.batch_size)
        for start in range(0, args.batch_size, args.minibatch_size):
            chosen = order[start : start + args.minibatch_size]
            q = q_network.forward(obs[chosen])[0]
            taken = rows, actions[chosen]
            value = q[taken]
            error = value - targets[chosen]
            grad = np.zeros_like(q)
            grad[taken] = (2.0 / args.minibatch_size) * error
            q_network.backward((grad,))
            clip_grad_norm(q_network.grad, args.max_grad_norm)
            optimizer.step(q_network.grad, lr)
            loss, mean_q = float(np.dot(error, error)) / args.minibatch_size, mean(value)
    return loss, mean_q


def check(args: Args) -> None:
    """Fill in the sizes, and refuse those that do not work out."""
    for name in ("num_envs", "num_steps", "num_minibatches", "update_epochs"):
        if getattr(args, name) < 1:
            raise BadConfig(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}.")
    args.batch_size = args.num_envs * args.num_steps
    if args.batch_size % args.num_minibatches:
        raise BadConfig(
            f"--num-minibatches {args.num_minibatches} does not divide the batch of {args.batch_size} "
            f"(--num-envs {args.num_envs} times --num-steps {args.num_steps}): choose one that does."
        )
    args.minibatch_size = args.batch_size // args.num_minibatches
    args.num_iterations = args.total_timesteps // args.batch_size
    if args.num_iterations < 1:
        raise BadConfig(
            f"--total-timesteps {args.total_timesteps} is less than one batch: give at least {args.batch_size} "
            "(--num-envs times --num-steps)."
        )


def train(args: Args, run: Run) -> None:
    check(args)
    envs = run.make_envs(args.num_envs)
    obs_size = require_vectors(envs, "pqn", instead="pqn_atari_envpool")
    num_actions = require_discrete_actions(envs, "pqn", instead="ppo_continuous_action")
    rng = run.rng

    q_network = Net(obs_size, (120, 84), heads=(num_actions,), activation="relu", layer_norm=True)
    q_network.init_orthogonal(rng, head_gains=(np.sqrt(2.0),))
    optimizer = RAdam(q_network.flat, args.learning_rate)
    rollout = Rollout(args.num_steps, args.num_envs, obs_size)
    snapshot: Snapshot | None = None
    run.keep(agent=q_network, optimizer=optimizer, rollout=rollout)
    run.start()
    if envs.restarted:
        rollout.t = 0
    elif rollout.t < 0:  # a checkpoint from before they told: it followed from the step
        rollout.t = run.step // args.num_envs % args.num_steps

    # A model file may have left off at any step, so how far the rollout has come does not follow from the step.
    while (iteration := (run.step - rollout.t * args.num_envs) // args.batch_size) < args.num_iterations:
        t = rollout.t
        epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, run.step)
        if t == 0:
            rollout.explore[:] = rng.random(rollout.explore.shape, np.float32)
            rollout.random_actions[:] = rng.integers(num_actions, size=rollout.random_actions.shape)
        if snapshot is None:
            snapshot = Snapshot(q_network, args.num_envs)
        obs = envs.obs
        q = snapshot.predict(obs)
        rollout.values[t] = q.max(axis=1)
        actions = np.where(rollout.explore[t] < epsilon, rollout.random_actions[t], q.argmax(axis=1))
        step = envs.step(actions)
        rollout.obs[t], rollout.actions[t], rollout.rewards[t] = obs, actions, step.rewards
        rollout.ends[t] = rollout.after_end[t] = 0.0
        if step.episodes:
            rollout.ends[t] = step.dones
            rollout.after_end[t] = snapshot.predict(step.next_obs).max(axis=1) * step.truncated
        rollout.t += 1

        if rollout.t == args.num_steps:
            lr = args.learning_rate * (1.0 - iteration / args.num_iterations if args.anneal_lr else 1.0)
            last_value = snapshot.predict(step.obs).max(axis=1)
            returns = q_lambda_returns(rollout, last_value, args.gamma, args.q_lambda)
            loss, mean_q = update(q_network, optimizer, rollout, returns, lr, args, rng)
            snapshot = None
            rollout.t = 0
            run.guard(td_loss=loss)
            run.scalars({"losses/td_loss": loss, "losses/q_values": mean_q, "charts/SPS": run.sps})
        run.tick(step)

    run.finish(model=q_network.state_dict)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""PQN (Gallici et al. 2024) on Atari games that envpool steps: Q-learning without replay and without a target network.

Several games are stepped together with an epsilon-greedy policy; LayerNorm keeps the bootstrap stable. After `num_steps`
steps the Q(lambda) returns of the whole rollout are the targets of a few epochs of minibatch regression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from cleanrl_worker.agents.atari import NatureValues
from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.algorithms.pqn import q_lambda_returns
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envpool import PoolEnvs, make_atari_pool
from cleanrl_worker.training.ppo_torch import FlatRAdam, device_for, seed_torch
from cleanrl_worker.training.rollout import RecentReturns, Rollout, check_rollouts
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)


@dataclass
class Args(SaveArgs):
    exp_name: str = "pqn_atari_envpool"
    """the name of this experiment"""
    env_id: str = "Breakout-v5"
    """the id of the environment, as envpool calls it"""
    total_timesteps: int = 10_000_000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 8
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
    end_e: float = 0.01
    """the exploration rate epsilon at the end of its schedule"""
    exploration_fraction: float = 0.1
    """the fraction of `total_timesteps` over which epsilon goes from `start_e` to `end_e`"""
    max_grad_norm: float = 10.0
    """the largest norm a gradient may have before it is scaled down"""
    q_lambda: float = 0.65
    """the lambda of Q(lambda): 0 is one-step, 1 is the whole rollout"""

    batch_size: int = 0
    """the transitions of one rollout (computed)"""
    minibatch_size: int = 0
    """the transitions of one gradient step (computed)"""
    num_iterations: int = 0
    """the number of rollouts (computed)"""


def make_rollout(args: Args, envs: PoolEnvs) -> Rollout:
    return Rollout(
        args.num_steps,
        args.num_envs,
        obs=(envs.obs_shape, envs.obs_dtype),
        starts=((), np.bool_),
        actions=((), np.int64),
        rewards=((), np.float32),
        values=((), np.float32),  # the largest value where the action was chosen
        ends=((), np.float32),  # 1 where the action ended its episode
        after_end=((), np.float32),  # the value of the last image of an episode that was cut off
    )


def explore(args: Args, run: Run, greedy: np.ndarray, actions: int) -> np.ndarray:
    """The greedy actions, some of them replaced by random ones."""
    epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, run.step)
    dice, anything = run.rng.random((2, args.num_envs))
    return np.where(dice < epsilon, (anything * actions).astype(np.int64), greedy)


def train(args: Args, run: Run) -> None:
    check_rollouts(args)
    envs = run.use_envs(
        make_atari_pool(args.env_id, args.num_envs, seed=args.seed, render=bool(run.publisher.shown_slots))
    )
    num_actions = int(envs.single_action_space.n)
    seed_torch(args)
    device = device_for(args)
    q_network = NatureValues(num_actions).to(device)
    optimizer = FlatRAdam(q_network)
    rollout = make_rollout(args, envs)
    recent = RecentReturns()
    run.keep(agent=q_network, optimizer=optimizer, rollout=rollout, recent=recent)
    run.start()
    if envs.restarted:
        rollout.clear()

    def look(obs: Any) -> tuple[np.ndarray, np.ndarray]:
        """The largest value of each row, and its action."""
        with torch.no_grad():
            best = q_network(torch.as_tensor(obs, device=device)).max(dim=-1)
        return best.values.cpu().numpy(), best.indices.cpu().numpy()

    while (iteration := (run.step - rollout.t * args.num_envs) // args.batch_size) < args.num_iterations:
        while not rollout.full:
            t = rollout.t
            rollout.values[t], greedy = look(envs.obs)
            rollout.obs[t] = envs.obs
            rollout.actions[t] = explore(args, run, greedy, num_actions)
            step = envs.step(rollout.actions[t])
            rollout.rewards[t] = step.rewards
            rollout.ends[t] = step.dones
            rollout.after_end[t] = look(step.next_obs)[0] * step.truncated if step.truncated.any() else 0.0
            rollout.t += 1
            recent.log(run, step)
            run.tick(step)

        lr = args.learning_rate * (1 - iteration / args.num_iterations if args.anneal_lr else 1.0)
        returns = q_lambda_returns(rollout, look(envs.obs)[0], args.gamma, args.q_lambda).reshape(-1)
        obs, actions = rollout.flat("obs"), rollout.flat("actions")
        for _ in range(args.update_epochs):
            order = run.rng.permutation(args.batch_size)
            for rows in np.split(order, args.num_minibatches):
                values = q_network(torch.as_tensor(obs[rows], device=device))
                taken = values.gather(1, torch.as_tensor(actions[rows], device=device)[:, None]).squeeze(1)
                loss = functional.mse_loss(taken, torch.as_tensor(returns[rows], device=device))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step(lr, args.max_grad_norm)
        td_loss, mean_q = torch.stack((loss.detach(), taken.detach().mean())).tolist()
        rollout.clear()
        run.guard(td_loss=td_loss)
        run.scalars({"losses/td_loss": td_loss, "losses/q_values": mean_q, "charts/SPS": run.sps})
    run.finish(model=q_network.state_dict)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

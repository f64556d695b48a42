"""DQN (Mnih et al. 2015) on Atari games, from four stacked images of 84x84.

One-step Q-learning with replay and a target network: the loss is the mean of (Q(s, a) - y)^2 with y = r + gamma * max_a'
Q_target(s', a') for transitions that do not terminate, and y = r for those that do. The replay memory holds each image once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from cleanrl_worker.agents.atari_values import QNetwork, follow
from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envs import require_discrete_actions
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, seed_torch
from cleanrl_worker.training.replay_frames import make_frame_replay
from cleanrl_worker.training.replay_torch import TensorBatch, on_device
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(SaveArgs):
    """DQN on Atari games."""

    exp_name: str = "dqn_atari"
    """the name of this experiment"""
    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10000000
    """total timesteps of the experiment"""
    learning_rate: float = 1e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of environments; must be 1"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 1.0
    """how far the target network moves towards the online one at each update of it; 1 is a copy"""
    target_network_frequency: int = 1000
    """the timesteps between updates of the target network"""
    batch_size: int = 32
    """the transitions sampled from the replay memory for one gradient step"""
    start_e: float = 1
    """the exploration rate epsilon at the start"""
    end_e: float = 0.01
    """the exploration rate epsilon at the end of its schedule"""
    exploration_fraction: float = 0.1
    """the fraction of `total_timesteps` over which epsilon goes from `start_e` to `end_e`"""
    learning_starts: int = 80000
    """the timestep after which learning starts"""
    train_frequency: int = 4
    """the timesteps between gradient steps"""


def td_loss(
    q_network: QNetwork, target_network: QNetwork, batch: TensorBatch, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean squared temporal difference, and the mean of Q(s, a)."""
    with torch.no_grad():
        next_value = target_network(batch.next_obs).amax(dim=1)
        target = batch.reward + gamma * (1.0 - batch.terminated) * next_value
    value = q_network(batch.obs).gather(1, batch.action[:, None])[:, 0]
    return functional.mse_loss(value, target), value.detach().mean()


def train(args: Args, run: Run) -> None:
    if args.num_envs != 1:
        raise BadConfig(f"dqn_atari learns from one environment: set --num-envs 1, not {args.num_envs}.")
    envs = run.make_envs(args.num_envs, frames=4)
    num_actions = require_discrete_actions(envs, "dqn_atari", instead="sac_continuous_action")
    rng, replay = run.rng, make_frame_replay(run, envs)
    seed_torch(args)
    device = device_for(args)

    q_network, target_network = QNetwork(num_actions).to(device), QNetwork(num_actions).to(device)
    optimizer = FlatAdam(q_network, eps=1e-8)
    run.keep(agent=q_network, target_network=target_network, optimizer=optimizer)
    run.start()
    if not run.restored:
        follow(target_network, q_network, tau=1.0)

    while run.step < args.total_timesteps:
        epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, run.step)
        obs = envs.obs
        if rng.random() < epsilon:
            actions = np.array([rng.integers(num_actions)])
        else:
            with torch.no_grad():
                actions = q_network(torch.as_tensor(obs, device=device)).argmax(dim=1).cpu().numpy()
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0], step.truncated[0])

        if run.step > args.learning_starts:
            if run.step % args.train_frequency == 0:
                loss, mean_q = td_loss(
                    q_network, target_network, on_device(replay.sample(args.batch_size), device), args.gamma
                )
                optimizer.descend(loss, args.learning_rate)
                run.guard(td_loss=loss.item())
                if run.step % 100 == 0:
                    run.scalars(
                        {"losses/td_loss": loss.item(), "losses/q_values": mean_q.item(), "charts/SPS": run.sps}
                    )
            if run.step % args.target_network_frequency == 0:
                follow(target_network, q_network, args.tau)
        run.tick(step)

    run.finish(model=q_network.state_dict)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

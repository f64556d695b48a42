"""C51 (Bellemare, Dabney & Munos 2017) on Atari games, from four stacked images of 84x84.

The network gives, for each action, a probability for each of `n_atoms` fixed returns between `v_min` and `v_max`. The
target is the distribution of r + gamma * Z(s', a*), projected back onto the atoms; the loss is the cross entropy to it. The
replay memory holds each image once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from cleanrl_worker.agents.atari_values import CategoricalQNetwork, follow
from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envs import require_discrete_actions
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, seed_torch
from cleanrl_worker.training.replay_frames import make_frame_replay
from cleanrl_worker.training.replay_torch import TensorBatch, on_device
from cleanrl_worker.training.run import Run, launch

SMALLEST = 1e-5
"""Probabilities are kept this far from 0 and 1 before their logarithm is taken; outside they pass no gradient."""


@dataclass
class Args(SaveArgs):
    """C51 on Atari games."""

    exp_name: str = "c51_atari"
    """the name of this experiment"""
    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10000000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of environments; must be 1"""
    n_atoms: int = 51
    """the number of atoms of the return's distribution"""
    v_min: float = -10
    """the return of the lowest atom"""
    v_max: float = 10
    """the return of the highest atom"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    target_network_frequency: int = 10000
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


def project(pmfs: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """The distribution of reward + discount * Z, Z distributed as `pmfs`, on the same atoms.

    A return between two atoms is shared between them in proportion to its closeness; one beyond the ends goes to the end.
    """
    last = len(atoms) - 1
    returns = reward[:, None] + discount[:, None] * atoms
    place = ((returns - atoms[0]) / (atoms[1] - atoms[0])).clamp(0, last)
    lower = place.floor()
    above = (place - lower) * pmfs
    index = lower.long()
    shared = torch.zeros_like(pmfs).scatter_add_(1, index, pmfs - above)
    return shared.scatter_add_(1, (index + 1).clamp(max=last), above)


def c51_loss(
    q_network: CategoricalQNetwork, target_network: CategoricalQNetwork, batch: TensorBatch, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean cross entropy to the projected target, and the mean of Q(s, a)."""
    row, atoms = torch.arange(len(batch.action), device=batch.action.device), q_network.atoms
    with torch.no_grad():
        next_pmfs = target_network(batch.next_obs).softmax(dim=-1)
        best = (next_pmfs @ atoms).argmax(dim=1)
        wanted = project(next_pmfs[row, best], batch.reward, gamma * (1.0 - batch.terminated), atoms)
    pmfs = q_network(batch.obs)[row, batch.action].softmax(dim=-1)
    loss = -(wanted * pmfs.clamp(SMALLEST, 1.0 - SMALLEST).log()).sum(dim=1).mean()
    return loss, (pmfs.detach() @ atoms).mean()


def check_atoms(algo: str, args: Any) -> None:
    if args.n_atoms < 2 or args.v_min >= args.v_max:
        raise BadConfig(
            f"{algo} needs at least two atoms between its bounds: set --n-atoms to 2 or more and --v-min below --v-max."
        )


def train(args: Args, run: Run) -> None:
    if args.num_envs != 1:
        raise BadConfig(f"c51_atari learns from one environment: set --num-envs 1, not {args.num_envs}.")
    check_atoms("c51_atari", args)
    envs = run.make_envs(args.num_envs, frames=4)
    num_actions = require_discrete_actions(envs, "c51_atari", instead="sac_continuous_action")
    rng, replay = run.rng, make_frame_replay(run, envs)
    seed_torch(args)
    device = device_for(args)

    q_network, target_network = (
        CategoricalQNetwork(num_actions, args.n_atoms, args.v_min, args.v_max).to(device) for _ in range(2)
    )
    optimizer = FlatAdam(q_network, eps=0.01 / args.batch_size)
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
                actions = q_network.values(torch.as_tensor(obs, device=device)).argmax(dim=1).cpu().numpy()
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0], step.truncated[0])

        if run.step > args.learning_starts:
            if run.step % args.train_frequency == 0:
                loss, mean_q = c51_loss(
                    q_network, target_network, on_device(replay.sample(args.batch_size), device), args.gamma
                )
                optimizer.descend(loss, args.learning_rate)
                run.guard(loss=loss.item())
                if run.step % 100 == 0:
                    run.scalars({"losses/loss": loss.item(), "losses/q_values": mean_q.item(), "charts/SPS": run.sps})
            if run.step % args.target_network_frequency == 0:
                follow(target_network, q_network, tau=1.0)
        run.tick(step)

    run.finish(model=lambda: {"model_weights": q_network.state_dict(), "args": asdict(args)})


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

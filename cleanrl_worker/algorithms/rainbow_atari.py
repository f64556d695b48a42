"""Rainbow (Hessel et al. 2018) on Atari games: six improvements of DQN in one agent.

Distributions of returns instead of their means (C51); the next action is chosen by the online network and valued by the target
network (double Q-learning); a value and advantages apart (dueling); learned noise in the layers instead of random actions;
returns over `n_step` steps; and transitions drawn in proportion to their loss, with weights that make up for it, more and more
so as training goes on.

`start_e`, `end_e` and `exploration_fraction` are accepted and mean nothing here: the noise explores.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from cleanrl_worker.agents.atari_values import RainbowNetwork, follow
from cleanrl_worker.algorithms.c51_atari import SMALLEST, check_atoms, project
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envs import require_discrete_actions
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, seed_torch
from cleanrl_worker.training.replay_frames import make_prioritised_replay
from cleanrl_worker.training.replay_torch import TensorBatch, on_device
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(SaveArgs):
    """Rainbow on Atari games."""

    exp_name: str = "rainbow_atari"
    """the name of this experiment"""
    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10000000
    """total timesteps of the experiment"""
    learning_rate: float = 0.0000625
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of environments; must be 1"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 1.0
    """how far the target network moves towards the online one at each update of it; 1 is a copy"""
    target_network_frequency: int = 8000
    """the timesteps between updates of the target network"""
    batch_size: int = 32
    """the transitions drawn from the replay memory for one gradient step"""
    start_e: float = 1
    """not used: noise in the network explores"""
    end_e: float = 0.01
    """not used: noise in the network explores"""
    exploration_fraction: float = 0.1
    """not used: noise in the network explores"""
    learning_starts: int = 80000
    """the timestep after which learning starts"""
    train_frequency: int = 4
    """the timesteps between gradient steps"""
    n_step: int = 3
    """the steps over which rewards are summed before the value of what follows is added"""
    prioritized_replay_alpha: float = 0.5
    """how much the loss decides over what is drawn: 0 not at all, 1 in proportion"""
    prioritized_replay_beta: float = 0.4
    """how much of that the weights make up for at the start; it rises to 1 over the run"""
    prioritized_replay_eps: float = 1e-6
    """added to each loss, so that none is never drawn again"""
    n_atoms: int = 51
    """the number of atoms of the return's distribution"""
    v_min: float = -10
    """the return of the lowest atom"""
    v_max: float = 10
    """the return of the highest atom"""


def losses(
    q_network: RainbowNetwork, target_network: RainbowNetwork, batch: TensorBatch, discount: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The cross entropy of each transition to its projected target, and the mean of Q(s, a)."""
    row, atoms = torch.arange(len(batch.action), device=batch.action.device), q_network.atoms
    with torch.no_grad():
        best = q_network.values(batch.next_obs).argmax(dim=1)
        next_pmfs = target_network(batch.next_obs)[row, best].softmax(dim=-1)
        wanted = project(next_pmfs, batch.reward, discount, atoms)
    pmfs = q_network(batch.obs)[row, batch.action].softmax(dim=-1)
    each = -(wanted * pmfs.clamp(SMALLEST, 1.0 - SMALLEST).log()).sum(dim=1)
    return each, (pmfs.detach() @ atoms).mean()


def train(args: Args, run: Run) -> None:
    if args.num_envs != 1:
        raise BadConfig(f"rainbow_atari learns from one environment: set --num-envs 1, not {args.num_envs}.")
    check_atoms("rainbow_atari", args)
    envs = run.make_envs(args.num_envs, frames=4)
    num_actions = require_discrete_actions(envs, "rainbow_atari", instead="sac_continuous_action")
    replay = make_prioritised_replay(run, envs)
    seed_torch(args)
    device = device_for(args)

    q_network, target_network = (
        RainbowNetwork(num_actions, args.n_atoms, args.v_min, args.v_max).to(device) for _ in range(2)
    )
    optimizer = FlatAdam(q_network, eps=1.5e-4)
    run.keep(agent=q_network, target_network=target_network, optimizer=optimizer)
    run.start()
    if not run.restored:
        follow(target_network, q_network, tau=1.0)

    while run.step < args.total_timesteps:
        obs = envs.obs
        q_network.resample()
        with torch.no_grad():
            actions = q_network.values(torch.as_tensor(obs, device=device)).argmax(dim=1).cpu().numpy()
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0], step.truncated[0])

        if run.step > args.learning_starts:
            if run.step % args.train_frequency == 0 and len(replay):  # the first transition takes `n_step` steps
                start = args.prioritized_replay_beta
                beta = min(1.0, start + (1.0 - start) * run.step / args.total_timesteps)
                drawn = replay.draw(args.batch_size, beta)
                discount, weight = (torch.from_numpy(x).to(device) for x in (drawn.discount, drawn.weight))
                q_network.resample()
                target_network.resample()
                each, mean_q = losses(q_network, target_network, on_device(drawn, device), discount)
                loss = (weight * each).mean()
                optimizer.descend(loss, args.learning_rate)
                run.guard(td_loss=loss.item())
                replay.update_priorities(drawn.place, each.detach().cpu().numpy())
                if run.step % 100 == 0:
                    run.scalars(
                        {
                            "losses/td_loss": loss.item(),
                            "losses/q_values": mean_q.item(),
                            "charts/beta": beta,
                            "charts/SPS": run.sps,
                        }
                    )
            if run.step % args.target_network_frequency == 0:
                follow(target_network, q_network, args.tau)
        run.tick(step)

    run.finish(model=lambda: {"model_weights": q_network.state_dict(), "args": asdict(args)})


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""PQN (Gallici et al. 2024) with a memory on Atari games: one image at a time, and an LSTM under the values.

As `pqn_atari_envpool`, but minibatches are whole sequences of some environments, run again from the memory that they began
with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from cleanrl_worker.agents.atari import RecurrentNatureValues
from cleanrl_worker.algorithms import pqn_atari_envpool
from cleanrl_worker.algorithms.ppo_gru import Memory
from cleanrl_worker.algorithms.pqn import q_lambda_returns
from cleanrl_worker.algorithms.pqn_atari_envpool import explore, make_rollout
from cleanrl_worker.training.envpool import make_atari_pool
from cleanrl_worker.training.ppo_torch import FlatRAdam, device_for, seed_torch
from cleanrl_worker.training.rollout import RecentReturns, check_rollouts
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)


@dataclass
class Args(pqn_atari_envpool.Args):
    exp_name: str = "pqn_atari_envpool_lstm"
    """the name of this experiment"""
    max_grad_norm: float = 0.5
    """the largest norm a gradient may have before it is scaled down"""


def train(args: Args, run: Run) -> None:
    check_rollouts(args, whole_sequences=True)
    envs = run.use_envs(
        make_atari_pool(args.env_id, args.num_envs, seed=args.seed, frames=1, render=bool(run.publisher.shown_slots))
    )
    num_actions = int(envs.single_action_space.n)
    seed_torch(args)
    device = device_for(args)
    q_network = RecurrentNatureValues(num_actions).to(device)
    optimizer = FlatRAdam(q_network)
    memory = Memory(q_network, args.num_envs)
    rollout = make_rollout(args, envs)
    recent = RecentReturns()
    run.keep(agent=q_network, optimizer=optimizer, memory=memory, rollout=rollout, recent=recent)
    run.start()
    if envs.restarted:
        rollout.clear()
        memory.at_start = memory.now.clone()

    def look(obs: Any, before: torch.Tensor, starts: Any) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
        """The largest value of each row, its action, and the memory after."""
        with torch.no_grad():
            values, after = q_network(tensor(obs)[None], before, tensor(starts)[None])
        best = values[0].max(dim=-1)
        return best.values.cpu().numpy(), best.indices.cpu().numpy(), after

    def tensor(array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=device)

    while (iteration := (run.step - rollout.t * args.num_envs) // args.batch_size) < args.num_iterations:
        while not rollout.full:
            t = rollout.t
            rollout.values[t], greedy, after = look(envs.obs, memory.now, envs.starts)
            rollout.obs[t] = envs.obs
            rollout.starts[t] = envs.starts
            rollout.actions[t] = explore(args, run, greedy, num_actions)
            step = envs.step(rollout.actions[t])
            rollout.rewards[t] = step.rewards
            rollout.ends[t] = step.dones
            rollout.after_end[t] = 0.0
            if step.truncated.any():
                going_on = np.zeros(args.num_envs, bool)
                rollout.after_end[t] = look(step.next_obs, after, going_on)[0] * step.truncated
            memory.now = after
            rollout.t += 1
            recent.log(run, step)
            run.tick(step)

        lr = args.learning_rate * (1 - iteration / args.num_iterations if args.anneal_lr else 1.0)
        last_values = look(envs.obs, memory.now, envs.starts)[0]
        returns = q_lambda_returns(rollout, last_values, args.gamma, args.q_lambda)
        for _ in range(args.update_epochs):
            order = run.rng.permutation(args.num_envs)
            for rows in np.split(order, args.num_minibatches):
                values, _ = q_network(
                    tensor(rollout.obs[:, rows]), memory.at_start[:, rows], tensor(rollout.starts[:, rows])
                )
                taken = values.gather(2, tensor(rollout.actions[:, rows])[..., None]).squeeze(2)
                loss = functional.mse_loss(taken, tensor(returns[:, rows]))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step(lr, args.max_grad_norm)
        td_loss, mean_q = torch.stack((loss.detach(), taken.detach().mean())).tolist()
        memory.at_start = memory.now.clone()
        rollout.clear()
        run.guard(td_loss=td_loss)
        run.scalars({"losses/td_loss": td_loss, "losses/q_values": mean_q, "charts/SPS": run.sps})
    run.finish(model=q_network.state_dict)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""PPO on Atari games in several processes, one per GPU, or per core: each has its own games, and gradients are averaged.

    torchrun --standalone --nnodes=1 --nproc_per_node=2 -m cleanrl_worker.algorithms.ppo_atari_multigpu

Without torchrun, `--device-ids 0 1` has the first process start the others. A step with N processes is the step that one
process would take with all of their minibatches: the mean of the gradients is the gradient of the mean, and advantages are
normalised over all of them.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.atari import NatureAgent
from cleanrl_worker.algorithms import ppo_atari
from cleanrl_worker.training.distributed import Group, Peer, rank_state, restore_rank
from cleanrl_worker.training.envs import require_discrete_actions
from cleanrl_worker.training.errors import BadConfig, RunEnded
from cleanrl_worker.training.ppo_torch import FlatAdam, LossParts, ppo_loss, sample, seed_torch
from cleanrl_worker.training.rollout import Rollout, advantages, check_rollouts, explained_variance
from cleanrl_worker.training.run import Run, launch

MODULE = "cleanrl_worker.algorithms.ppo_atari_multigpu"


@dataclass
class Args(ppo_atari.Args):
    exp_name: str = "ppo_atari_multigpu"
    """the name of this experiment"""
    local_num_envs: int = 8
    """the number of environments in each process"""
    device_ids: list[int] = field(default_factory=list)
    """the GPUs, one for each process; unset means one process per GPU that torchrun starts"""
    backend: Literal["gloo", "nccl", "mpi"] = "gloo"
    """what carries the gradients"""

    local_batch_size: int = 0
    """the size of one process's rollout (computed)"""
    local_minibatch_size: int = 0
    """the size of one process's minibatch (computed)"""
    num_envs: int = 0
    """the number of environments over all processes (computed)"""
    world_size: int = 0
    """the number of processes (computed)"""


def check(args: Args, world: int) -> None:
    """Fill in the computed flags and refuse what can't work."""
    if args.local_num_envs < 1:
        raise BadConfig(f"--local-num-envs must be at least 1, not {args.local_num_envs}.")
    if args.device_ids and len(args.device_ids) != world:
        raise BadConfig(f"--device-ids names {len(args.device_ids)} devices for {world} processes: name one for each.")
    args.world_size = world
    args.num_envs = args.local_num_envs * world
    args.local_batch_size = args.local_num_envs * args.num_steps
    if args.num_minibatches > 0 and args.local_batch_size % args.num_minibatches:
        raise BadConfig(
            f"--num-minibatches {args.num_minibatches} does not divide the {args.local_batch_size} steps of one process "
            f"({args.local_num_envs} environments times {args.num_steps} steps): choose a divisor."
        )
    check_rollouts(args)
    args.local_minibatch_size = args.local_batch_size // args.num_minibatches


def device_of(args: Args, group: Group) -> torch.device:
    count = torch.cuda.device_count() if args.cuda and torch.cuda.is_available() else 0
    if count == 0:
        return torch.device("cpu")
    if args.device_ids:
        return torch.device("cuda", args.device_ids[group.local_rank])
    return torch.device("cuda", group.local_rank if count >= group.world else 0)


def train(args: Args, run: Run, flags: list[str]) -> None:
    """Rank 0's part; `flags` are for the processes that it starts."""
    check(args, int(os.environ.get("WORLD_SIZE", len(args.device_ids) or 1)))  # before anybody waits for anybody
    group = Group(args.backend, (MODULE, flags, len(args.device_ids)))
    try:
        learn(args, run, group)
    finally:
        group.close()


def learn(args: Args, run: Run | Peer, group: Group) -> None:
    """Collect, learn, and between rollouts let rank 0 do what a run has to do."""
    envs = run.make_envs(args.local_num_envs, frames=4)
    seed_torch(args)
    device = device_of(args, group)
    agent = NatureAgent(require_discrete_actions(envs, "ppo_atari_multigpu", instead="ppo_continuous_action")).to(
        device
    )
    optimizer = FlatAdam(agent)
    rollout = Rollout(
        args.num_steps,
        args.local_num_envs,
        obs=(envs.obs_shape, envs.obs_dtype),
        actions=((), np.int64),
        logprobs=((), np.float32),
        values=((), np.float32),
        rewards=((), np.float32),
        ends=((), np.bool_),
        end_values=((), np.float32),
    )
    peers: dict[str, Any] = {}
    run.keep(agent=agent, optimizer=optimizer, peers=peers)
    run.start()
    torch.manual_seed(args.seed + group.rank)
    args.num_iterations = meet(run, group, envs, optimizer, peers)

    def look(obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            logits, values = agent(torch.as_tensor(obs, device=device))
        return logits, values

    while (iteration := run.step // args.batch_size) < args.num_iterations:
        for t in range(args.num_steps):
            logits, values = look(envs.obs)
            actions, logprobs = sample(logits)
            rollout.obs[t] = envs.obs
            rollout.actions[t] = actions.cpu().numpy()
            rollout.logprobs[t] = logprobs.cpu().numpy()
            rollout.values[t] = values.cpu().numpy()
            step = envs.step(rollout.actions[t])
            rollout.rewards[t] = step.rewards
            rollout.ends[t] = step.dones
            rollout.end_values[t] = 0.0
            if step.truncated.any():
                rollout.end_values[t] = look(step.next_obs)[1].cpu().numpy() * step.truncated
            run.count(step, processes=group.world)

        lr = args.learning_rate * (1 - iteration / args.num_iterations) if args.anneal_lr else args.learning_rate
        figures = update(args, run.rng, group, agent, optimizer, rollout, look(envs.obs)[1].cpu().numpy(), lr)
        run.guard(**{tag: value for tag, value in figures.items() if tag != "losses/explained_variance"})
        run.scalars({"charts/learning_rate": lr, "charts/SPS": run.sps, **figures})
        if not go_on(run, group, envs, peers):
            return
    run.finish(model=agent.state_dict)


def meet(run: Run | Peer, group: Group, envs: Any, optimizer: FlatAdam, peers: dict[str, Any]) -> int:
    """Begin alike: with rank 0's step, weights and optimizer, and with what each process had in the checkpoint.

    Returns the number of iterations by rank 0, which knows of a run that is extended.
    """
    mine_to_tell = (optimizer.steps, run.step, run.args.num_iterations, dict(peers))
    optimizer.steps, run.step, iterations, states = group.told(mine_to_tell)
    for tensor in (optimizer.flat, optimizer.exp_avg, optimizer.exp_avg_sq):
        group.share_(tensor)
    mine = states.get(str(group.rank))
    if mine is not None:
        restore_rank(mine, envs, run.rng)
    return int(iterations)


def go_on(run: Run | Peer, group: Group, envs: Any, peers: dict[str, Any]) -> bool:
    """Hand rank 0 what a checkpoint needs, let it obey requests, and hear whether to go on."""
    states = group.gathered(rank_state(envs, run.rng))
    peers.clear()
    peers.update({str(rank): state for rank, state in enumerate(states)})
    try:
        run.attend()
    except RunEnded:
        group.told(False)
        raise
    return bool(group.told(True))


def minibatch_loss(
    args: Args, group: Group, agent: nn.Module, obs: torch.Tensor, columns: list[torch.Tensor]
) -> LossParts:
    """PPO's loss over this process's share of a minibatch; the mean over all processes is that of the whole one."""
    actions, logprobs, old_values, advantage, target = columns
    logits, values = agent(obs)
    if args.norm_adv:
        advantage = group.standardised(advantage)
    plain = dataclasses.replace(args, norm_adv=False)
    return ppo_loss(logits, values, actions, logprobs, old_values, advantage, target, plain)


def update(
    args: Args,
    rng: np.random.Generator,
    group: Group,
    agent: nn.Module,
    optimizer: FlatAdam,
    rollout: Rollout,
    last_values: np.ndarray,
    lr: float,
) -> dict[str, float]:
    """Learn from the full rollouts of all processes. Returns the losses of this one by tag."""
    gained = advantages(
        rollout.rewards, rollout.values, last_values, rollout.ends, rollout.end_values, args.gamma, args.gae_lambda
    )
    returns = gained + rollout.values
    device = optimizer.flat.device
    columns = [
        torch.as_tensor(array.reshape(-1), device=device)
        for array in (rollout.actions, rollout.logprobs, rollout.values, gained, returns)
    ]
    obs = rollout.flat("obs")
    clipfracs: list[float] = []
    for _ in range(args.update_epochs):
        order = rng.permutation(args.local_batch_size)
        for rows in np.split(order, args.num_minibatches):
            chosen = torch.as_tensor(rows, device=device)
            images = torch.as_tensor(obs[rows], device=device)
            parts = minibatch_loss(args, group, agent, images, [column[chosen] for column in columns])
            optimizer.zero_grad()
            torch.autograd.backward(parts.loss)
            group.mean_(optimizer.grad)
            optimizer.step(lr, args.max_grad_norm)
            figures = parts.by_tag()
            clipfracs.append(figures["losses/clipfrac"])
        moved = torch.tensor(figures["losses/approx_kl"])
        if args.target_kl is not None:
            group.mean_(moved)  # all must stop, or none
            if moved > args.target_kl:
                break
    figures["losses/clipfrac"] = float(np.mean(clipfracs))
    figures["losses/explained_variance"] = explained_variance(rollout.values, returns)
    return figures


def follow(flags: list[str]) -> int:
    """The part of the other ranks."""
    import tyro

    args = tyro.cli(Args, args=flags)
    try:
        check(args, int(os.environ["WORLD_SIZE"]))
    except BadConfig as error:
        return error.exit_code  # rank 0 refuses the same and says why
    group = Group(args.backend)
    try:
        learn(args, Peer(args, group.rank), group)
    except RunEnded as ended:
        return ended.exit_code
    except RuntimeError as error:
        print(f"{args.exp_name}: process {group.rank} ends, it lost the others: {error}", file=sys.stderr)
        return 1
    finally:
        group.close()
    return 0


def main(argv: list[str] | None = None) -> int:
    flags = sys.argv[1:] if argv is None else argv
    if os.environ.get("RANK", "0") != "0":
        return follow(flags)
    return launch(Args, lambda args, run: train(args, run, flags), flags)


if __name__ == "__main__":
    raise SystemExit(main())

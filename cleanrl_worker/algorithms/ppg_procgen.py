"""Phasic policy gradient (Cobbe et al. 2021) on Procgen's generated levels.

A phase has two parts. In the first, PPO trains the policy, and the critic learns without touching the features it shares with
it. In the second, the features are distilled from all returns of the phase through an auxiliary critic, while the policy is
held to what it was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from cleanrl_worker.agents.atari import PhasicAgent
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envpool import PoolEnvs, make_procgen
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, ppo_loss, sample, seed_torch
from cleanrl_worker.training.replay import memory_limit
from cleanrl_worker.training.replay_ring import Fields, Ring, ring_bytes
from cleanrl_worker.training.rollout import Passes, Rollout, advantages, check_rollouts, explained_variance
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)


@dataclass
class Args(SaveArgs):
    exp_name: str = "ppg_procgen"
    """the name of this experiment"""

    env_id: str = "starpilot"
    """the game"""
    total_timesteps: int = 25_000_000
    """total timesteps of the experiment"""
    learning_rate: float = 5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 64
    """the number of parallel environments"""
    num_steps: int = 256
    """the number of steps in each environment per rollout"""
    anneal_lr: bool = False
    """whether the learning rate falls linearly to 0 over the run"""
    gamma: float = 0.999
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalised advantage estimation"""
    num_minibatches: int = 8
    """the number of minibatches per epoch"""
    adv_norm_fullbatch: bool = True
    """whether advantages are normalised over the whole rollout"""
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
    num_levels: int = 0
    """the number of different levels; 0 means as many as there are"""

    n_iteration: int = 32
    """the rollouts of one phase"""
    e_policy: int = 1
    """the passes over each rollout in the policy's part of a phase"""
    v_value: int = 1
    """the passes for the critic in the policy's part; it learns together with the policy, so only 1 is possible"""
    e_auxiliary: int = 6
    """the passes over the whole phase in its auxiliary part"""
    beta_clone: float = 1.0
    """the weight by which the policy is held to what it was before the auxiliary part"""
    num_aux_rollouts: int = 4
    """the number of environments' rollouts in one auxiliary minibatch"""
    n_aux_grad_accum: int = 1
    """the number of auxiliary minibatches whose gradients make one step"""

    batch_size: int = 0
    """the size of a rollout (computed)"""
    minibatch_size: int = 0
    """the size of a minibatch (computed)"""
    num_iterations: int = 0
    """the number of rollouts (computed)"""
    num_phases: int = 0
    """the number of phases (computed)"""
    aux_batch_rollouts: int = 0
    """the number of environments' rollouts in a phase (computed)"""

    norm_adv: ClassVar[bool] = False
    """PPO's loss takes advantages as they are: `adv_norm_fullbatch` decides."""


def check(args: Args) -> None:
    """Fill in the computed flags and refuse what can't work."""
    for name in ("n_iteration", "e_policy", "e_auxiliary", "num_aux_rollouts", "n_aux_grad_accum"):
        if getattr(args, name) < 1:
            raise BadConfig(f"--{name.replace('_', '-')} must be at least 1, not {getattr(args, name)}.")
    if args.v_value != 1:
        raise BadConfig(f"--v-value must be 1, not {args.v_value}: use --e-policy for more passes over each rollout.")
    check_rollouts(args, batches=args.n_iteration, unit="phase")
    if args.adv_norm_fullbatch and args.batch_size < 2:
        raise BadConfig("A rollout of one step can't be normalised: use more --num-steps, or --no-adv-norm-fullbatch.")
    args.num_phases = args.num_iterations // args.n_iteration
    args.num_iterations = args.num_phases * args.n_iteration
    args.aux_batch_rollouts = args.num_envs * args.n_iteration
    if args.aux_batch_rollouts % args.num_aux_rollouts:
        raise BadConfig(
            f"--num-aux-rollouts {args.num_aux_rollouts} does not divide the {args.aux_batch_rollouts} rollouts of a phase "
            f"({args.num_envs} environments times {args.n_iteration} iterations): choose a divisor."
        )


def phase_memory(args: Args, envs: PoolEnvs) -> Ring:
    """Room for all rollouts of a phase, each environment's in one row. Refused when it can't fit into the memory."""
    fields: Fields = {
        "obs": ((args.num_steps, *envs.obs_shape), envs.obs_dtype),
        "returns": ((args.num_steps,), np.float32),
    }
    needed, limit = ring_bytes(args.aux_batch_rollouts, fields), memory_limit()
    if limit is not None and needed > 0.8 * limit:
        raise BadConfig(
            f"The images of one phase need {needed / 2**30:.2f} GiB, and this process may use {limit / 2**30:.2f} GiB: lower "
            "--n-iteration, --num-envs or --num-steps, or give the run more memory."
        )
    return Ring(args.aux_batch_rollouts, fields)


def train(args: Args, run: Run) -> None:
    check(args)
    envs = run.use_envs(
        make_procgen(
            args.env_id,
            args.num_envs,
            seed=args.seed,
            render=bool(run.publisher.shown_slots),
            num_levels=args.num_levels,
            reward_normaliser_gamma=args.gamma,
        )
    )
    seed_torch(args)
    device = device_for(args)
    channels, height, width = envs.obs_shape
    agent = PhasicAgent(int(envs.single_action_space.n), (channels, height, width)).to(device)
    optimizer = FlatAdam(agent, eps=1e-8)
    phase = phase_memory(args, envs)
    rollout = Rollout(
        args.num_steps,
        args.num_envs,
        obs=(envs.obs_shape, envs.obs_dtype),
        actions=((), np.int64),
        logprobs=((), np.float32),
        values=((), np.float32),
        rewards=((), np.float32),
        ends=((), np.bool_),
        end_values=((), np.float32),
    )
    passes = Passes(args.batch_size, last_values=np.zeros(args.num_envs, np.float32))
    auxiliary = Passes(
        args.aux_batch_rollouts,
        logprobs=np.zeros((args.aux_batch_rollouts, args.num_steps, int(envs.single_action_space.n)), np.float32),
    )
    run.keep(agent=agent, optimizer=optimizer, rollout=rollout, passes=passes, phase=phase, auxiliary=auxiliary)
    run.start()
    if envs.restarted and not passes.begun:
        rollout.clear()

    def look(obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            logits, values = agent(torch.as_tensor(obs, device=device))
        return logits, values

    while (iteration := (run.step - rollout.t * args.num_envs) // args.batch_size) < args.num_iterations:
        while not rollout.full:
            t = rollout.t
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
            rollout.t += 1
            run.tick(step)

        lr = args.learning_rate * (1 - iteration / args.num_iterations) if args.anneal_lr else args.learning_rate
        if not passes.begun:
            passes.given["last_values"][:] = look(envs.obs)[1].cpu().numpy()
        if not auxiliary.begun:
            policy_phase(args, run, agent, optimizer, rollout, passes, phase, lr)
        figures = passes.figures
        if phase.added % phase.capacity == 0:
            auxiliary_phase(args, run, agent, optimizer, phase, auxiliary, lr)
            figures = figures | auxiliary.figures
        run.scalars({"charts/learning_rate": lr, "charts/SPS": run.sps, **figures})
        auxiliary.clear()
        passes.clear()
        rollout.clear()
    run.finish(model=agent.state_dict)


def policy_phase(
    args: Args,
    run: Run,
    agent: PhasicAgent,
    optimizer: FlatAdam,
    rollout: Rollout,
    passes: Passes,
    phase: Ring,
    lr: float,
) -> None:
    """PPO over one rollout, which then goes into the phase's memory. The losses are in `passes.figures` afterwards."""
    device = optimizer.flat.device
    last_values = passes.given["last_values"]
    gained = advantages(
        rollout.rewards, rollout.values, last_values, rollout.ends, rollout.end_values, args.gamma, args.gae_lambda
    )
    returns = gained + rollout.values
    advantage = (gained - gained.mean()) / (gained.std(ddof=1) + 1e-8) if args.adv_norm_fullbatch else gained
    columns = [
        torch.as_tensor(array.reshape(-1), device=device)
        for array in (rollout.actions, rollout.logprobs, rollout.values, advantage, returns)
    ]
    obs = rollout.flat("obs")
    for rows in passes.rows(run.rng, args.e_policy, args.num_minibatches):
        logits, values = agent(torch.as_tensor(obs[rows], device=device))
        chosen = torch.as_tensor(rows, device=device)
        actions, logprobs, old_values, gains, targets = (column[chosen] for column in columns)
        parts = ppo_loss(logits, values, actions, logprobs, old_values, gains, targets, args)
        optimizer.zero_grad()
        torch.autograd.backward(parts.loss)
        optimizer.step(lr, args.max_grad_norm)
        figures = parts.by_tag()
        run.guard(**figures)
        passes.clipfracs.append(figures["losses/clipfrac"])
        passes.figures = figures
        too_far = args.target_kl is not None and figures["losses/approx_kl"] > args.target_kl
        passes.stop_if(too_far, args.e_policy, args.num_minibatches)
        run.attend()
    passes.figures["losses/clipfrac"] = float(np.mean(passes.clipfracs))
    passes.figures["losses/explained_variance"] = explained_variance(rollout.values, returns)
    remember(phase, rollout, returns)


def remember(phase: Ring, rollout: Rollout, returns: np.ndarray) -> None:
    """Put each environment's rollout into a row of the phase's memory."""
    start = phase.added % phase.capacity
    stop = start + rollout.num_envs
    phase["obs"][start:stop] = rollout.obs.swapaxes(0, 1)
    phase["returns"][start:stop] = returns.T
    phase.added += rollout.num_envs


def auxiliary_phase(
    args: Args, run: Run, agent: PhasicAgent, optimizer: FlatAdam, phase: Ring, auxiliary: Passes, lr: float
) -> None:
    """Distil the phase's returns into the features, and hold the policy. The losses are in `auxiliary.figures` afterwards."""
    device = optimizer.flat.device
    before, groups = auxiliary.given["logprobs"], args.aux_batch_rollouts // args.num_aux_rollouts

    def images(rows: Any) -> torch.Tensor:
        return torch.as_tensor(phase["obs"][rows], device=device).flatten(0, 1)

    if not auxiliary.begun:
        run.note(f"Phase {phase.added // phase.capacity} of {args.num_phases}: the auxiliary part begins.")
        with torch.no_grad():
            for rows in np.split(np.arange(args.aux_batch_rollouts), groups):  # all at once would not fit onto a device
                before[rows] = agent(images(rows))[0].log_softmax(-1).unflatten(0, (-1, args.num_steps)).cpu().numpy()
        optimizer.zero_grad()
    for rows in auxiliary.rows(run.rng, args.e_auxiliary, groups):
        returns = torch.as_tensor(phase["returns"][rows], device=device).flatten()
        old = torch.as_tensor(before[rows], device=device).flatten(0, 1)
        logits, values, aux_values = agent.all_heads(images(rows))
        kl_loss = (old.exp() * (old - logits.log_softmax(-1))).sum(-1).mean()
        aux_value_loss = 0.5 * ((aux_values - returns) ** 2).mean()
        real_value_loss = 0.5 * ((values - returns) ** 2).mean()
        loss = aux_value_loss + args.beta_clone * kl_loss + real_value_loss
        torch.autograd.backward(loss / args.n_aux_grad_accum)
        losses = torch.stack([part.detach() for part in (kl_loss, aux_value_loss, real_value_loss)]).tolist()
        tags = ("losses/aux/kl_loss", "losses/aux/aux_value_loss", "losses/aux/real_value_loss")
        auxiliary.figures = dict(zip(tags, losses, strict=True))
        run.guard(**auxiliary.figures)
        if auxiliary.minibatch % args.n_aux_grad_accum == 0 or auxiliary.minibatch == groups:
            optimizer.step(lr, args.max_grad_norm)
            optimizer.zero_grad()
            run.attend()  # only here: gradients that wait for a step are in no checkpoint
        if auxiliary.minibatch == groups:
            run.note(f"Auxiliary pass {auxiliary.epoch + 1} of {args.e_auxiliary} is done.")


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

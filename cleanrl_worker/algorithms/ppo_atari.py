"""Proximal policy optimisation (Schulman et al. 2017) on Atari games, from four stacked images of 84x84."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.atari import NatureAgent
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envs import Step, require_discrete_actions
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, ppo_loss, sample, seed_torch
from cleanrl_worker.training.rollout import Passes, Rollout, advantages, check_rollouts, explained_variance
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(SaveArgs):
    exp_name: str = "ppo_atari"
    """the name of this experiment"""

    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10_000_000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 8
    """the number of parallel environments"""
    num_steps: int = 128
    """the number of steps in each environment per rollout"""
    anneal_lr: bool = True
    """whether the learning rate falls linearly to 0 over the run"""
    gamma: float = 0.99
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalised advantage estimation"""
    num_minibatches: int = 4
    """the number of minibatches per epoch"""
    update_epochs: int = 4
    """the number of passes over each rollout"""
    norm_adv: bool = True
    """whether advantages are normalised in each minibatch"""
    clip_coef: float = 0.1
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

    batch_size: int = 0
    """the size of a rollout (computed)"""
    minibatch_size: int = 0
    """the size of a minibatch (computed)"""
    num_iterations: int = 0
    """the number of rollouts (computed)"""


def train(args: Args, run: Run) -> None:
    check_rollouts(args)
    envs = run.make_envs(args.num_envs, frames=4)
    actions = require_discrete_actions(envs, "ppo_atari", instead="ppo_continuous_action")
    seed_torch(args)
    learn(args, run, envs, NatureAgent(actions))


def learn(args: Args, run: Run, envs: Any, agent: nn.Module, on_step: Callable[[Step], None] | None = None) -> None:
    """Collect rollouts of images and learn from them, until the run is over.

    `envs` are any that step as `envs.Envs` do, `agent` gives logits and values; `on_step` sees each step before it is counted.
    """
    device = device_for(args)
    agent.to(device)
    optimizer = FlatAdam(agent)
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
    run.keep(agent=agent, optimizer=optimizer, rollout=rollout, passes=passes)
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
            if step.truncated.any():  # time limits are not the end of the world: the final observation's value counts
                rollout.end_values[t] = look(step.next_obs)[1].cpu().numpy() * step.truncated
            rollout.t += 1
            if on_step is not None:
                on_step(step)
            run.tick(step)

        lr = args.learning_rate * (1 - iteration / args.num_iterations) if args.anneal_lr else args.learning_rate
        if not passes.begun:
            passes.given["last_values"][:] = look(envs.obs)[1].cpu().numpy()
        update(args, run, agent, optimizer, rollout, passes, lr)
        run.scalars({"charts/learning_rate": lr, "charts/SPS": run.sps, **passes.figures})
        passes.clear()
        rollout.clear()
    run.finish(model=agent.state_dict)


def update(
    args: Args, run: Run, agent: nn.Module, optimizer: FlatAdam, rollout: Rollout, passes: Passes, lr: float
) -> None:
    """Learn from a full rollout, or go on with it. The losses are in `passes.figures` afterwards."""
    last_values = passes.given["last_values"]
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
    for rows in passes.rows(run.rng, args.update_epochs, args.num_minibatches):
        logits, values = agent(torch.as_tensor(obs[rows], device=device))
        chosen = torch.as_tensor(rows, device=device)
        actions, logprobs, old_values, advantage, target = (column[chosen] for column in columns)
        parts = ppo_loss(logits, values, actions, logprobs, old_values, advantage, target, args)
        optimizer.zero_grad()
        torch.autograd.backward(parts.loss)
        optimizer.step(lr, args.max_grad_norm)
        figures = parts.by_tag()
        run.guard(**figures)
        passes.clipfracs.append(figures["losses/clipfrac"])
        passes.figures = figures
        too_far = args.target_kl is not None and figures["losses/approx_kl"] > args.target_kl
        passes.stop_if(too_far, args.update_epochs, args.num_minibatches)
        run.attend()
    passes.figures["losses/clipfrac"] = float(np.mean(passes.clipfracs))
    passes.figures["losses/explained_variance"] = explained_variance(rollout.values, returns)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""Proximal policy optimisation with a memory, for discrete actions in environments that do not show everything at once.

A gated recurrent unit (Cho et al. 2014) carries what was seen from step to step. A rollout is learned from in whole
sequences: a minibatch is a set of environments, each from the memory it had at the rollout's start, and the memory is emptied
where an episode begins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cleanrl_worker.agents.gru import MASKED_BY_DEFAULT, GRUAgent
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envs import is_minigrid, require_discrete_actions
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, ppo_loss, sample, seed_torch
from cleanrl_worker.training.rollout import Rollout, advantages, explained_variance
from cleanrl_worker.training.run import Run, launch

MINIGRID_EPISODE_STEPS = 200


@dataclass
class Args(SaveArgs):
    exp_name: str = "ppo_gru"
    """the name of this experiment"""

    env_id: str = "MiniGrid-MemoryS7-v0"
    """the id of the environment"""
    total_timesteps: int = 500_000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 4
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
    """the number of minibatches per epoch; must divide the number of environments"""
    update_epochs: int = 4
    """the number of passes over each rollout"""
    norm_adv: bool = True
    """whether advantages are normalised in each minibatch"""
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

    gru_hidden_size: int = 128
    """the size of the memory"""
    gru_num_layers: int = 1
    """the number of recurrent layers"""
    procedural_generation: bool = True
    """whether each episode is a new level; if not, every episode starts from the same seed"""
    max_episode_steps: int | None = None
    """the time limit of an episode; unset means 200 in MiniGrid and BabyAI, and the environment's own elsewhere"""
    view_size: int | None = None
    """how many cells the agent sees across, in MiniGrid and BabyAI; unset means MOSAIC_VIEW_SIZE, or the environment's own"""
    mask_invalid_actions: bool = False
    """whether actions 0, 6 and 7 are never chosen"""
    reward_scale: float = 1.0
    """rewards are multiplied by this for learning; logged returns are not"""

    batch_size: int = 0
    """the size of a rollout (computed)"""
    minibatch_size: int = 0
    """the size of a minibatch (computed)"""
    num_iterations: int = 0
    """the number of rollouts (computed)"""


class Memory:
    """The recurrent state of all environments: now, and when the rollout began. Kept in checkpoints."""

    def __init__(self, agent: Any, num_envs: int) -> None:
        self.now = agent.initial_memory(num_envs)
        self.at_start = self.now.clone()

    def state_dict(self) -> dict[str, Any]:
        return {"now": self.now, "at_start": self.at_start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["now"].shape != self.now.shape:
            raise ValueError(
                f"the saved memory has shape {tuple(state['now'].shape)}, this run's {tuple(self.now.shape)}"
            )
        self.now, self.at_start = (state[name].to(self.now.device) for name in ("now", "at_start"))


def check(args: Args) -> None:
    """Fill in the computed flags and refuse what can't work."""
    if min(args.num_envs, args.num_steps, args.update_epochs) < 1:
        raise BadConfig("--num-envs, --num-steps and --update-epochs must be at least 1.")
    if args.num_minibatches < 1 or args.num_envs % args.num_minibatches:
        raise BadConfig(
            f"--num-minibatches {args.num_minibatches} does not divide --num-envs {args.num_envs}: a minibatch is made of the "
            "whole sequences of some environments. Choose a divisor."
        )
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    if args.norm_adv and args.minibatch_size < 2:
        raise BadConfig("A minibatch of one step can't be normalised: use more --num-steps, or --no-norm-adv.")
    args.num_iterations = args.total_timesteps // args.batch_size
    if args.num_iterations < 1:
        raise BadConfig(
            f"--total-timesteps {args.total_timesteps} is less than one rollout of {args.batch_size} steps "
            f"({args.num_envs} environments times {args.num_steps} steps): nothing would be learned. "
            f"Use at least {args.batch_size}."
        )
    if is_minigrid(args.env_id):
        if args.max_episode_steps is None:
            args.max_episode_steps = MINIGRID_EPISODE_STEPS
        given = os.environ.get("MOSAIC_VIEW_SIZE", "")
        if args.view_size is None and given:
            if not given.isdigit():
                raise BadConfig(f"MOSAIC_VIEW_SIZE must be a number, not {given!r}.")
            args.view_size = int(given)
        if args.view_size is not None and (args.view_size < 3 or args.view_size % 2 == 0):
            raise BadConfig(f"--view-size must be odd and at least 3, not {args.view_size}.")


def train(args: Args, run: Run) -> None:
    check(args)
    envs = run.make_envs(
        args.num_envs,
        max_episode_steps=args.max_episode_steps,
        procedural_generation=args.procedural_generation,
        view_size=args.view_size,
        reward_scale=args.reward_scale,
    )
    actions_n = require_discrete_actions(envs, "ppo_gru", instead="ppo_continuous_action")
    seed_torch(args)
    masked = MASKED_BY_DEFAULT if args.mask_invalid_actions else ()
    learn(
        args,
        run,
        envs,
        GRUAgent(int(np.prod(envs.obs_shape)), actions_n, args.gru_hidden_size, args.gru_num_layers, masked),
    )


def learn(args: Any, run: Run, envs: Any, agent: Any) -> None:
    """Collect rollouts and learn from whole sequences of them, until the run is over. `agent` is one with a memory."""
    device = device_for(args)
    agent.to(device)
    optimizer = FlatAdam(agent)
    memory = Memory(agent, args.num_envs)
    rollout = Rollout(
        args.num_steps,
        args.num_envs,
        obs=(envs.obs_shape, envs.obs_dtype),
        starts=((), np.bool_),
        actions=((), np.int64),
        logprobs=((), np.float32),
        values=((), np.float32),
        rewards=((), np.float32),
        ends=((), np.bool_),
        end_values=((), np.float32),
    )
    run.keep(agent=agent, optimizer=optimizer, memory=memory, rollout=rollout)
    run.start()
    if envs.restarted:
        rollout.clear()
        memory.at_start = memory.now.clone()

    def look(obs: Any, before: torch.Tensor, starts: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits and values of one step, and the memory after it."""
        with torch.no_grad():
            logits, values, after = agent(tensor(obs)[None], before, tensor(starts)[None])
        return logits[0], values[0], after

    def tensor(array: Any) -> torch.Tensor:
        return torch.as_tensor(array, device=device)

    while (iteration := (run.step - rollout.t * args.num_envs) // args.batch_size) < args.num_iterations:
        while not rollout.full:
            t = rollout.t
            logits, values, after = look(envs.obs, memory.now, envs.starts)
            actions, logprobs = sample(logits)
            rollout.obs[t] = envs.obs
            rollout.starts[t] = envs.starts
            rollout.actions[t] = actions.cpu().numpy()
            rollout.logprobs[t] = logprobs.cpu().numpy()
            rollout.values[t] = values.cpu().numpy()
            step = envs.step(rollout.actions[t])
            rollout.rewards[t] = step.rewards
            rollout.ends[t] = step.dones
            rollout.end_values[t] = 0.0
            if step.truncated.any():
                # Time limits are not the end of the world: the final observation's value is bootstrapped.
                _, final_values, _ = look(step.next_obs, after, np.zeros(args.num_envs, bool))
                rollout.end_values[t] = final_values.cpu().numpy() * step.truncated
            memory.now = after
            rollout.t += 1
            run.tick(step)

        lr = args.learning_rate * (1 - iteration / args.num_iterations) if args.anneal_lr else args.learning_rate
        last_values = look(envs.obs, memory.now, envs.starts)[1].cpu().numpy()
        gained = advantages(
            rollout.rewards, rollout.values, last_values, rollout.ends, rollout.end_values, args.gamma, args.gae_lambda
        )
        returns = gained + rollout.values
        clipfracs: list[float] = []
        for _ in range(args.update_epochs):
            order = run.rng.permutation(args.num_envs)
            for rows in np.split(order, args.num_minibatches):
                new_logits, new_values, _ = agent(
                    tensor(rollout.obs[:, rows]), memory.at_start[:, rows], tensor(rollout.starts[:, rows])
                )
                actions, logprobs, values, gains, targets = (
                    tensor(array[:, rows]).flatten()
                    for array in (rollout.actions, rollout.logprobs, rollout.values, gained, returns)
                )
                parts = ppo_loss(
                    new_logits.flatten(0, 1), new_values.flatten(), actions, logprobs, values, gains, targets, args
                )
                optimizer.zero_grad()
                torch.autograd.backward(parts.loss)
                optimizer.step(lr, args.max_grad_norm)
                policy_loss, value_loss, entropy, old_approx_kl, approx_kl, clipfrac = parts.figures()
                clipfracs.append(clipfrac)
            if args.target_kl is not None and approx_kl > args.target_kl:
                break
        memory.at_start = memory.now.clone()
        rollout.clear()
        run.guard(policy_loss=policy_loss, value_loss=value_loss, approx_kl=approx_kl)
        run.scalars(
            {
                "charts/learning_rate": lr,
                "charts/SPS": run.sps,
                "losses/value_loss": value_loss,
                "losses/policy_loss": policy_loss,
                "losses/entropy": entropy,
                "losses/old_approx_kl": old_approx_kl,
                "losses/approx_kl": approx_kl,
                "losses/clipfrac": float(np.mean(clipfracs)),
                "losses/explained_variance": explained_variance(rollout.values, returns),
            }
        )
    run.finish(model=agent.state_dict)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""Soft actor-critic for discrete actions (Haarnoja et al. 2018; Christodoulou 2019) on Atari games.

With few actions the expectations over the policy are sums, not samples: a state is worth sum_a pi(a|s) (min(Q1, Q2)(s, a) -
alpha log pi(a|s)). The critics learn that value of the next state, the actor maximises it, and with `autotune` alpha moves
until the policy's entropy is a fixed fraction of that of uniform actions. The replay memory holds each image once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari_values import CategoricalActor, SoftQNetwork, follow
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.envs import require_discrete_actions
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, seed_torch
from cleanrl_worker.training.replay_frames import make_frame_replay
from cleanrl_worker.training.replay_torch import TensorBatch, on_device
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(SaveArgs):
    """Discrete soft actor-critic on Atari games."""

    exp_name: str = "sac_atari"
    """the name of this experiment"""
    env_id: str = "BeamRiderNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 5000000
    """total timesteps of the experiment"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 1.0
    """how far the target networks move towards the online ones at each update of them; 1 is a copy"""
    batch_size: int = 64
    """the transitions sampled from the replay memory for one gradient step"""
    learning_starts: int = 20000
    """the timestep after which learning starts; actions are random until then"""
    policy_lr: float = 3e-4
    """the learning rate of the actor's optimizer"""
    q_lr: float = 3e-4
    """the learning rate of the critics' optimizer, and of alpha's"""
    update_frequency: int = 4
    """the timesteps between gradient steps"""
    target_network_frequency: int = 8000
    """the timesteps between updates of the target networks"""
    alpha: float = 0.2
    """the weight of the entropy where it is not tuned"""
    autotune: bool = True
    """whether alpha is tuned towards the target entropy"""
    target_entropy_scale: float = 0.89
    """the target entropy, as a fraction of that of uniform actions"""


class Agent:
    """The actor and both critics as one thing to keep, and the tuple that a model file holds."""

    def __init__(self, actor: CategoricalActor, critics: Sequence[SoftQNetwork]) -> None:
        self.actor, self.critics = actor, critics

    def model(self) -> tuple[dict[str, torch.Tensor], ...]:
        """(actor, qf1, qf2) state_dicts."""
        return (self.actor.state_dict(), *(critic.state_dict() for critic in self.critics))

    def state_dict(self) -> dict[str, Any]:
        return {"model": list(self.model())}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Take over a checkpoint's state or the tuple of a model file."""
        models = state["model"] if isinstance(state, Mapping) else state
        for module, saved in zip((self.actor, *self.critics), models, strict=True):
            module.load_state_dict(saved)


def soft_values(
    log_probs: torch.Tensor, values: tuple[torch.Tensor, torch.Tensor], alpha: torch.Tensor | float
) -> torch.Tensor:
    """What each state is worth under the policy, its entropy included."""
    return (log_probs.exp() * (torch.minimum(*values) - alpha * log_probs)).sum(dim=1)


def critic_losses(
    actor: nn.Module,
    critics: Sequence[nn.Module],
    targets: Sequence[nn.Module],
    batch: TensorBatch,
    gamma: float,
    alpha: float,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The mean squared error of each critic, and the mean of its Q(s, a)."""
    with torch.no_grad():
        qf1_next, qf2_next = (target(batch.next_obs) for target in targets)
        next_value = soft_values(actor(batch.next_obs), (qf1_next, qf2_next), alpha)
        target = batch.reward + gamma * (1.0 - batch.terminated) * next_value
    values = [critic(batch.obs).gather(1, batch.action[:, None])[:, 0] for critic in critics]
    return [functional.mse_loss(value, target) for value in values], [value.detach().mean() for value in values]


def train(args: Args, run: Run) -> None:
    envs = run.make_envs(1, frames=4)
    num_actions = require_discrete_actions(envs, "sac_atari", instead="sac_continuous_action")
    rng, replay = run.rng, make_frame_replay(run, envs)
    seed_torch(args)
    device = device_for(args)

    actor = CategoricalActor(num_actions).to(device)
    critics = nn.ModuleList(SoftQNetwork(num_actions) for _ in range(2)).to(device)
    targets = deepcopy(critics)
    agent = Agent(actor, list(critics))  # type: ignore[arg-type] # a ModuleList of them
    log_alpha = nn.Parameter(torch.zeros(1, device=device))
    actor_optimizer, q_optimizer = FlatAdam(actor, eps=1e-4), FlatAdam(critics, eps=1e-4)
    alpha_optimizer = FlatAdam(nn.ParameterList([log_alpha]), eps=1e-4)
    target_entropy = args.target_entropy_scale * math.log(num_actions)
    run.keep(agent=agent, targets=targets, log_alpha=log_alpha)
    run.keep(actor_optimizer=actor_optimizer, q_optimizer=q_optimizer, alpha_optimizer=alpha_optimizer)
    run.start()
    if not run.restored:
        follow(targets, critics, tau=1.0)

    while run.step < args.total_timesteps:
        obs = envs.obs
        if run.step < args.learning_starts:
            actions = rng.integers(num_actions, size=1)
        else:
            with torch.no_grad():
                log_probs = actor(torch.as_tensor(obs, device=device)).cpu().numpy()
            actions = (log_probs - np.log(rng.standard_exponential(log_probs.shape))).argmax(axis=1)  # Gumbel's trick
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0], step.truncated[0])

        if run.step > args.learning_starts:
            if run.step % args.update_frequency == 0:
                alpha = math.exp(log_alpha.item()) if args.autotune else args.alpha
                batch = on_device(replay.sample(args.batch_size), device)
                q_losses, means = critic_losses(actor, list(critics), list(targets), batch, args.gamma, alpha)
                q_optimizer.descend(q_losses[0] + q_losses[1], args.q_lr)

                log_probs = actor(batch.obs)
                with torch.no_grad():
                    qf1, qf2 = (critic(batch.obs) for critic in critics)
                actor_loss = -soft_values(log_probs, (qf1, qf2), alpha).mean()
                actor_optimizer.descend(actor_loss, args.policy_lr)

                entropy = -(log_probs.exp() * log_probs).detach().sum(dim=1).mean()
                alpha_loss = (log_alpha.exp() * (entropy - target_entropy)).sum()
                if args.autotune:
                    alpha_optimizer.descend(alpha_loss, args.q_lr)
                qf1_loss, qf2_loss = (loss.item() for loss in q_losses)
                run.guard(qf1_loss=qf1_loss, qf2_loss=qf2_loss, actor_loss=actor_loss.item())
                if run.step % 100 == 0:
                    report = {
                        "losses/qf1_values": means[0].item(),
                        "losses/qf2_values": means[1].item(),
                        "losses/qf1_loss": qf1_loss,
                        "losses/qf2_loss": qf2_loss,
                        "losses/qf_loss": (qf1_loss + qf2_loss) / 2.0,
                        "losses/actor_loss": actor_loss.item(),
                        "losses/alpha": alpha,
                        "charts/SPS": run.sps,
                    }
                    run.scalars(report | ({"losses/alpha_loss": alpha_loss.item()} if args.autotune else {}))
            if run.step % args.target_network_frequency == 0:
                follow(targets, critics, args.tau)
        run.tick(step)

    run.finish(model=agent.model)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

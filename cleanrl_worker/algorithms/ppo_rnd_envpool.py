"""PPO with random network distillation (Burda et al. 2018), for Atari games whose rewards are far away.

What a frozen random network says of an image is learned by a second one. The error is large where the image is new: that is
the curiosity reward, with a critic of its own. It does not end with the episode, since what was seen stays seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.rnd import Curiosity, RNDAgent
from cleanrl_worker.algorithms import ppo_atari
from cleanrl_worker.training.envpool import PoolEnvs, make_atari_pool
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.normalise import RunningMoments
from cleanrl_worker.training.ppo_torch import FlatAdam, device_for, ppo_loss, sample, seed_torch
from cleanrl_worker.training.rollout import Passes, RecentReturns, Rollout, advantages, check_rollouts
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)
CLIP = 5.0
"""Normalised images are clipped to this."""


@dataclass
class Args(ppo_atari.Args):
    exp_name: str = "ppo_rnd_envpool"
    """the name of this experiment"""
    env_id: str = "MontezumaRevenge-v5"
    """the id of the environment, as envpool calls it"""
    total_timesteps: int = 2_000_000_000
    """total timesteps of the experiment"""
    learning_rate: float = 1e-4
    """the learning rate of the optimizer"""
    num_envs: int = 128
    """the number of parallel environments"""
    gamma: float = 0.999
    """the discount factor of the game's reward"""
    ent_coef: float = 0.001
    """the weight of the entropy bonus"""

    update_proportion: float = 0.25
    """the share of each minibatch that the predictor learns from"""
    int_coef: float = 1.0
    """the weight of the advantage by curiosity"""
    ext_coef: float = 2.0
    """the weight of the advantage by the game's reward"""
    int_gamma: float = 0.99
    """the discount factor of curiosity"""
    num_iterations_obs_norm_init: int = 50
    """the number of rollouts of random actions from which the images' mean and deviation are first taken"""


class CuriosityScale:
    """The statistics by which images and curiosity are normalised. Kept in checkpoints."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.images = RunningMoments((1, 84, 84))
        self.returns = RunningMoments()
        self.gamma = gamma
        self.discounted = np.zeros(num_envs)
        self.warmed = 0
        """Steps of the warm-up that were taken, in each environment."""

    def see(self, obs: np.ndarray) -> None:
        """Take in a batch of stacked images: their newest ones."""
        self.images.update(obs[:, -1:])

    def normaliser(self, device: torch.device) -> nn.Module:
        return ImageNormaliser(self.images).to(device)

    def scale(self, rewards: np.ndarray) -> np.ndarray:
        """A rollout's curiosity (steps, environments), divided by the deviation of its discounted sum."""
        sums = np.empty(rewards.shape)
        for t, row in enumerate(rewards):
            self.discounted = self.discounted * self.gamma + row
            sums[t] = self.discounted
        self.returns.update(sums.reshape(-1))
        return np.asarray(rewards / np.sqrt(self.returns.var), np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {
            "images": self.images.state_dict(),
            "returns": self.returns.state_dict(),
            "discounted": self.discounted,
            "warmed": self.warmed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.images.load_state_dict(state["images"])
        self.returns.load_state_dict(state["returns"])
        self.warmed = int(state["warmed"])
        if state["discounted"].shape == self.discounted.shape:
            self.discounted = np.asarray(state["discounted"])


class ImageNormaliser(nn.Module):
    """The newest of stacked images, to zero mean and unit deviation by statistics that stay as they were given."""

    mean: torch.Tensor
    factor: torch.Tensor

    def __init__(self, moments: RunningMoments) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(moments.mean, dtype=torch.float32))
        self.register_buffer("factor", torch.as_tensor(1 / np.sqrt(moments.var), dtype=torch.float32))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return ((images[:, -1:].float() - self.mean) * self.factor).clamp_(-CLIP, CLIP)


def warm_up(args: Args, run: Run, envs: PoolEnvs, scale: CuriosityScale) -> None:
    """Act at random to learn what images look like, before curiosity means anything. These steps are not counted."""
    total = args.num_steps * args.num_iterations_obs_norm_init
    shown = 0
    while scale.warmed < total:
        if scale.warmed * 10 // total >= shown:
            run.note(f"Looking at images of random play: {10 * shown} % of {total * args.num_envs} steps.")
            shown = scale.warmed * 10 // total + 1
        step = envs.step(run.rng.integers(0, envs.single_action_space.n, args.num_envs))
        scale.see(step.next_obs)
        scale.warmed += 1
        run.attend()


def train(args: Args, run: Run) -> None:
    check_rollouts(args)
    if not 0 < args.update_proportion <= 1:
        raise BadConfig(f"--update-proportion must be above 0 and at most 1, not {args.update_proportion}.")
    if args.num_iterations_obs_norm_init < 1:
        raise BadConfig("--num-iterations-obs-norm-init must be at least 1: images can't be normalised unseen.")
    envs = run.use_envs(
        make_atari_pool(
            args.env_id,
            args.num_envs,
            seed=args.seed,
            render=bool(run.publisher.shown_slots),
            repeat_action_probability=0.25,
        )
    )
    seed_torch(args)
    device = device_for(args)
    agent = RNDAgent(int(envs.single_action_space.n)).to(device)
    curiosity = Curiosity().to(device)
    optimizer = FlatAdam(nn.ModuleList([agent, curiosity.predictor]))
    scale = CuriosityScale(args.num_envs, args.int_gamma)
    recent = RecentReturns()
    rollout = Rollout(
        args.num_steps,
        args.num_envs,
        obs=(envs.obs_shape, envs.obs_dtype),
        actions=((), np.int64),
        logprobs=((), np.float32),
        rewards=((), np.float32),
        values=((), np.float32),
        curiosity=((), np.float32),
        int_values=((), np.float32),
        ends=((), np.bool_),
        end_values=((), np.float32),
    )
    # What an update takes from the time before it: the next values, and the scaled curiosity, whose statistics move on.
    passes = Passes(
        args.batch_size,
        last_values=np.zeros(args.num_envs, np.float32),
        last_int_values=np.zeros(args.num_envs, np.float32),
        curiosity=np.zeros((args.num_steps, args.num_envs), np.float32),
    )
    run.keep(agent=agent, curiosity=curiosity, optimizer=optimizer, rollout=rollout, passes=passes)
    run.keep(scale=scale, recent=recent)
    run.start()
    if envs.restarted and not passes.begun:
        rollout.clear()
    warm_up(args, run, envs, scale)

    def look(obs: Any) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """Logits, and the values of reward and curiosity."""
        with torch.no_grad():
            logits, ext_values, int_values = agent(torch.as_tensor(obs, device=device))
        return logits, ext_values.cpu().numpy(), int_values.cpu().numpy()

    normalise = scale.normaliser(device)
    while (iteration := (run.step - rollout.t * args.num_envs) // args.batch_size) < args.num_iterations:
        while not rollout.full:
            t = rollout.t
            logits, rollout.values[t], rollout.int_values[t] = look(envs.obs)
            actions, logprobs = sample(logits)
            rollout.obs[t] = envs.obs
            rollout.actions[t] = actions.cpu().numpy()
            rollout.logprobs[t] = logprobs.cpu().numpy()
            step = envs.step(rollout.actions[t])
            rollout.rewards[t] = step.rewards
            with torch.no_grad():
                error = curiosity(normalise(torch.as_tensor(step.next_obs, device=device)))
            rollout.curiosity[t] = error.sum(1).cpu().numpy() / 2
            rollout.ends[t] = step.dones
            rollout.end_values[t] = look(step.next_obs)[1] * step.truncated if step.truncated.any() else 0.0
            rollout.t += 1
            recent.log(run, step)
            for episode in step.episodes:
                run.scalars(
                    {"charts/episode_curiosity_reward": float(rollout.curiosity[t, episode.env])},
                    step=run.step + args.num_envs,
                )
            run.tick(step)

        lr = args.learning_rate * (1 - iteration / args.num_iterations) if args.anneal_lr else args.learning_rate
        if not passes.begun:
            _, passes.given["last_values"][:], passes.given["last_int_values"][:] = look(envs.obs)
            passes.given["curiosity"][:] = scale.scale(rollout.curiosity)
            for row in rollout.obs:  # one step at a time: as floats, a whole rollout of images would fill the memory
                scale.see(row)
            normalise = scale.normaliser(device)
        update(args, run, agent, curiosity, normalise, optimizer, rollout, passes, lr)
        charts = {"charts/learning_rate": lr, "charts/SPS": run.sps}
        run.scalars({**charts, "charts/curiosity_reward": float(rollout.curiosity.mean()), **passes.figures})
        passes.clear()
        rollout.clear()
    run.finish(model=agent.state_dict)


def update(
    args: Args,
    run: Run,
    agent: RNDAgent,
    curiosity: Curiosity,
    normalise: nn.Module,
    optimizer: FlatAdam,
    rollout: Rollout,
    passes: Passes,
    lr: float,
) -> None:
    """Learn from a full rollout, or go on with it. The losses are in `passes.figures` afterwards."""
    device = optimizer.flat.device
    given, ends = passes.given, rollout.ends
    ext_gained = advantages(
        rollout.rewards, rollout.values, given["last_values"], ends, rollout.end_values, args.gamma, args.gae_lambda
    )
    int_gained = advantages(
        given["curiosity"],
        rollout.int_values,
        given["last_int_values"],
        np.zeros_like(ends),  # curiosity knows no episodes: what comes after an end counts as well
        rollout.end_values,
        args.int_gamma,
        args.gae_lambda,
    )
    gained = args.int_coef * int_gained + args.ext_coef * ext_gained
    columns = [
        torch.as_tensor(array.reshape(-1), device=device)
        for array in (
            *(rollout.actions, rollout.logprobs, rollout.values, gained),
            *(ext_gained + rollout.values, int_gained + rollout.int_values),
        )
    ]
    obs = rollout.flat("obs")
    for rows in passes.rows(run.rng, args.update_epochs, args.num_minibatches):
        images = torch.as_tensor(obs[rows], device=device)
        chosen = torch.as_tensor(rows, device=device)
        actions, logprobs, old_values, advantage, ext_returns, int_returns = (column[chosen] for column in columns)

        error = curiosity(normalise(images)).mean(1)
        learned = torch.rand(len(rows), device=device) < args.update_proportion
        forward_loss = (error * learned).sum() / learned.sum().clamp(min=1)

        logits, ext_values, int_values = agent(images)
        parts = ppo_loss(logits, ext_values, actions, logprobs, old_values, advantage, ext_returns, args)
        int_value_loss = 0.5 * ((int_values - int_returns) ** 2).mean()
        loss = parts.loss + args.vf_coef * int_value_loss + forward_loss
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step(lr, args.max_grad_norm)

        figures = parts.by_tag()
        del figures["losses/clipfrac"]
        int_loss, figures["losses/fwd_loss"] = torch.stack((int_value_loss.detach(), forward_loss.detach())).tolist()
        figures["losses/value_loss"] += int_loss
        run.guard(**figures)
        passes.figures = figures
        too_far = args.target_kl is not None and figures["losses/approx_kl"] > args.target_kl
        passes.stop_if(too_far, args.update_epochs, args.num_minibatches)
        run.attend()


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""PPO on Procgen's generated levels (Cobbe et al. 2020), with a residual network. The algorithm is `ppo_atari`'s.

Levels come from envpool: `starpilot`, `procgen-starpilot-v0` and `StarpilotEasy-v0` all mean easy levels, `StarpilotHard-v0`
hard ones. Rewards are divided by the deviation of their discounted sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleanrl_worker.agents.atari import ImpalaAgent
from cleanrl_worker.algorithms import ppo_atari
from cleanrl_worker.training.envpool import make_procgen
from cleanrl_worker.training.ppo_torch import seed_torch
from cleanrl_worker.training.rollout import check_rollouts
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)


@dataclass
class Args(ppo_atari.Args):
    exp_name: str = "ppo_procgen"
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
    num_minibatches: int = 8
    """the number of minibatches per epoch"""
    update_epochs: int = 3
    """the number of passes over each rollout"""
    clip_coef: float = 0.2
    """how far the probability ratio may move from 1 before the surrogate is clipped"""
    num_levels: int = 0
    """the number of different levels; 0 means as many as there are"""


def train(args: Args, run: Run) -> None:
    check_rollouts(args)
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
    channels, height, width = envs.obs_shape
    ppo_atari.learn(args, run, envs, ImpalaAgent(int(envs.single_action_space.n), (channels, height, width)))


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""PPO on Atari games that envpool steps in C++ threads. The algorithm is `ppo_atari`'s; games are called `Breakout-v5`."""

from __future__ import annotations

from dataclasses import dataclass

from cleanrl_worker.agents.atari import NatureAgent
from cleanrl_worker.algorithms import ppo_atari
from cleanrl_worker.training.envpool import make_atari_pool
from cleanrl_worker.training.ppo_torch import seed_torch
from cleanrl_worker.training.rollout import RecentReturns, check_rollouts
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)


@dataclass
class Args(ppo_atari.Args):
    exp_name: str = "ppo_atari_envpool"
    """the name of this experiment"""
    env_id: str = "Breakout-v5"
    """the id of the environment, as envpool calls it"""


def train(args: Args, run: Run) -> None:
    check_rollouts(args)
    envs = run.use_envs(
        make_atari_pool(args.env_id, args.num_envs, seed=args.seed, render=bool(run.publisher.shown_slots))
    )
    recent = RecentReturns()
    run.keep(recent=recent)
    seed_torch(args)
    agent = NatureAgent(int(envs.single_action_space.n))
    ppo_atari.learn(args, run, envs, agent, on_step=lambda step: recent.log(run, step))


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

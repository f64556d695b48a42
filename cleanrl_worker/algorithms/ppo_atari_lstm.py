"""PPO with a memory on Atari games: one image at a time, and an LSTM instead of a stack of images.

The algorithm is `ppo_gru`'s: minibatches are whole sequences of some environments, run again from the memory that they began
with.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleanrl_worker.agents.atari import RecurrentNatureAgent
from cleanrl_worker.algorithms import ppo_atari, ppo_gru
from cleanrl_worker.training.envs import require_discrete_actions
from cleanrl_worker.training.ppo_torch import seed_torch
from cleanrl_worker.training.rollout import check_rollouts
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(ppo_atari.Args):
    exp_name: str = "ppo_atari_lstm"
    """the name of this experiment"""


def train(args: Args, run: Run) -> None:
    check_rollouts(args, whole_sequences=True)
    envs = run.make_envs(args.num_envs, frames=1)
    actions = require_discrete_actions(envs, "ppo_atari_lstm", instead="ppo_continuous_action")
    seed_torch(args)
    ppo_gru.learn(args, run, envs, RecurrentNatureAgent(actions))


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""Robust policy optimisation (Rahman & Xue 2022): PPO for continuous actions with a policy that can't become too sure.

While learning, the mean of the Gaussian is moved by a uniform random amount, which keeps the policy's entropy up for the whole
run. Everything else is ppo_continuous_action.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cleanrl_worker.algorithms import ppo_continuous_action
from cleanrl_worker.algorithms.ppo_continuous_action import Floats, Learner
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(ppo_continuous_action.Args):
    exp_name: str = "rpo_continuous_action"
    """the name of this experiment"""
    total_timesteps: int = 8_000_000
    """total timesteps of the experiment"""
    rpo_alpha: float = 0.5
    """the means are moved by up to this much in the update"""


class RobustLearner(Learner):
    """Learns under means that are moved by Uniform(-alpha, alpha), drawn anew for every row and action."""

    def shift(self, rng: np.random.Generator, rows: int) -> Floats:
        assert isinstance(self.args, Args)
        alpha = np.float32(self.args.rpo_alpha)
        uniform = rng.random((rows, self.logstd.shape[1]), dtype=np.float32)
        return (2 * uniform - 1) * alpha


def train(args: Args, run: Run) -> None:
    ppo_continuous_action.train(args, run, learner_type=RobustLearner)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

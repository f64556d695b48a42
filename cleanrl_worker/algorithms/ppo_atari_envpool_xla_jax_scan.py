"""PPO on Atari games in JAX, with a whole iteration as two compiled functions: rollout and update are `jax.lax.scan`s.

The algorithm is `ppo_atari_envpool_xla_jax`'s. Requests are obeyed between two rollouts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cleanrl_worker.algorithms import ppo_atari_envpool_xla_jax
from cleanrl_worker.algorithms.ppo_atari_envpool_xla_jax import PPO, State, begin, finish, merged, report, rows_of
from cleanrl_worker.training.jax_envpool import PoolState
from cleanrl_worker.training.jax_tools import Jitted
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)


@dataclass
class Args(ppo_atari_envpool_xla_jax.Args):
    exp_name: str = "ppo_atari_envpool_xla_jax_scan"
    """the name of this experiment"""


def collect(ppo: PPO, state: State, games: PoolState) -> tuple[State, PoolState, Any, Any]:
    """A rollout of all games, with its advantages."""

    def one(carry: tuple[State, PoolState], _: None) -> tuple[tuple[State, PoolState], Any]:
        state, games, row, outcome = ppo.step(*carry)
        return (state, games), (row, outcome)

    (state, games), (rollout, outcome) = jax.lax.scan(one, (state, games), None, length=ppo.args.num_steps)
    return state, games, merged(ppo.gae(state.params, rollout, outcome, games)), outcome


def update(ppo: PPO, state: State, batch: Any, lr: Any) -> tuple[State, Any]:
    """All passes over a rollout. Gives the figures of the last minibatch."""
    args = ppo.args

    def one(state: State, rows: Any) -> tuple[State, Any]:
        return ppo.learn(state, rows_of(batch, rows), lr)

    key, *keys = jax.random.split(state.key, args.update_epochs + 1)
    orders = [jax.random.permutation(k, args.batch_size).reshape(args.num_minibatches, -1) for k in keys]
    state, figures = jax.lax.scan(one, state._replace(key=key), jnp.concatenate(orders))
    return state, figures[-1]


def train(args: Args, run: Run) -> None:
    ppo, learner, envs, recent = begin(args, run)
    rollout = Jitted(run, "the rollout", lambda state, games: collect(ppo, state, games))
    learn = Jitted(run, "the update", lambda state, batch, lr: update(ppo, state, batch, lr))

    while (iteration := run.step // args.batch_size) < args.num_iterations:
        began = time.monotonic()
        learner.state, envs.state, batch, outcome = rollout(learner.state, envs.state)
        for step in envs.steps(outcome):
            recent.log(run, step)
            run.count(step)
        lr = args.learning_rate * (1 - iteration / args.num_iterations) if args.anneal_lr else args.learning_rate
        learner.state, figures = learn(learner.state, batch, lr)
        report(args, run, np.asarray(figures), lr, began)
        run.attend()
    finish(args, run, learner)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""C51 (Bellemare, Dabney & Munos 2017) on Atari games, in JAX, from four stacked images of 84x84.

The same algorithm as `c51_atari`, with the gradient step of `c51_jax` as one compiled function. The replay memory holds each
image once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore] # it brings no types

from cleanrl_worker.agents.jax_atari import CategoricalQNetwork
from cleanrl_worker.algorithms.c51_jax import c51_update, check_atoms
from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.algorithms.dqn_jax import State
from cleanrl_worker.training.args import JaxSaveArgs
from cleanrl_worker.training.envs import require_discrete_actions
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.jax_tools import Jitted, Learner, copied, model_bytes, plain, prepare
from cleanrl_worker.training.replay_frames import make_frame_replay
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(JaxSaveArgs):
    """C51 on Atari games, in JAX."""

    exp_name: str = "c51_atari_jax"
    """the name of this experiment"""
    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10000000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of environments; must be 1"""
    n_atoms: int = 51
    """the number of atoms of the return's distribution"""
    v_min: float = -10
    """the return of the lowest atom"""
    v_max: float = 10
    """the return of the highest atom"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    target_network_frequency: int = 10000
    """the timesteps between updates of the target network"""
    batch_size: int = 32
    """the transitions sampled from the replay memory for one gradient step"""
    start_e: float = 1
    """the exploration rate epsilon at the start"""
    end_e: float = 0.01
    """the exploration rate epsilon at the end of its schedule"""
    exploration_fraction: float = 0.1
    """the fraction of `total_timesteps` over which epsilon goes from `start_e` to `end_e`"""
    learning_starts: int = 80000
    """the timestep after which learning starts"""
    train_frequency: int = 4
    """the timesteps between gradient steps"""


def train(args: Args, run: Run) -> None:
    if args.num_envs != 1:
        raise BadConfig(f"c51_atari_jax learns from one environment: set --num-envs 1, not {args.num_envs}.")
    check_atoms("c51_atari_jax", args.n_atoms, args.v_min, args.v_max)
    envs = run.make_envs(args.num_envs, frames=4)
    num_actions = require_discrete_actions(envs, "c51_atari_jax", instead="td3_continuous_action_jax")
    rng, replay, key = run.rng, make_frame_replay(run, envs), prepare(run)

    atoms = np.linspace(args.v_min, args.v_max, args.n_atoms, dtype=np.float32)
    network: Any = CategoricalQNetwork(num_actions, args.n_atoms)
    optimizer = optax.adam(args.learning_rate, eps=0.01 / args.batch_size)
    params = network.init(key, np.zeros((1, *envs.obs_shape), np.uint8))
    learner = Learner(State(params, copied(params), optimizer.init(params)))
    run.keep(agent=learner.part("params"), target_network=learner.part("target"), optimizer=learner.part("moments"))

    act = Jitted(run, "the policy", lambda params, obs: (network.apply(params, obs) @ atoms).argmax(axis=1))
    update = Jitted(run, "the gradient step", partial(c51_update, network, optimizer, atoms, args.gamma), donate=(0,))
    run.start()
    if not run.restored:
        learner.state = learner.state._replace(target=copied(learner.state.params))

    while run.step < args.total_timesteps:
        epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, run.step)
        obs = envs.obs
        explore = rng.random() < epsilon
        actions = np.array([rng.integers(num_actions)]) if explore else np.asarray(act(learner.state.params, obs))
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0], step.truncated[0])

        if run.step > args.learning_starts:
            if run.step % args.train_frequency == 0:
                learner.state, figures = update(learner.state, replay.sample(args.batch_size))
                loss, mean_q = np.asarray(figures).tolist()
                run.guard(loss=loss)
                if run.step % 100 == 0:
                    run.scalars({"losses/loss": loss, "losses/q_values": mean_q, "charts/SPS": run.sps})
            if run.step % args.target_network_frequency == 0:
                learner.state = learner.state._replace(target=copied(learner.state.params))
        run.tick(step)

    run.finish(model=lambda: model_bytes({"model_weights": plain(learner.state.params), "args": asdict(args)}))


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

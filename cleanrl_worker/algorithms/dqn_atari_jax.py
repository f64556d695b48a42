"""DQN (Mnih et al. 2015) on Atari games, in JAX, from four stacked images of 84x84.

The same algorithm as `dqn_atari`, with the gradient step of `dqn_jax` as one compiled function. The replay memory holds each
image once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore] # it brings no types

from cleanrl_worker.agents.jax_atari import QNetwork
from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.algorithms.dqn_jax import State, td_update
from cleanrl_worker.training.args import JaxSaveArgs
from cleanrl_worker.training.envs import require_discrete_actions
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.jax_tools import Jitted, Learner, copied, model_bytes, moved, prepare
from cleanrl_worker.training.replay_frames import make_frame_replay
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(JaxSaveArgs):
    """DQN on Atari games, in JAX."""

    exp_name: str = "dqn_atari_jax"
    """the name of this experiment"""
    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10000000
    """total timesteps of the experiment"""
    learning_rate: float = 1e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of environments; must be 1"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 1.0
    """how far the target network moves towards the online one at each update of it; 1 is a copy"""
    target_network_frequency: int = 1000
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
        raise BadConfig(f"dqn_atari_jax learns from one environment: set --num-envs 1, not {args.num_envs}.")
    envs = run.make_envs(args.num_envs, frames=4)
    num_actions = require_discrete_actions(envs, "dqn_atari_jax", instead="td3_continuous_action_jax")
    rng, replay, key = run.rng, make_frame_replay(run, envs), prepare(run)

    network: Any = QNetwork(num_actions)
    optimizer = optax.adam(args.learning_rate)
    params = network.init(key, np.zeros((1, *envs.obs_shape), np.uint8))
    learner = Learner(State(params, copied(params), optimizer.init(params)))
    run.keep(agent=learner.part("params"), target_network=learner.part("target"), optimizer=learner.part("moments"))

    act = Jitted(run, "the policy", lambda params, obs: network.apply(params, obs).argmax(axis=1))
    update = Jitted(run, "the gradient step", partial(td_update, network, optimizer, args.gamma), donate=(0,))
    follow = Jitted(run, "the target network's update", partial(moved, tau=args.tau))
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
                run.guard(td_loss=loss)
                if run.step % 100 == 0:
                    run.scalars({"losses/td_loss": loss, "losses/q_values": mean_q, "charts/SPS": run.sps})
            if run.step % args.target_network_frequency == 0:
                learner.state = learner.state._replace(target=follow(learner.state.target, learner.state.params))
        run.tick(step)

    run.finish(model=lambda: model_bytes(learner.state.params))


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

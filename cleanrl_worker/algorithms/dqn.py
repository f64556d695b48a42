"""DQN (Mnih et al. 2015) for vector observations: one-step Q-learning with replay and a target network.

The loss is the mean of (Q(s, a) - y)^2 with y = r + gamma * max_a' Q_target(s', a') for transitions that do not terminate,
and y = r for those that do. Time limits do not terminate: the value of what would have come next still counts.

The networks are computed in NumPy on the CPU (see `training/dense.py`), so `--cuda` changes nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.dense import Adam, Net, mean, polyak
from cleanrl_worker.training.envs import require_discrete_actions, require_vectors
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.replay import Batch, make_replay
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(SaveArgs):
    """DQN on environments with vector observations and discrete actions."""

    exp_name: str = "dqn"
    """the name of this experiment"""
    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = 500000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of environments; must be 1"""
    buffer_size: int = 10000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 1.0
    """how far the target network moves towards the online one at each update of it; 1 is a copy"""
    target_network_frequency: int = 500
    """the timesteps between updates of the target network"""
    batch_size: int = 128
    """the transitions sampled from the replay memory for one gradient step"""
    start_e: float = 1
    """the exploration rate epsilon at the start"""
    end_e: float = 0.05
    """the exploration rate epsilon at the end of its schedule"""
    exploration_fraction: float = 0.5
    """the fraction of `total_timesteps` over which epsilon goes from `start_e` to `end_e`"""
    learning_starts: int = 10000
    """the timestep after which learning starts"""
    train_frequency: int = 10
    """the timesteps between gradient steps"""


def linear_schedule(start: float, end: float, duration: float, step: int) -> float:
    """From `start` to `end` in a straight line over `duration` steps, `end` from there on."""
    return end if step >= duration else start + (end - start) * step / duration


def td_update(q_network: Net, target_network: Net, optimizer: Adam, batch: Batch, gamma: float) -> tuple[float, float]:
    """One gradient step on the mean squared temporal difference. Returns the loss and the mean of Q(s, a)."""
    size = len(batch.action)
    next_value = target_network.predict(batch.next_obs)[0].max(axis=1)
    target = batch.reward + gamma * (1.0 - batch.terminated) * next_value

    q = q_network.forward(batch.obs)[0]
    taken = np.arange(size), batch.action
    value = q[taken]
    error = value - target
    loss, mean_value = float(np.dot(error, error)) / size, mean(value)

    grad = np.zeros_like(q)
    grad[taken] = (2.0 / size) * error
    q_network.backward((grad,))
    optimizer.step(q_network.grad)
    return loss, mean_value


def train(args: Args, run: Run) -> None:
    if args.num_envs != 1:
        raise BadConfig(f"dqn learns from one environment: set --num-envs 1, not {args.num_envs} (pqn takes several).")
    envs = run.make_envs(args.num_envs)
    obs_size = require_vectors(envs, "dqn", instead="dqn_atari")
    num_actions = require_discrete_actions(envs, "dqn", instead="td3_continuous_action")
    rng = run.rng
    replay = make_replay(run, envs)

    q_network = Net(obs_size, (120, 84), heads=(num_actions,), activation="relu")
    q_network.init_uniform(rng)
    target_network = Net(obs_size, (120, 84), heads=(num_actions,), activation="relu")
    optimizer = Adam(q_network.flat, args.learning_rate)
    run.keep(agent=q_network, target_network=target_network, optimizer=optimizer)
    run.start()
    if not run.restored:
        target_network.flat[:] = q_network.flat

    while run.step < args.total_timesteps:
        epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, run.step)
        obs = envs.obs
        explore = rng.random() < epsilon
        actions = np.array([rng.integers(num_actions)]) if explore else q_network.predict(obs)[0].argmax(axis=1)
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0])

        if run.step > args.learning_starts:
            if run.step % args.train_frequency == 0:
                loss, mean_q = td_update(
                    q_network, target_network, optimizer, replay.sample(args.batch_size), args.gamma
                )
                run.guard(td_loss=loss)
                if run.step % 100 == 0:
                    run.scalars({"losses/td_loss": loss, "losses/q_values": mean_q, "charts/SPS": run.sps})
            if run.step % args.target_network_frequency == 0:
                polyak(target_network.flat, q_network.flat, args.tau)
        run.tick(step)

    run.finish(model=q_network.state_dict)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

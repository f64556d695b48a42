"""DDPG (Lillicrap et al. 2016): Q-learning for continuous actions, with an actor that climbs the critic.

The critic learns y = r + gamma * Q_target(s', actor_target(s')); every `policy_frequency` steps the actor takes one step up
Q(s, actor(s)), and both target networks follow by Polyak averaging.

The networks are computed in NumPy on the CPU (see `training/dense.py`), so `--cuda` changes nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.continuous import ActorCritic, Bounds, CriticOptimizers, Critics, DeterministicActor
from cleanrl_worker.training.dense import Adam, mean, polyak
from cleanrl_worker.training.envs import require_continuous_actions, require_vectors
from cleanrl_worker.training.replay import make_replay
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(SaveArgs):
    """DDPG on environments with vector observations and bounded continuous actions."""

    exp_name: str = "ddpg_continuous_action"
    """the name of this experiment"""
    env_id: str = "Hopper-v4"
    """the id of the environment"""
    total_timesteps: int = 1000000
    """total timesteps of the experiment"""
    learning_rate: float = 3e-4
    """the learning rate of both optimizers"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 0.005
    """how far the target networks move towards the online ones at each update of them"""
    batch_size: int = 256
    """the transitions sampled from the replay memory for one gradient step"""
    exploration_noise: float = 0.1
    """the standard deviation of the exploration noise, as a fraction of the action's half range"""
    learning_starts: int = 25000
    """the timestep after which learning starts; actions are random until then"""
    policy_frequency: int = 2
    """the timesteps between updates of the actor and of the target networks"""


def train(args: Args, run: Run) -> None:
    envs = run.make_envs(1, clip_actions=True)
    obs_size = require_vectors(envs, "ddpg_continuous_action")
    action_size = require_continuous_actions(envs, "ddpg_continuous_action", instead="dqn", bounded=True)
    rng, bounds = run.rng, Bounds(envs.single_action_space)
    replay = make_replay(run, envs)

    actor, target_actor = (DeterministicActor(obs_size, bounds) for _ in range(2))
    critic, target_critic = (Critics(obs_size, action_size, count=1) for _ in range(2))
    actor.net.init_uniform(rng)
    critic.init_uniform(rng)
    actor_optimizer = Adam(actor.net.flat, args.learning_rate)
    q_optimizer = CriticOptimizers(critic, args.learning_rate)
    uphill = np.full(args.batch_size, -1.0 / args.batch_size, np.float32)  # the gradient of minus a mean
    agent = ActorCritic(actor, critic)
    run.keep(agent=agent, target_actor=target_actor, target_critic=target_critic)
    run.keep(actor_optimizer=actor_optimizer, q_optimizer=q_optimizer, losses=(latest := {"actor": 0.0}))
    run.start()
    if not run.restored:
        target_actor.net.flat[:] = actor.net.flat
        target_critic.follow(critic, tau=1.0)

    while run.step < args.total_timesteps:
        obs = envs.obs
        if run.step < args.learning_starts:
            actions = bounds.uniform(rng, 1)
        else:
            noise = rng.standard_normal((1, action_size), np.float32) * (args.exploration_noise * bounds.scale)
            actions = bounds.clip(actor.predict(obs) + noise)
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0])

        if run.step > args.learning_starts:
            batch = replay.sample(args.batch_size)
            (next_value,) = target_critic.predict(batch.next_obs, target_actor.predict(batch.next_obs))
            target = batch.reward + args.gamma * (1.0 - batch.terminated) * next_value

            (value,) = critic.values(batch.obs, batch.action)
            error = value - target
            mean_value = mean(value)
            qf_loss = float(np.dot(error, error)) / args.batch_size
            run.guard(qf1_loss=qf_loss)
            critic.backward([(2.0 / args.batch_size) * error])
            q_optimizer.step()

            if run.step % args.policy_frequency == 0:
                (own_value,) = critic.values(batch.obs, actor.act(batch.obs))
                latest["actor"] = -mean(own_value)
                run.guard(actor_loss=latest["actor"])
                actor.backward(critic.action_gradient([uphill]))
                actor_optimizer.step(actor.net.grad)
                polyak(target_actor.net.flat, actor.net.flat, args.tau)
                target_critic.follow(critic, args.tau)

            if run.step % 100 == 0:
                run.scalars(
                    {
                        "losses/qf1_values": mean_value,
                        "losses/qf1_loss": qf_loss,
                        "losses/actor_loss": latest["actor"],
                        "charts/SPS": run.sps,
                    }
                )
        run.tick(step)

    run.finish(model=agent.model)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

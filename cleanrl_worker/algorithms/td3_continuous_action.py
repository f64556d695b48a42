"""TD3 (Fujimoto, van Hoof & Meger 2018): DDPG with three remedies against overestimated values.

Two critics learn from the smaller of their two target values; the target action carries clipped noise, which smooths the
value over neighbouring actions; and the actor and the target networks are updated only every `policy_frequency` steps.

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
    """TD3 on environments with vector observations and bounded continuous actions."""

    exp_name: str = "td3_continuous_action"
    """the name of this experiment"""
    env_id: str = "Hopper-v4"
    """the id of the environment"""
    total_timesteps: int = 1000000
    """total timesteps of the experiment"""
    learning_rate: float = 3e-4
    """the learning rate of both optimizers"""
    num_envs: int = 1
    """the number of environments; each step of all of them is followed by one gradient step"""
    buffer_size: int = 1000000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
    tau: float = 0.005
    """how far the target networks move towards the online ones at each update of them"""
    batch_size: int = 256
    """the transitions sampled from the replay memory for one gradient step"""
    policy_noise: float = 0.2
    """the standard deviation of the target action's noise, as a fraction of the action's half range"""
    exploration_noise: float = 0.1
    """the standard deviation of the exploration noise, as a fraction of the action's half range"""
    learning_starts: int = 25000
    """the timestep after which learning starts; actions are random until then"""
    policy_frequency: int = 2
    """the gradient steps of the critics for each of the actor and each update of the target networks"""
    noise_clip: float = 0.5
    """the bound of the target action's noise, as a fraction of the action's half range"""


def train(args: Args, run: Run) -> None:
    envs = run.make_envs(args.num_envs, clip_actions=True)
    obs_size = require_vectors(envs, "td3_continuous_action")
    action_size = require_continuous_actions(envs, "td3_continuous_action", instead="dqn", bounded=True)
    rng, bounds = run.rng, Bounds(envs.single_action_space)
    replay = make_replay(run, envs)

    actor, target_actor = (DeterministicActor(obs_size, bounds) for _ in range(2))
    critics, target_critics = (Critics(obs_size, action_size, count=2) for _ in range(2))
    actor.net.init_uniform(rng)
    critics.init_uniform(rng)
    actor_optimizer = Adam(actor.net.flat, args.learning_rate)
    q_optimizer = CriticOptimizers(critics, args.learning_rate)
    uphill = np.full(args.batch_size, -1.0 / args.batch_size, np.float32)  # the gradient of minus a mean
    agent = ActorCritic(actor, critics)
    run.keep(agent=agent, target_actor=target_actor, target_critics=target_critics)
    run.keep(actor_optimizer=actor_optimizer, q_optimizer=q_optimizer, losses=(latest := {"actor": 0.0}))
    run.start()
    if not run.restored:
        target_actor.net.flat[:] = actor.net.flat
        target_critics.follow(critics, tau=1.0)

    while run.step < args.total_timesteps:
        obs = envs.obs
        if run.step < args.learning_starts:
            actions = bounds.uniform(rng, args.num_envs)
        else:
            noise = rng.standard_normal((args.num_envs, action_size), np.float32)
            actions = bounds.clip(actor.predict(obs) + noise * (args.exploration_noise * bounds.scale))
        step = envs.step(actions)
        for i in range(args.num_envs):
            replay.add(obs[i], actions[i], step.rewards[i], step.next_obs[i], step.terminated[i])

        if run.step > args.learning_starts:
            iteration = run.step // args.num_envs
            batch = replay.sample(args.batch_size)
            noise = rng.standard_normal((args.batch_size, action_size), np.float32) * args.policy_noise
            np.clip(noise, -args.noise_clip, args.noise_clip, out=noise)
            next_actions = bounds.clip(target_actor.predict(batch.next_obs) + noise * bounds.scale)
            next_value = np.minimum(*target_critics.predict(batch.next_obs, next_actions))
            target = batch.reward + args.gamma * (1.0 - batch.terminated) * next_value

            values = critics.values(batch.obs, batch.action)
            mean_values = [mean(value) for value in values]
            errors = [value - target for value in values]
            qf1_loss, qf2_loss = (float(np.dot(error, error)) / args.batch_size for error in errors)
            run.guard(qf1_loss=qf1_loss, qf2_loss=qf2_loss)
            critics.backward([(2.0 / args.batch_size) * error for error in errors])
            q_optimizer.step()

            if iteration % args.policy_frequency == 0:
                (own_value,) = critics.values(batch.obs, actor.act(batch.obs), first=True)
                latest["actor"] = -mean(own_value)
                run.guard(actor_loss=latest["actor"])
                actor.backward(critics.action_gradient([uphill]))
                actor_optimizer.step(actor.net.grad)
                polyak(target_actor.net.flat, actor.net.flat, args.tau)
                target_critics.follow(critics, args.tau)

            if iteration % 100 == 0:
                run.scalars(
                    {
                        "losses/qf1_values": mean_values[0],
                        "losses/qf2_values": mean_values[1],
                        "losses/qf1_loss": qf1_loss,
                        "losses/qf2_loss": qf2_loss,
                        "losses/qf_loss": (qf1_loss + qf2_loss) / 2.0,
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

"""TD3 (Fujimoto, van Hoof & Meger 2018) in JAX: DDPG with three remedies against overestimated values.

Two critics learn from the smaller of their two target values; the target action carries clipped noise, which smooths the
value over neighbouring actions; and the actor and the target networks are updated only every `policy_frequency` steps. The
same algorithm as `td3_continuous_action`, with each gradient step as one compiled function.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore] # it brings no types

from cleanrl_worker.algorithms.ddpg_continuous_action_jax import Actor, QNetwork
from cleanrl_worker.training.args import JaxSaveArgs
from cleanrl_worker.training.continuous import Bounds
from cleanrl_worker.training.envs import require_continuous_actions, require_vectors
from cleanrl_worker.training.jax_tools import Jitted, Learner, copied, model_bytes, moved, prepare
from cleanrl_worker.training.replay import Batch, make_replay
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(JaxSaveArgs):
    """TD3 on environments with vector observations and bounded continuous actions, in JAX."""

    exp_name: str = "td3_continuous_action_jax"
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


class State(NamedTuple):
    """All that gradient steps change. `key` is the source of the target actions' noise."""

    actor: Any
    qf1: Any
    qf2: Any
    target_actor: Any
    target_qf1: Any
    target_qf2: Any
    actor_moments: Any
    q_moments: Any
    key: jax.Array


class Networks(NamedTuple):
    """What never changes: the networks' shapes, the optimizer, the bounds and the flags."""

    actor: Any
    critic: Any
    optimizer: optax.GradientTransformation
    bounds: Bounds
    args: Args


def update_critics(nets: Networks, state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One gradient step of both critics. Also gives their losses and the means of their Q(s, a)."""
    args, bounds = nets.args, nets.bounds
    key, noise_key = jax.random.split(state.key)
    noise = jax.random.normal(noise_key, batch.action.shape) * args.policy_noise
    noise = jnp.clip(noise, -args.noise_clip, args.noise_clip) * bounds.scale
    next_actions = jnp.clip(nets.actor.apply(state.target_actor, batch.next_obs) + noise, bounds.low, bounds.high)
    next_value = jnp.minimum(
        nets.critic.apply(state.target_qf1, batch.next_obs, next_actions),
        nets.critic.apply(state.target_qf2, batch.next_obs, next_actions),
    )
    target = batch.reward + args.gamma * (1.0 - batch.terminated) * next_value

    def loss_of(critics: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
        values = jnp.stack([nets.critic.apply(params, batch.obs, batch.action) for params in critics])
        losses = jnp.mean((values - target) ** 2, axis=1)
        return losses.sum(), jnp.concatenate((losses, values.mean(axis=1)))

    critics = (state.qf1, state.qf2)
    (_, figures), grads = jax.value_and_grad(loss_of, has_aux=True)(critics)
    updates, moments = nets.optimizer.update(grads, state.q_moments)
    qf1, qf2 = optax.apply_updates(critics, updates)
    return state._replace(qf1=qf1, qf2=qf2, q_moments=moments, key=key), figures


def update_actor(nets: Networks, state: State, obs: jax.Array) -> tuple[State, jax.Array]:
    """One gradient step of the actor, after which the target networks follow. Also gives the actor's loss."""

    def loss_of(params: Any) -> jax.Array:
        return -jnp.mean(nets.critic.apply(state.qf1, obs, nets.actor.apply(params, obs)))

    loss, grads = jax.value_and_grad(loss_of)(state.actor)
    updates, moments = nets.optimizer.update(grads, state.actor_moments)
    actor, tau = optax.apply_updates(state.actor, updates), nets.args.tau
    state = state._replace(
        actor=actor,
        actor_moments=moments,
        target_actor=moved(state.target_actor, actor, tau),
        target_qf1=moved(state.target_qf1, state.qf1, tau),
        target_qf2=moved(state.target_qf2, state.qf2, tau),
    )
    return state, loss


def train(args: Args, run: Run) -> None:
    envs = run.make_envs(1, clip_actions=True)
    obs_size = require_vectors(envs, "td3_continuous_action_jax")
    action_size = require_continuous_actions(envs, "td3_continuous_action_jax", instead="dqn_jax", bounded=True)
    rng, bounds = run.rng, Bounds(envs.single_action_space)
    replay, key = make_replay(run, envs), prepare(run)

    optimizer = optax.adam(args.learning_rate)
    nets = Networks(Actor(action_size, bounds.scale, bounds.bias), QNetwork(), optimizer, bounds, args)
    key, *keys = jax.random.split(key, 4)
    no_obs, no_action = np.zeros((1, obs_size), np.float32), np.zeros((1, action_size), np.float32)
    actor = nets.actor.init(keys[0], no_obs)
    qf1, qf2 = (nets.critic.init(each, no_obs, no_action) for each in keys[1:])
    learner = Learner(
        State(
            actor=actor,
            qf1=qf1,
            qf2=qf2,
            target_actor=copied(actor),
            target_qf1=copied(qf1),
            target_qf2=copied(qf2),
            actor_moments=optimizer.init(actor),
            q_moments=optimizer.init((qf1, qf2)),
            key=key,
        )
    )
    agent = learner.part("actor", "qf1", "qf2")
    run.keep(agent=agent, targets=learner.part("target_actor", "target_qf1", "target_qf2"))
    run.keep(optimizers=learner.part("actor_moments", "q_moments", "key"), losses=(latest := {"actor": 0.0}))

    act = Jitted(run, "the policy", nets.actor.apply)
    learn_values = Jitted(run, "the critics' gradient step", partial(update_critics, nets), donate=(0,))
    learn_policy = Jitted(run, "the actor's gradient step", partial(update_actor, nets), donate=(0,))
    run.start()
    if not run.restored:
        state = learner.state
        actor, qf1, qf2 = copied((state.actor, state.qf1, state.qf2))
        learner.state = state._replace(target_actor=actor, target_qf1=qf1, target_qf2=qf2)

    while run.step < args.total_timesteps:
        obs = envs.obs
        if run.step < args.learning_starts:
            actions = bounds.uniform(rng, 1)
        else:
            noise = rng.standard_normal((1, action_size), np.float32) * (args.exploration_noise * bounds.scale)
            actions = bounds.clip(np.asarray(act(learner.state.actor, obs)) + noise)
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0])

        if run.step > args.learning_starts:
            batch = replay.sample(args.batch_size)
            learner.state, figures = learn_values(learner.state, batch)
            qf1_loss, qf2_loss, qf1_value, qf2_value = np.asarray(figures).tolist()
            run.guard(qf1_loss=qf1_loss, qf2_loss=qf2_loss)
            if run.step % args.policy_frequency == 0:
                learner.state, actor_loss = learn_policy(learner.state, batch.obs)
                latest["actor"] = float(actor_loss)
                run.guard(actor_loss=latest["actor"])
            if run.step % 100 == 0:
                run.scalars(
                    {
                        "losses/qf1_values": qf1_value,
                        "losses/qf2_values": qf2_value,
                        "losses/qf1_loss": qf1_loss,
                        "losses/qf2_loss": qf2_loss,
                        "losses/actor_loss": latest["actor"],
                        "charts/SPS": run.sps,
                    }
                )
        run.tick(step)

    run.finish(model=lambda: model_bytes(agent.state_dict()))


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

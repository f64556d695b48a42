"""DDPG (Lillicrap et al. 2016) in JAX: a deterministic actor climbs the value that a critic learns by Q-learning.

The critic's target is y = r + gamma * Q_target(s', mu_target(s')), and y = r where the episode terminates. The actor follows
the gradient of Q(s, mu(s)). Exploration is Gaussian noise on the action, cut off at its bounds. The same algorithm as
`ddpg_continuous_action`, with each gradient step as one compiled function.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore] # it brings no types

from cleanrl_worker.training.args import JaxSaveArgs
from cleanrl_worker.training.continuous import HIDDEN, Bounds
from cleanrl_worker.training.envs import require_continuous_actions, require_vectors
from cleanrl_worker.training.jax_tools import Jitted, Learner, copied, model_bytes, moved, prepare
from cleanrl_worker.training.replay import Batch, make_replay
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(JaxSaveArgs):
    """DDPG on environments with vector observations and bounded continuous actions, in JAX."""

    exp_name: str = "ddpg_continuous_action_jax"
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
    """the gradient steps of the critic for each of the actor and each update of the target networks"""


class Actor(nn.Module):
    """obs-256-256-actions, squashed into the bounds by tanh."""

    action_size: int
    scale: Any
    bias: Any

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        hidden = obs
        for width in HIDDEN:
            hidden = nn.relu(nn.Dense(width)(hidden))
        action: jax.Array = jnp.tanh(nn.Dense(self.action_size)(hidden)) * self.scale + self.bias
        return action


class QNetwork(nn.Module):
    """(obs, action)-256-256-1."""

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        hidden = jnp.concatenate((obs, action), axis=1)
        for width in HIDDEN:
            hidden = nn.relu(nn.Dense(width)(hidden))
        value: jax.Array = nn.Dense(1)(hidden)[:, 0]
        return value


class State(NamedTuple):
    """All that gradient steps change."""

    actor: Any
    qf1: Any
    target_actor: Any
    target_qf1: Any
    actor_moments: Any
    q_moments: Any


class Networks(NamedTuple):
    """What never changes: the networks' shapes, the optimizer and two flags."""

    actor: Any
    critic: Any
    optimizer: optax.GradientTransformation
    gamma: float
    tau: float


def update_critic(nets: Networks, state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One gradient step of the critic. Also gives its loss and the mean of Q(s, a)."""
    next_actions = nets.actor.apply(state.target_actor, batch.next_obs)
    next_value = nets.critic.apply(state.target_qf1, batch.next_obs, next_actions)
    target = batch.reward + nets.gamma * (1.0 - batch.terminated) * next_value

    def loss_of(params: Any) -> tuple[jax.Array, jax.Array]:
        value = nets.critic.apply(params, batch.obs, batch.action)
        return jnp.mean((value - target) ** 2), value.mean()

    (loss, mean_value), grads = jax.value_and_grad(loss_of, has_aux=True)(state.qf1)
    updates, moments = nets.optimizer.update(grads, state.q_moments)
    state = state._replace(qf1=optax.apply_updates(state.qf1, updates), q_moments=moments)
    return state, jnp.stack((loss, mean_value))


def update_actor(nets: Networks, state: State, obs: jax.Array) -> tuple[State, jax.Array]:
    """One gradient step of the actor, after which the target networks follow. Also gives the actor's loss."""

    def loss_of(params: Any) -> jax.Array:
        return -jnp.mean(nets.critic.apply(state.qf1, obs, nets.actor.apply(params, obs)))

    loss, grads = jax.value_and_grad(loss_of)(state.actor)
    updates, moments = nets.optimizer.update(grads, state.actor_moments)
    actor = optax.apply_updates(state.actor, updates)
    state = state._replace(
        actor=actor,
        actor_moments=moments,
        target_actor=moved(state.target_actor, actor, nets.tau),
        target_qf1=moved(state.target_qf1, state.qf1, nets.tau),
    )
    return state, loss


def train(args: Args, run: Run) -> None:
    envs = run.make_envs(1, clip_actions=True)
    obs_size = require_vectors(envs, "ddpg_continuous_action_jax")
    action_size = require_continuous_actions(envs, "ddpg_continuous_action_jax", instead="dqn_jax", bounded=True)
    rng, bounds = run.rng, Bounds(envs.single_action_space)
    replay, key = make_replay(run, envs), prepare(run)

    nets = Networks(
        Actor(action_size, bounds.scale, bounds.bias), QNetwork(), optax.adam(args.learning_rate), args.gamma, args.tau
    )
    actor_key, critic_key = jax.random.split(key)
    no_obs, no_action = np.zeros((1, obs_size), np.float32), np.zeros((1, action_size), np.float32)
    actor = nets.actor.init(actor_key, no_obs)
    qf1 = nets.critic.init(critic_key, no_obs, no_action)
    learner = Learner(
        State(actor, qf1, copied(actor), copied(qf1), nets.optimizer.init(actor), nets.optimizer.init(qf1))
    )
    agent = learner.part("actor", "qf1")
    run.keep(agent=agent, targets=learner.part("target_actor", "target_qf1"))
    run.keep(optimizers=learner.part("actor_moments", "q_moments"), losses=(latest := {"actor": 0.0}))

    act = Jitted(run, "the policy", nets.actor.apply)
    learn_values = Jitted(run, "the critic's gradient step", partial(update_critic, nets), donate=(0,))
    learn_policy = Jitted(run, "the actor's gradient step", partial(update_actor, nets), donate=(0,))
    run.start()
    if not run.restored:
        state = learner.state
        learner.state = state._replace(target_actor=copied(state.actor), target_qf1=copied(state.qf1))

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
            qf1_loss, qf1_value = np.asarray(figures).tolist()
            run.guard(qf1_loss=qf1_loss)
            if run.step % args.policy_frequency == 0:
                learner.state, actor_loss = learn_policy(learner.state, batch.obs)
                latest["actor"] = float(actor_loss)
                run.guard(actor_loss=latest["actor"])
            if run.step % 100 == 0:
                run.scalars(
                    {
                        "losses/qf1_values": qf1_value,
                        "losses/qf1_loss": qf1_loss,
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

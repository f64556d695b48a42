"""C51 (Bellemare, Dabney & Munos 2017) for vector observations, in JAX: Q-learning on the distribution of returns.

The network gives, for each action, a probability for each of `n_atoms` fixed returns between `v_min` and `v_max`. The
target is the distribution of r + gamma * Z(s', a*), projected back onto the atoms; the loss is the cross entropy to it. The
same algorithm as `c51`, with the gradient step as one compiled function.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore] # it brings no types

from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.algorithms.dqn_jax import State
from cleanrl_worker.training.args import JaxSaveArgs
from cleanrl_worker.training.envs import require_discrete_actions, require_vectors
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.jax_tools import Jitted, Learner, copied, model_bytes, plain, prepare
from cleanrl_worker.training.replay import Batch, make_replay
from cleanrl_worker.training.run import Run, launch

SMALLEST = 1e-5
"""Probabilities are kept this far from 0 and 1 before their logarithm is taken; outside they pass no gradient."""


@dataclass
class Args(JaxSaveArgs):
    """C51 on environments with vector observations and discrete actions, in JAX."""

    exp_name: str = "c51_jax"
    """the name of this experiment"""
    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = 500000
    """total timesteps of the experiment"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of environments; must be 1"""
    n_atoms: int = 101
    """the number of atoms of the return's distribution"""
    v_min: float = -100
    """the return of the lowest atom"""
    v_max: float = 100
    """the return of the highest atom"""
    buffer_size: int = 10000
    """how many transitions the replay memory holds"""
    gamma: float = 0.99
    """the discount factor gamma"""
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


class QNetwork(nn.Module):
    """obs-120-84-(actions * atoms) with ReLU: a distribution over the atoms for each action."""

    num_actions: int
    n_atoms: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        """Probabilities (batch, actions, atoms)."""
        hidden = nn.relu(nn.Dense(120)(obs))
        hidden = nn.relu(nn.Dense(84)(hidden))
        logits = nn.Dense(self.num_actions * self.n_atoms)(hidden)
        return nn.softmax(logits.reshape(-1, self.num_actions, self.n_atoms), axis=-1)


def project(pmfs: jax.Array, reward: Any, discount: Any, atoms: Any) -> jax.Array:
    """The distribution of reward + discount * Z, Z distributed as `pmfs`, on the same atoms.

    A return between two atoms is shared between them in proportion to its closeness; one beyond the ends goes to the end.
    """
    count = len(atoms)
    returns = reward[:, None] + discount[:, None] * atoms[None, :]
    place = jnp.clip((returns - atoms[0]) / (atoms[1] - atoms[0]), 0.0, count - 1.0)
    lower = jnp.floor(place).astype(jnp.int32)
    above = (place - lower) * pmfs
    row = jnp.arange(len(pmfs))[:, None]
    shared = jnp.zeros_like(pmfs).at[row, lower].add(pmfs - above)
    return shared.at[row, jnp.minimum(lower + 1, count - 1)].add(above)


def c51_update(
    network: Any,
    optimizer: optax.GradientTransformation,
    atoms: np.ndarray,
    gamma: float,
    state: State,
    batch: Batch,
) -> tuple[State, jax.Array]:
    """One gradient step. Also gives the loss and the mean of Q(s, a)."""
    row = jnp.arange(len(batch.action))
    next_pmfs = network.apply(state.target, batch.next_obs)
    best = (next_pmfs @ atoms).argmax(axis=1)
    wanted = project(next_pmfs[row, best], batch.reward, gamma * (1.0 - batch.terminated), atoms)

    def loss_of(params: Any) -> tuple[jax.Array, jax.Array]:
        pmfs = network.apply(params, batch.obs)[row, batch.action]
        logs = jnp.log(jnp.clip(pmfs, SMALLEST, 1.0 - SMALLEST))
        return -(wanted * logs).sum(axis=1).mean(), (pmfs @ atoms).mean()

    (loss, mean_value), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    updates, moments = optimizer.update(grads, state.moments)
    return State(optax.apply_updates(state.params, updates), state.target, moments), jnp.stack((loss, mean_value))


def check_atoms(algo: str, n_atoms: int, v_min: float, v_max: float) -> None:
    if n_atoms < 2 or v_min >= v_max:
        raise BadConfig(
            f"{algo} needs at least two atoms between its bounds: set --n-atoms to 2 or more and --v-min below --v-max."
        )


def train(args: Args, run: Run) -> None:
    if args.num_envs != 1:
        raise BadConfig(f"c51_jax learns from one environment: set --num-envs 1, not {args.num_envs}.")
    check_atoms("c51_jax", args.n_atoms, args.v_min, args.v_max)
    envs = run.make_envs(args.num_envs)
    obs_size = require_vectors(envs, "c51_jax", instead="c51_atari_jax")
    num_actions = require_discrete_actions(envs, "c51_jax", instead="td3_continuous_action_jax")
    rng, replay, key = run.rng, make_replay(run, envs), prepare(run)

    atoms = np.linspace(args.v_min, args.v_max, args.n_atoms, dtype=np.float32)
    network: Any = QNetwork(num_actions, args.n_atoms)
    optimizer = optax.adam(args.learning_rate, eps=0.01 / args.batch_size)
    params = network.init(key, np.zeros((1, obs_size), np.float32))
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
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0])

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

"""C51 (Bellemare, Dabney & Munos 2017) for vector observations: Q-learning on the distribution of returns.

The network gives, for each action, a probability for each of `n_atoms` fixed returns between `v_min` and `v_max`. The
target is the distribution of r + gamma * Z(s', a*), projected back onto the atoms; the loss is the cross entropy to it.

The networks are computed in NumPy on the CPU (see `training/dense.py`), so `--cuda` changes nothing here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cleanrl_worker.algorithms.dqn import linear_schedule
from cleanrl_worker.training.args import SaveArgs
from cleanrl_worker.training.dense import Adam, Array, Net, mean, polyak
from cleanrl_worker.training.envs import require_discrete_actions, require_vectors
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.replay import Batch, make_replay
from cleanrl_worker.training.run import Run, launch

SMALLEST = 1e-5
"""Probabilities are kept this far from 0 and 1 before their logarithm is taken; outside they pass no gradient."""


@dataclass
class Args(SaveArgs):
    """C51 on environments with vector observations and discrete actions."""

    exp_name: str = "c51"
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


class QNetwork(Net):
    """obs-120-84-(actions * atoms), read as one distribution over the atoms per action."""

    def __init__(self, obs_size: int, num_actions: int, atoms: Array) -> None:
        super().__init__(obs_size, (120, 84), heads=(num_actions * len(atoms),), activation="relu")
        self.num_actions, self.atoms = num_actions, atoms
        self._readout = np.stack((atoms, np.ones_like(atoms)), axis=1)

    def logits(self, obs: Array) -> Array:
        """(batch, actions, atoms)"""
        return self.forward(obs)[0].reshape(-1, self.num_actions, len(self.atoms))

    def greedy(self, obs: Array) -> tuple[np.ndarray, Array]:
        """The actions with the highest expected return, and their distributions (batch, atoms)."""
        weights = self.predict(obs)[0].reshape(-1, self.num_actions, len(self.atoms))
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        sums = np.matmul(weights, self._readout)  # the expected return and the probability, both not yet normalised
        actions = (sums[:, :, 0] / sums[:, :, 1]).argmax(axis=1)
        best = np.arange(len(actions)), actions
        return actions, weights[best] / sums[best][:, 1:]


def softmax(logits: Array) -> Array:
    """Probabilities over the last axis."""
    weights: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def project(pmfs: Array, reward: Array, discount: Array, atoms: Array) -> Array:
    """The distribution of reward + discount * Z, Z distributed as `pmfs`, on the same atoms.

    A return between two atoms is shared between them in proportion to its closeness; one beyond the ends goes to the end.
    """
    size, count = pmfs.shape
    spacing = atoms[1] - atoms[0]
    place = np.multiply(discount[:, None], atoms / spacing)
    place += ((reward - atoms[0]) / spacing)[:, None]
    np.clip(place, 0.0, count - 1.0, out=place)
    lower = np.floor(place)
    above = np.multiply(np.subtract(place, lower, out=place), pmfs, out=place)
    index = lower.astype(np.intp)
    index += (np.arange(size) * count)[:, None]
    # Nothing is above the last atom, so its neighbour may as well be the next row's first.
    projected = np.zeros(size * count + 1, np.float32)
    np.add.at(projected, index.ravel(), (pmfs - above).ravel())
    np.add.at(projected[1:], index.ravel(), above.ravel())
    return projected[:-1].reshape(size, count)


def cross_entropy(pmfs: Array, target: Array) -> tuple[float, Array]:
    """The mean cross entropy to `target`, and its gradient at the logits behind `pmfs`."""
    inside = (pmfs > SMALLEST) & (pmfs < 1.0 - SMALLEST)
    logs = np.log(np.clip(pmfs, SMALLEST, 1.0 - SMALLEST))
    loss = -float(np.vdot(target, logs)) / len(pmfs)
    passed = target * inside
    grad = (pmfs * passed.sum(axis=1, keepdims=True) - passed) / len(pmfs)
    return loss, grad


def update(q_network: QNetwork, target: QNetwork, optimizer: Adam, batch: Batch, gamma: float) -> tuple[float, float]:
    """One gradient step. Returns the loss and the mean of Q(s, a)."""
    _, next_pmfs = target.greedy(batch.next_obs)
    wanted = project(next_pmfs, batch.reward, gamma * (1.0 - batch.terminated), q_network.atoms)

    logits = q_network.logits(batch.obs)
    taken = np.arange(len(batch.action)), batch.action
    pmfs = softmax(logits[taken])
    loss, grad_taken = cross_entropy(pmfs, wanted)

    grad = np.zeros_like(logits)
    grad[taken] = grad_taken
    q_network.backward((grad.reshape(len(grad), -1),))
    optimizer.step(q_network.grad)
    return loss, mean(np.matmul(pmfs, q_network.atoms))


def train(args: Args, run: Run) -> None:
    if args.num_envs != 1:
        raise BadConfig(f"c51 learns from one environment: set --num-envs 1, not {args.num_envs} (pqn takes several).")
    if args.n_atoms < 2 or args.v_min >= args.v_max:
        raise BadConfig(
            "c51 needs at least two atoms between its bounds: set --n-atoms to 2 or more and --v-min below --v-max."
        )
    envs = run.make_envs(args.num_envs)
    obs_size = require_vectors(envs, "c51", instead="c51_atari")
    num_actions = require_discrete_actions(envs, "c51", instead="td3_continuous_action")
    rng = run.rng
    replay = make_replay(run, envs)

    atoms = np.linspace(args.v_min, args.v_max, args.n_atoms, dtype=np.float32)
    q_network, target_network = (QNetwork(obs_size, num_actions, atoms) for _ in range(2))
    q_network.init_uniform(rng)
    optimizer = Adam(q_network.flat, args.learning_rate, eps=0.01 / args.batch_size)
    run.keep(agent=q_network, target_network=target_network, optimizer=optimizer)
    run.start()
    if not run.restored:
        target_network.flat[:] = q_network.flat

    while run.step < args.total_timesteps:
        epsilon = linear_schedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps, run.step)
        obs = envs.obs
        explore = rng.random() < epsilon
        actions = np.array([rng.integers(num_actions)]) if explore else q_network.greedy(obs)[0]
        step = envs.step(actions)
        replay.add(obs[0], actions[0], step.rewards[0], step.next_obs[0], step.terminated[0])

        if run.step > args.learning_starts:
            if run.step % args.train_frequency == 0:
                loss, mean_q = update(q_network, target_network, optimizer, replay.sample(args.batch_size), args.gamma)
                run.guard(loss=loss)
                if run.step % 100 == 0:
                    run.scalars({"losses/loss": loss, "losses/q_values": mean_q, "charts/SPS": run.sps})
            if run.step % args.target_network_frequency == 0:
                polyak(target_network.flat, q_network.flat, tau=1.0)
        run.tick(step)

    def model() -> dict[str, Any]:
        return {"model_weights": {"atoms": atoms, **q_network.state_dict()}, "args": asdict(args)}

    run.finish(model=model)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

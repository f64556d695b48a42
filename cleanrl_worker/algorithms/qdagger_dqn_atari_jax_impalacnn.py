"""QDagger (Agarwal et al. 2022) on Atari games, with a student in JAX.

The phases, the teacher and the flags are those of `qdagger_dqn_atari_impalacnn`; what differs is the student: its gradient step
is one compiled function, and it starts from flax's own initial weights. These make the first values of the actions about ten
times as different as torch's do, so it learns more slowly from a teacher whose values differ by less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax  # type: ignore[import-untyped, unused-ignore] # it brings no types

from cleanrl_worker.agents.jax_atari import ImpalaQNetwork
from cleanrl_worker.algorithms.dqn_jax import State
from cleanrl_worker.algorithms.qdagger_dqn_atari_impalacnn import Figures, Flags, Lesson, checked_envs, learn
from cleanrl_worker.training.args import JaxSaveArgs
from cleanrl_worker.training.jax_tools import Jitted, Learner, copied, model_bytes, moved, prepare
from cleanrl_worker.training.run import Run, launch


@dataclass
class Args(Flags, JaxSaveArgs):
    """QDagger with an IMPALA network in JAX as the student."""

    exp_name: str = "qdagger_dqn_atari_jax_impalacnn"
    """the name of this experiment"""
    teacher_model_exp_name: str = "dqn_atari_jax"
    """the experiment whose model the teacher's repository holds"""


def update(
    network: Any,
    optimizer: optax.GradientTransformation,
    args: Args,
    state: State,
    lesson: Lesson,
    weight: float,
) -> tuple[State, jax.Array]:
    """One gradient step. Also gives the loss, its two parts, and the mean of Q(s, a)."""
    batch = lesson.batch
    target = batch.reward + args.gamma * (1.0 - batch.terminated) * network.apply(state.target, batch.next_obs).max(
        axis=1
    )

    def loss_of(params: Any) -> tuple[jax.Array, jax.Array]:
        q = network.apply(params, batch.obs)
        value = jnp.take_along_axis(q, batch.action[:, None], axis=1)[:, 0]
        q_loss = jnp.mean((value - target) ** 2)
        cross_entropy = -(lesson.advice * jax.nn.log_softmax(q / args.temperature, axis=1)).sum(axis=1)
        distill_loss = (cross_entropy * lesson.advised).sum() / lesson.advised.sum()
        loss = q_loss + weight * distill_loss
        return loss, jnp.stack((loss, q_loss, distill_loss, value.mean()))

    grads, figures = jax.grad(loss_of, has_aux=True)(state.params)
    updates, moments = optimizer.update(grads, state.moments)
    return State(optax.apply_updates(state.params, updates), state.target, moments), figures


class JaxStudent:
    """The residual network of IMPALA, in JAX."""

    def __init__(self, args: Args, run: Run, obs_shape: tuple[int, ...], num_actions: int) -> None:
        key = prepare(run)
        network: Any = ImpalaQNetwork(num_actions)
        optimizer = optax.adam(args.learning_rate)
        params = network.init(key, np.zeros((1, *obs_shape), np.uint8))
        self.learner = Learner(State(params, copied(params), optimizer.init(params)))
        self._act = Jitted(run, "the policy", lambda params, obs: network.apply(params, obs).argmax(axis=1))
        self._update = Jitted(run, "the gradient step", partial(update, network, optimizer, args), donate=(0,))
        self._moved = Jitted(run, "the target network's update", moved)

    def act(self, obs: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        return np.asarray(self._act(self.learner.state.params, obs))

    def learn(self, lesson: Lesson, weight: float) -> Figures:
        self.learner.state, figures = self._update(self.learner.state, lesson, weight)
        return Figures(*np.asarray(figures).tolist())

    def follow(self, tau: float) -> None:
        state = self.learner.state
        target = copied(state.params) if tau == 1.0 else self._moved(state.target, state.params, tau)
        self.learner.state = state._replace(target=target)

    def model(self) -> Any:
        return model_bytes(self.learner.state.params)


def train(args: Args, run: Run) -> None:
    envs, num_actions = checked_envs(args, run)
    student = JaxStudent(args, run, envs.obs_shape, num_actions)
    part = student.learner.part
    run.keep(agent=part("params"), target_network=part("target"), optimizer=part("moments"))
    learn(args, run, envs, num_actions, student)


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""PPO on Atari games in JAX, with envpool stepped from within compiled functions.

The algorithm is `ppo_atari`'s, with the value loss unclipped. Rows in which envpool only restarts a game have no weight in it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore] # it brings no types

from cleanrl_worker.agents.jax_ppo import Actor, Critic, Network
from cleanrl_worker.algorithms import ppo_atari
from cleanrl_worker.training.jax_envpool import Outcome, PoolState, XlaAtari
from cleanrl_worker.training.jax_tools import Jitted, Learner, model_bytes, prepare
from cleanrl_worker.training.rollout import RecentReturns, check_rollouts
from cleanrl_worker.training.run import Run, launch

ACTION_SPACES = ("discrete",)
LOSSES = ("losses/loss", "losses/policy_loss", "losses/value_loss", "losses/entropy", "losses/approx_kl")


@dataclass
class Args(ppo_atari.Args):
    exp_name: str = "ppo_atari_envpool_xla_jax"
    """the name of this experiment"""
    env_id: str = "Breakout-v5"
    """the id of the environment, as envpool calls it"""
    clip_vloss: bool = True
    """taken for compatibility: the value loss is never clipped here"""
    target_kl: float | None = None
    """taken for compatibility: the passes over a rollout are never cut short here"""


class State(NamedTuple):
    """All that learning changes."""

    network: Any
    actor: Any
    critic: Any
    moments: Any
    key: Any

    @property
    def params(self) -> tuple[Any, Any, Any]:
        return self.network, self.actor, self.critic


class Transitions(NamedTuple):
    """A rollout (steps, environments), or with both merged a minibatch of it."""

    obs: Any
    actions: Any
    logprobs: Any
    values: Any
    advantages: Any
    returns: Any
    valid: Any


class PPO:
    """The functions of the algorithm, pure, to be compiled."""

    def __init__(self, args: Args, envs: XlaAtari) -> None:
        self.args, self.envs = args, envs
        self.network, self.actor, self.critic = Network(), Actor(int(envs.single_action_space.n)), Critic()
        self.optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def init(self, key: jax.Array) -> State:
        keys = jax.random.split(key, 4)
        images = np.zeros((1, *self.envs.obs_shape), np.uint8)
        network = self.network.init(keys[0], images)
        features = self.network.apply(network, images)
        params = network, self.actor.init(keys[1], features), self.critic.init(keys[2], features)
        return State(*params, self.optimizer.init(params), keys[3])

    def look(self, params: tuple[Any, Any, Any], obs: Any) -> tuple[Any, Any]:
        """Logits and values."""
        features = self.network.apply(params[0], obs)
        return self.actor.apply(params[1], features), self.critic.apply(params[2], features)

    def step(self, state: State, games: PoolState) -> tuple[State, PoolState, Transitions, Outcome]:
        """Choose actions and make one step of all games."""
        key, noise_key = jax.random.split(state.key)
        logits, values = self.look(state.params, games.obs)
        # Gumbel-max: the largest of logit + noise is a sample from the softmax.
        actions = jnp.argmax(logits + jax.random.gumbel(noise_key, logits.shape), axis=1)
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], axis=1)[:, 0]
        after, outcome = self.envs.step(games, actions)
        nothing = jnp.zeros_like(values)
        row = Transitions(games.obs, actions, logprobs, values, nothing, nothing, outcome.valid)
        return state._replace(key=key), after, row, outcome

    def gae(
        self, params: tuple[Any, Any, Any], rollout: Transitions, outcome: Outcome, games: PoolState
    ) -> Transitions:
        """Fill in advantages and returns (Schulman et al. 2016). A row after an end shows what the episode ended with."""
        args = self.args
        last = self.look(params, games.obs)[1]
        following = jnp.concatenate([rollout.values[1:], last[None]])
        deltas = outcome.rewards + args.gamma * following * ~outcome.terminated - rollout.values
        carry = args.gamma * args.gae_lambda * ~(outcome.terminated | outcome.truncated)

        def back(running: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
            running = now[0] + now[1] * running
            return running, running

        _, advantages = jax.lax.scan(back, jnp.zeros_like(last), (deltas, carry), reverse=True)
        return rollout._replace(advantages=advantages, returns=advantages + rollout.values)

    def loss(self, params: tuple[Any, Any, Any], batch: Transitions) -> tuple[Any, Any]:
        """The clipped surrogate, the value error and the entropy bonus; with the figures that are logged."""
        args, weight = self.args, batch.valid.astype(jnp.float32)
        weight = weight / jnp.maximum(weight.sum(), 1.0)

        def mean(x: Any) -> Any:
            return (x * weight).sum()

        logits, values = self.look(params, batch.obs)
        every = jax.nn.log_softmax(logits)
        logratio = jnp.take_along_axis(every, batch.actions[:, None], axis=1)[:, 0] - batch.logprobs
        ratio = jnp.exp(logratio)
        advantages = batch.advantages
        if args.norm_adv:
            centred = advantages - mean(advantages)
            advantages = centred / (jnp.sqrt(mean(centred**2)) + 1e-8)
        clipped = jnp.clip(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
        policy_loss = mean(jnp.maximum(-advantages * ratio, -advantages * clipped))
        value_loss = 0.5 * mean((values - batch.returns) ** 2)
        entropy = mean(-(jnp.exp(every) * every).sum(axis=1))
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
        kl = mean(ratio - 1 - logratio)
        return loss, jax.lax.stop_gradient(jnp.stack((loss, policy_loss, value_loss, entropy, kl)))

    def learn(self, state: State, batch: Transitions, lr: Any) -> tuple[State, Any]:
        """One step down the gradient."""
        (_, figures), grads = jax.value_and_grad(self.loss, has_aux=True)(state.params, batch)
        updates, moments = self.optimizer.update(grads, state.moments)
        network, actor, critic = jax.tree.map(lambda old, update: old - lr * update, state.params, updates)
        return State(network, actor, critic, moments, state.key), figures


def merged(rollout: Transitions) -> Transitions:
    """Steps and environments as one axis."""
    return Transitions(*(x.reshape(-1, *x.shape[2:]) for x in rollout))


def rows_of(batch: Transitions, rows: Any) -> Transitions:
    return Transitions(*(x[rows] for x in batch))


def begin(args: Args, run: Run) -> tuple[PPO, Learner[State], XlaAtari, RecentReturns]:
    """Games, networks and what checkpoints keep; started, or where the checkpoint left off."""
    check_rollouts(args)
    if args.target_kl is not None:
        run.note("--target-kl has no effect in this algorithm: use ppo_atari_envpool.", level="warning")
    envs = run.use_envs(XlaAtari(args.env_id, args.num_envs, seed=args.seed, render=bool(run.publisher.shown_slots)))
    ppo = PPO(args, envs)
    key = prepare(run)
    learner = Learner(Jitted(run, "the networks' first weights", ppo.init)(key))
    recent = RecentReturns(lengths=True)
    run.keep(
        agent=learner.part("network", "actor", "critic"),
        optimizer=learner.part("moments"),
        key=learner.part("key"),
        recent=recent,
    )
    run.start()
    return ppo, learner, envs, recent


def finish(args: Args, run: Run, learner: Learner[State]) -> None:
    """The model file holds the flags, and the parameters of trunk, actor and critic."""
    run.finish(model=lambda: model_bytes([vars(args), list(learner.state.params)]))


def train(args: Args, run: Run) -> None:
    ppo, learner, envs, recent = begin(args, run)
    step = Jitted(run, "the step of policy and games", ppo.step)
    gae = Jitted(run, "the advantages", ppo.gae)
    learn = Jitted(run, "the gradient step", lambda state, batch, rows, lr: ppo.learn(state, rows_of(batch, rows), lr))
    stack = Jitted(run, "the rollout's layout", lambda rows: jax.tree.map(lambda *x: jnp.stack(x), *rows))

    while (iteration := run.step // args.batch_size) < args.num_iterations:
        began = time.monotonic()
        rows, outcomes = [], []
        for _ in range(args.num_steps):
            learner.state, envs.state, row, outcome = step(learner.state, envs.state)
            rows.append(row)
            outcomes.append(outcome)
            for counted in envs.steps(Outcome(*(np.asarray(part)[None] for part in outcome))):
                recent.log(run, counted)
                run.tick(counted)
        rollout, result = stack(rows), stack(outcomes)
        batch = merged(gae(learner.state.params, rollout, result, envs.state))
        lr = args.learning_rate * (1 - iteration / args.num_iterations) if args.anneal_lr else args.learning_rate
        for _ in range(args.update_epochs):
            for chosen in np.split(run.rng.permutation(args.batch_size), args.num_minibatches):
                learner.state, figures = learn(learner.state, batch, chosen, lr)
        report(args, run, np.asarray(figures), lr, began)
    finish(args, run, learner)


def report(args: Args, run: Run, figures: np.ndarray, lr: float, began: float) -> None:
    losses = dict(zip(LOSSES, figures.tolist(), strict=True))
    run.guard(**losses)
    speed = int(args.batch_size / max(time.monotonic() - began, 1e-9))
    run.scalars({"charts/learning_rate": lr, "charts/SPS": run.sps, "charts/SPS_update": speed, **losses})


def main(argv: list[str] | None = None) -> int:
    return launch(Args, train, argv)


if __name__ == "__main__":
    raise SystemExit(main())

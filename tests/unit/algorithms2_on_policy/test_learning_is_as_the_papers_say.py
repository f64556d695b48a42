"""Losses, targets, passes and optimizers against known values; flags that can't work are refused with what would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_worker.agents.atari import NatureAgent
from cleanrl_worker.algorithms import ppg_procgen, ppo_atari, ppo_atari_lstm, ppo_atari_multigpu, ppo_procgen
from cleanrl_worker.algorithms import ppo_rnd_envpool as rnd_algorithm
from cleanrl_worker.algorithms.ppo_pettingzoo_ma_atari import as_switches
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.ppo_torch import FlatRAdam, ppo_loss
from cleanrl_worker.training.rollout import Passes, check_rollouts


def test_flat_radam_equals_torchs() -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    theirs = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    theirs.load_state_dict(ours.state_dict())
    flat = FlatRAdam(ours)
    reference = torch.optim.RAdam(theirs.parameters(), lr=0.01)
    for step in range(20):
        x = torch.randn(8, 3) * (step + 1)
        for network, optimizer in ((ours, flat), (theirs, reference)):
            optimizer.zero_grad()
            network(x).square().mean().backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        flat.step(0.01, 0.5)
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_passes_that_were_cut_go_on_where_they_stopped() -> None:
    def rest(passes: Passes, rng: np.random.Generator) -> list[list[int]]:
        return [rows.tolist() for rows in passes.rows(rng, 3, 2)]

    whole = rest(Passes(6), np.random.default_rng(1))
    assert len(whole) == 6 and sorted(whole[0] + whole[1]) == list(range(6))
    for cut in range(1, 7):
        rng, first = np.random.default_rng(1), Passes(6, values=np.zeros(2))
        seen = []
        for rows in first.rows(rng, 3, 2):
            seen.append(rows.tolist())
            if len(seen) == cut:
                break
        second = Passes(6, values=np.zeros(2))
        second.load_state_dict(first.state_dict())
        assert second.begun
        assert seen + rest(second, rng) == whole, f"cut after {cut}"


def test_passes_end_with_the_epoch_that_went_too_far() -> None:
    passes, count = Passes(4), 0
    for _ in passes.rows(np.random.default_rng(0), 5, 2):
        count += 1
        passes.stop_if(True, 5, 2)
    assert count == 2


def test_the_jax_loss_equals_torchs_and_rows_without_weight_do_not_count() -> None:
    pytest.importorskip("jax")
    import jax

    from cleanrl_worker.algorithms.ppo_atari_envpool_xla_jax import PPO, Args, Transitions

    args = Args(clip_vloss=False)
    envs: Any = SimpleNamespace(single_action_space=SimpleNamespace(n=5), obs_shape=(4, 84, 84))
    ppo = PPO(args, envs)
    rng = np.random.default_rng(0)
    logits, values = rng.normal(size=(8, 5)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    ppo.look = lambda params, obs: params  # type: ignore[method-assign,assignment]
    actions = rng.integers(0, 5, 8)
    old, advantage, returns = (rng.normal(size=8).astype(np.float32) for _ in range(3))
    old -= 2.0
    batch = Transitions(np.zeros((8, 1)), actions, old, values, advantage, returns, np.ones(8, bool))
    (_, figures), grads = jax.value_and_grad(ppo.loss, has_aux=True)((logits, values), batch)

    tensors = [torch.tensor(x) for x in (actions, old, values, advantage, returns)]
    leaf, value_leaf = torch.tensor(logits, requires_grad=True), torch.tensor(values, requires_grad=True)
    plain = Args(clip_vloss=False, norm_adv=False)
    spread = tensors[3] - tensors[3].mean()
    tensors[3] = spread / (spread.square().mean().sqrt() + 1e-8)
    parts = ppo_loss(leaf, value_leaf, *tensors, plain)
    parts.loss.backward()
    expected = [x.item() for x in (parts.loss, parts.policy_loss, parts.value_loss, parts.entropy, parts.approx_kl)]
    np.testing.assert_allclose(figures, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads[0], leaf.grad, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(grads[1], value_leaf.grad, rtol=1e-3, atol=1e-6)

    valid = np.array([True] * 6 + [False] * 2)
    (masked, _), masked_grads = jax.value_and_grad(ppo.loss, has_aux=True)(
        (logits, values), batch._replace(valid=valid)
    )
    short = Transitions(*(x[:6] for x in batch))
    alone, _ = ppo.loss((logits[:6], values[:6]), short)
    np.testing.assert_allclose(masked, alone, rtol=1e-5)
    assert not np.asarray(masked_grads[0][6:]).any()


def test_the_jax_advantages_stop_at_ends_and_bootstrap_where_an_episode_was_cut() -> None:
    pytest.importorskip("jax")
    import jax.numpy as jnp

    from cleanrl_worker.algorithms.ppo_atari_envpool_xla_jax import PPO, Args, Transitions
    from cleanrl_worker.training.jax_envpool import Outcome, PoolState

    args = Args(gamma=0.5, gae_lambda=1.0)
    envs: Any = SimpleNamespace(single_action_space=SimpleNamespace(n=2), obs_shape=(4, 84, 84))
    ppo = PPO(args, envs)
    ppo.look = lambda _params, obs: (None, obs)  # type: ignore[method-assign,assignment]
    # one column ends at step 1 by termination, one by truncation; step 2 only restarts, step 3 belongs to the next episode
    values = jnp.array([[1.0, 1.0], [2.0, 2.0], [8.0, 8.0], [4.0, 4.0]])
    rewards = jnp.array([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    terminated = jnp.zeros((4, 2), bool).at[1, 0].set(True)
    truncated = jnp.zeros((4, 2), bool).at[1, 1].set(True)
    valid = jnp.ones((4, 2), bool).at[2].set(False)
    blank = jnp.zeros((4, 2))
    rollout = Transitions(blank, blank, blank, values, blank, blank, valid)
    outcome = Outcome(rewards, terminated, truncated, valid, rewards, terminated)
    games = PoolState(None, jnp.array([6.0, 6.0]), jnp.zeros(2, bool))
    returns = np.asarray(ppo.gae((None, None, None), rollout, outcome, games).returns)
    # backwards: 1 + 0.5 * 6 = 4;  terminated: 1;  cut off: 1 + 0.5 * 8 = 5, by the value of what it was cut at
    np.testing.assert_allclose(returns[3], [4.0, 4.0])
    np.testing.assert_allclose(returns[1], [1.0, 5.0])
    np.testing.assert_allclose(returns[0], [1.5, 3.5])


def test_curiosity_is_divided_by_the_deviation_of_its_discounted_sum() -> None:
    scale = rnd_algorithm.CuriosityScale(2, 0.5)
    rewards = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], np.float32)
    sums = np.array([[1.0, 0.0], [0.5, 2.0], [1.25, 2.0]])
    np.testing.assert_allclose(scale.scale(rewards), rewards / sums.std(), rtol=1e-3)
    np.testing.assert_allclose(scale.discounted, sums[-1])


@pytest.mark.parametrize(
    ("algorithm", "flags", "sentence"),
    [
        (ppo_atari, {"num_minibatches": 3}, "choose a divisor of 1024"),
        (ppo_atari, {"num_envs": 0}, "--num-envs must be at least 1"),
        (ppo_atari, {"update_epochs": 0}, "--update-epochs must be at least 1"),
        (ppo_atari, {"total_timesteps": 1000}, "Use at least 1024"),
        (ppo_procgen, {"total_timesteps": 2048}, "Use at least 16384"),
        (rnd_algorithm, {"total_timesteps": 2048}, "Use at least 16384"),
    ],
)
def test_flags_that_leave_nothing_to_learn_are_refused(algorithm: Any, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        check_rollouts(algorithm.Args(**flags))


def test_sequences_stay_whole() -> None:
    with pytest.raises(BadConfig, match="whole sequences"):
        check_rollouts(ppo_atari_lstm.Args(num_envs=6), whole_sequences=True)


def test_less_than_a_phase_is_refused_with_the_size_of_one() -> None:
    with pytest.raises(BadConfig, match=r"less than one phase.*Use at least 524288"):
        ppg_procgen.check(ppg_procgen.Args(total_timesteps=500_000))
    with pytest.raises(BadConfig, match="--num-aux-rollouts 3 does not divide"):
        ppg_procgen.check(ppg_procgen.Args(num_aux_rollouts=3))
    with pytest.raises(BadConfig, match="can't be normalised"):
        ppg_procgen.check(ppg_procgen.Args(num_envs=1, num_steps=1, num_minibatches=1, num_aux_rollouts=1))
    args = ppg_procgen.Args()
    ppg_procgen.check(args)
    assert (args.num_phases, args.num_iterations, args.aux_batch_rollouts) == (47, 1504, 2048)


def test_devices_and_processes_must_agree() -> None:
    with pytest.raises(BadConfig, match="name one for each"):
        ppo_atari_multigpu.check(ppo_atari_multigpu.Args(device_ids=[0, 1]), 3)
    args = ppo_atari_multigpu.Args()
    ppo_atari_multigpu.check(args, 2)
    assert (args.num_envs, args.batch_size, args.local_batch_size, args.local_minibatch_size) == (16, 2048, 1024, 256)


def test_booleans_may_be_written_as_argparse_takes_them() -> None:
    words = [
        "--cuda",
        "False",
        "--capture_video",
        "--track=true",
        "--seed",
        "1",
        "--anneal-lr",
        "True",
        "--no-norm-adv",
    ]
    assert as_switches(words) == [
        *("--no-cuda", "--capture-video", "--track", "--seed", "1", "--anneal-lr", "--no-norm-adv"),
    ]
    assert as_switches(["--cuda=maybe"]) == ["--cuda=maybe"], "left for the parser to refuse"


def test_an_update_moves_towards_better_actions() -> None:
    """One state, two actions, one of them better: its probability rises, and the value nears the return."""
    torch.manual_seed(0)
    from cleanrl_worker.training.ppo_torch import FlatAdam
    from cleanrl_worker.training.rollout import Rollout

    args = ppo_atari.Args(num_envs=4, num_steps=4, num_minibatches=2, update_epochs=2, ent_coef=0.0)
    check_rollouts(args)
    agent = NatureAgent(2)
    optimizer = FlatAdam(agent)
    rollout = Rollout(
        4,
        4,
        obs=((4, 84, 84), np.uint8),
        actions=((), np.int64),
        logprobs=((), np.float32),
        values=((), np.float32),
        rewards=((), np.float32),
        ends=((), np.bool_),
        end_values=((), np.float32),
    )
    image = np.random.default_rng(0).integers(0, 256, (4, 84, 84), dtype=np.uint8)
    rollout.obs[:] = image
    rollout.actions[:] = np.arange(16).reshape(4, 4) % 2
    rollout.logprobs[:] = np.log(0.5)
    rollout.rewards[:] = rollout.actions
    rollout.ends[:] = True
    rollout.t = 4
    looks: list[None] = []
    run: Any = SimpleNamespace(rng=np.random.default_rng(0), guard=lambda **_: None, attend=lambda: looks.append(None))
    passes = Passes(16, last_values=np.zeros(4, np.float32))
    before = agent(torch.from_numpy(image)[None])[0].softmax(-1)[0, 1].item()
    ppo_atari.update(args, run, agent, optimizer, rollout, passes, 1e-3)
    after = agent(torch.from_numpy(image)[None])[0].softmax(-1)[0, 1].item()
    assert after > before
    assert len(looks) == 4, "requests are looked at after every minibatch"
    assert set(passes.figures) >= {"losses/policy_loss", "losses/explained_variance", "losses/clipfrac"}

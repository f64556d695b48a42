"""Adam, RAdam, clipping and Polyak averaging equal torch's, step by step."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from cleanrl_worker.training.dense import Adam, RAdam, clip_grad_norm, polyak


def run_both(ours: Adam, theirs: torch.optim.Optimizer, p: torch.Tensor, steps: int, scale: float) -> None:
    rng = np.random.default_rng(3)
    for t in range(steps):
        grad = (scale * rng.standard_normal(ours.flat.shape)).astype(np.float32)
        lr = 1e-2 * (1 - t / steps)
        theirs.param_groups[0]["lr"] = lr
        p.grad = torch.from_numpy(grad.copy())
        theirs.step()
        ours.step(grad, lr)
        np.testing.assert_allclose(ours.flat, p.detach().numpy(), rtol=2e-5, atol=2e-6, err_msg=f"step {t}")


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("eps", [1e-8, 1e-5, 0.01 / 128])
def test_adam(eps: float, scale: float) -> None:
    start = np.linspace(-1, 1, 50, dtype=np.float32)
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    run_both(Adam(start, eps=eps), torch.optim.Adam([p], eps=eps), p, 200, scale)


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_radam_before_and_after_rectification_sets_in(scale: float) -> None:
    start = np.linspace(-1, 1, 50, dtype=np.float32)
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    run_both(RAdam(start), torch.optim.RAdam([p]), p, 200, scale)


@pytest.mark.parametrize("kind", [Adam, RAdam])
def test_weights_whose_gradients_stopped_cost_no_denormal_numbers(kind: type[Adam]) -> None:
    """As happens below a unit that no longer fires. Where torch keeps denormal moments, ours are zero; the weights agree."""
    start = np.linspace(-1, 1, 50, dtype=np.float32)
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    ours, theirs = kind(start, lr=1e-3), getattr(torch.optim, kind.__name__)([p], lr=1e-3)
    rng = np.random.default_rng(3)
    tiny = np.finfo(np.float32).tiny
    for t in range(1, 1501):
        grad = rng.standard_normal(50).astype(np.float32)
        grad[:25] *= t < 300
        p.grad = torch.from_numpy(grad.copy())
        theirs.step()
        ours.step(grad)
        for moment in (ours.first, ours.second):
            assert not np.any((np.abs(moment) < tiny) & (moment != 0)), f"denormal at step {t}"
    kept = theirs.state[p]["exp_avg"].numpy()[:25]
    assert np.any((np.abs(kept) < tiny) & (kept != 0)), "torch flushes them as well: is this still needed?"
    np.testing.assert_allclose(ours.flat, p.detach().numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [Adam, RAdam])
def test_moments_are_torchs_and_survive_a_reload(kind: type[Adam]) -> None:
    start = np.linspace(-1, 1, 20, dtype=np.float32)
    p = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs = getattr(torch.optim, kind.__name__)([p], lr=1e-2)
    ours = kind(start, lr=1e-2)
    run_both(ours, theirs, p, 10, 1.0)
    state = ours.state_dict()
    assert state["step"] == int(theirs.state[p]["step"])
    exp_avg, exp_avg_sq = ours.averages()
    np.testing.assert_allclose(exp_avg, theirs.state[p]["exp_avg"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(exp_avg_sq, theirs.state[p]["exp_avg_sq"], rtol=1e-5, atol=1e-6)

    twin = kind(start.copy(), lr=1e-2)
    twin.load_state_dict(copy.deepcopy(state))
    grad = np.ones(20, np.float32)
    ours.step(grad)
    twin.step(grad)
    np.testing.assert_array_equal(ours.flat, twin.flat)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping(max_norm: float) -> None:
    grad = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    p = torch.nn.Parameter(torch.zeros(1000))
    p.grad = torch.from_numpy(grad.copy())
    norm = torch.nn.utils.clip_grad_norm_([p], max_norm)
    assert clip_grad_norm(grad, max_norm) == pytest.approx(norm.item(), rel=1e-5)
    np.testing.assert_allclose(grad, p.grad.numpy(), rtol=1e-5)


def test_polyak_moves_by_tau_and_copies_at_one() -> None:
    target, source = np.zeros(4, np.float32), np.full(4, 2.0, np.float32)
    polyak(target, source, 0.25)
    np.testing.assert_allclose(target, 0.5)
    polyak(target, source, 0.25)
    np.testing.assert_allclose(target, 0.875)
    polyak(target, source, 1.0)
    np.testing.assert_array_equal(target, source)

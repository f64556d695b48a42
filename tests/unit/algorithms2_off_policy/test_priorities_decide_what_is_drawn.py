"""Priorities: drawn as often as they should be, changed at once; n-step returns by arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from cleanrl_worker.training import replay_priority
from cleanrl_worker.training.replay_frames import PrioritisedFrameReplay
from cleanrl_worker.training.replay_priority import Priorities

SHAPES = {
    "even": lambda rng, n: rng.random(n),
    "all the same": lambda _, n: np.full(n, 0.3),
    "one is a thousand times the mean": lambda _, n: np.where(np.arange(n) == 3, 1000.0, 1.0),
    "most are nothing": lambda rng, n: rng.random(n) * (rng.random(n) < 0.1),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("by_sums", [False, True])
def test_draws_are_in_proportion(shape: str, by_sums: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_sums:
        monkeypatch.setattr(replay_priority, "MOST_ATTEMPTS", 0)
    rng = np.random.default_rng(0)
    values = SHAPES[shape](rng, 1500)
    priorities = Priorities(2000)
    priorities.set(np.arange(1500), values)
    rounds, count = (300, 100) if by_sums else (1000, 200)
    places = np.concatenate([priorities.draw(count, 1500, rng) for _ in range(rounds)])
    share, wanted = np.bincount(places, minlength=1500) / len(places), values / values.sum()
    np.testing.assert_allclose(share, wanted, atol=1e-9 + 5.5 * np.sqrt(wanted.max() / len(places)))
    assert not share[wanted == 0].any()
    # in twenty groups, where chance matters less
    groups = share.reshape(20, -1).sum(axis=1), wanted.reshape(20, -1).sum(axis=1)
    np.testing.assert_allclose(*groups, atol=0.012)


def test_a_draw_ends_however_small_most_priorities_are() -> None:
    priorities, rng = Priorities(1_000_000), np.random.default_rng(0)
    priorities.set(np.arange(1_000_000), np.full(1_000_000, 1e-9))
    priorities.put(777_777, 1e9)
    for _ in range(3):
        assert priorities.draw(32, 1_000_000, rng).tolist() == [777_777] * 32
    priorities.put(777_777, 1e-9)  # the bound comes down by itself
    for _ in range(3):
        assert len(set(priorities.draw(32, 1_000_000, rng).tolist())) > 30


def test_what_has_no_priority_is_never_drawn() -> None:
    rng = np.random.default_rng(0)
    priorities = Priorities(1000)
    for place in range(0, 1000, 7):
        priorities.put(place, 1e-12)
    for _ in range(200):
        assert not (priorities.draw(32, 1000, rng) % 7).any()


def test_a_change_counts_at_once() -> None:
    rng = np.random.default_rng(0)
    priorities = Priorities(100)
    priorities.set(np.array([5, 9, 5]), np.array([1.0, 1.0, 0.0]))
    assert set(priorities.draw(50, 100, rng).tolist()) == {9}
    priorities.put(9, 0.0)
    priorities.put(70, 2.0)
    assert set(priorities.draw(50, 100, rng).tolist()) == {70}


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        Priorities(10).draw(2, 10, np.random.default_rng())


def replay(n_step: int = 1, alpha: float = 1.0, eps: float = 0.0) -> PrioritisedFrameReplay:
    rng = np.random.default_rng(0)
    return PrioritisedFrameReplay(100, (4, 1, 1), rng, n_step=n_step, gamma=0.5, alpha=alpha, eps=eps)


def walk(
    into: PrioritisedFrameReplay, rewards: list[float], *, terminated: bool = False, truncated: bool = False
) -> None:
    """An episode whose t-th image is t."""
    obs = np.zeros((4, 1, 1), np.uint8)
    for t, reward in enumerate(rewards):
        next_obs = np.concatenate((obs[1:], np.full((1, 1, 1), t + 1, np.uint8)))
        last = t == len(rewards) - 1
        into.add(obs, t, reward, next_obs, terminated and last, truncated and last)
        obs = next_obs


@pytest.mark.parametrize(
    ("ending", "last_discounts"),
    [({"terminated": True}, [0.0, 0.0, 0.0]), ({"truncated": True}, [0.125, 0.25, 0.5])],
)
def test_returns_over_three_steps(ending: dict[str, bool], last_discounts: list[float]) -> None:
    kept = replay(n_step=3)
    walk(kept, [1.0, 2.0, 4.0, 8.0, 16.0], **ending)
    rows = kept._rows
    assert len(kept) == 5
    np.testing.assert_allclose(rows["reward"][:5], [1 + 1 + 1, 2 + 2 + 2, 4 + 4 + 4, 8 + 8, 16])
    np.testing.assert_allclose(rows["discount"][:5], [0.125, 0.125, *last_discounts])
    batch = kept.draw(100, 0.4)
    at = batch.action
    np.testing.assert_array_equal(batch.obs[:, -1, 0, 0], at)
    np.testing.assert_array_equal(batch.next_obs[:, -1, 0, 0], np.minimum(at + 3, 5))


def test_a_transition_waits_until_its_steps_are_taken() -> None:
    kept = replay(n_step=3)
    walk(kept, [1.0, 1.0])
    assert len(kept) == 0
    walk(kept, [1.0, 1.0])  # started again: what waits is cut off there, and does not terminate
    assert len(kept) == 2
    np.testing.assert_allclose(kept._rows["discount"][:2], [0.25, 0.5])


def test_priorities_are_powers_of_errors_and_new_ones_get_the_largest() -> None:
    kept = replay(alpha=0.5, eps=1.0)
    walk(kept, [0.0] * 4, truncated=True)
    kept.draw(4, 0.4)
    np.testing.assert_allclose(kept.priorities.values[:4], 1.0)
    kept.update_priorities(np.array([0, 1]), np.array([-8.0, 3.0], np.float32))
    np.testing.assert_allclose(kept.priorities.values[:4], [3.0, 2.0, 1.0, 1.0])
    walk(kept, [0.0], truncated=True)
    kept.draw(4, 0.4)
    assert kept.priorities.values[4] == 3.0


def test_weights_make_up_for_the_frequency() -> None:
    kept = replay()
    walk(kept, [0.0] * 2, truncated=True)
    kept.draw(2, 1.0)
    kept.update_priorities(np.array([0, 1]), np.array([1.0, 3.0]))
    batch = kept.draw(8, 1.0)
    expected = {0: 1.0, 1: 1.0 / 3.0}
    assert set(batch.place.tolist()) == {0, 1}
    np.testing.assert_allclose(batch.weight, [expected[place] for place in batch.place.tolist()], rtol=1e-6)
    np.testing.assert_allclose(kept.draw(8, 0.0).weight, 1.0)

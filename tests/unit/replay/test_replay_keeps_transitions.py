"""The ring holds the newest transitions, samples them all alike, and never mixes rows."""

from __future__ import annotations

import numpy as np
import pytest

from cleanrl_worker.training.replay import Replay, transition_fields
from cleanrl_worker.training.replay_ring import ring_bytes

FIELDS = transition_fields((3,), ())


def filled(capacity: int, count: int, seed: int = 0) -> Replay:
    """Transition i has i in every place, so that a row tells where it came from."""
    replay = Replay(capacity, FIELDS, np.random.default_rng(seed))
    for i in range(count):
        replay.add(np.full(3, i), i, i, np.full(3, i), i % 2 == 0)
    return replay


def test_the_oldest_make_room() -> None:
    replay = filled(10, 25)
    assert len(replay) == 10
    assert set(np.unique(replay.sample(1000).action)) == set(range(15, 25))


def test_only_what_was_added_is_sampled() -> None:
    assert set(np.unique(filled(100, 4).sample(500).action)) == {0, 1, 2, 3}


def test_rows_stay_together() -> None:
    batch = filled(50, 80).sample(200)
    for row in range(200):
        i = batch.action[row]
        assert batch.reward[row] == i
        assert (batch.obs[row] == i).all()
        assert (batch.next_obs[row] == i).all()
        assert batch.terminated[row] == (i % 2 == 0)


def test_sampling_is_uniform_and_its_own_stream() -> None:
    replay = filled(10, 10)
    counts = np.bincount(np.concatenate([replay.sample(100).action.copy() for _ in range(100)]), minlength=10)
    assert counts.min() > 850
    assert counts.max() < 1150
    np.testing.assert_array_equal(filled(10, 10, seed=3).sample(50).action, filled(10, 10, seed=3).sample(50).action)


def test_a_batch_is_reused_by_the_next_of_its_size() -> None:
    replay = filled(10, 10)
    first = replay.sample(5)
    assert replay.sample(5).obs is first.obs
    assert replay.sample(6).obs is not first.obs


def test_the_estimate_is_what_is_allocated() -> None:
    fields = transition_fields((4, 84, 84), (), obs_dtype=np.uint8)
    assert ring_bytes(100, fields) == Replay(100, fields, np.random.default_rng()).nbytes


def test_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Replay(0, FIELDS, np.random.default_rng())

"""A replay of stacked images gives back the stacks that were put in, stores each image once, and survives a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cleanrl_worker.training import replay_ring
from cleanrl_worker.training.checkpoints import CheckpointStore, newest_valid
from cleanrl_worker.training.replay_frames import FrameReplay, PrioritisedFrameReplay, frame_replay_bytes

SHAPE = (4, 6, 5)


class Transition(NamedTuple):
    obs: np.ndarray
    action: int
    reward: float
    next_obs: np.ndarray
    terminated: bool
    truncated: bool


def play(seed: int, *, padded: bool = True, longest: int = 12) -> Iterator[Transition]:
    """An environment whose images are noise. Stacks begin with four copies of the first image, or, unpadded, with others."""
    rng = np.random.default_rng(seed)

    def image() -> np.ndarray:
        return rng.integers(0, 256, SHAPE[1:], np.uint8)

    while True:
        first = image()
        obs = np.stack([first] * 4 if padded else [image() for _ in range(4)])
        length = int(rng.integers(1, longest))
        for t in range(length):
            next_obs = np.concatenate((obs[1:], image()[None]))
            last = t == length - 1
            cut = bool(rng.random() < 0.5)
            yield Transition(obs, int(rng.integers(5)), float(rng.normal()), next_obs, last and not cut, last and cut)
            obs = next_obs


def fill(replay: FrameReplay, source: Iterator[Transition], count: int) -> list[Transition]:
    taken = [next(source) for _ in range(count)]
    for transition in taken:
        replay.add(*transition)
    return taken


def rows(replay: FrameReplay) -> Any:
    """All transitions that can be sampled, oldest first."""
    batch = replay.sample(len(replay))
    replay._fill(batch, np.arange(replay._oldest, replay.added) % replay.capacity)
    return batch


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("count", [1, 17, 60, 61, 333])
def test_it_equals_a_list_of_whole_stacks(padded: bool, count: int) -> None:
    replay = FrameReplay(60, SHAPE, np.random.default_rng(0))
    naive = fill(replay, play(count, padded=padded), count)[-len(replay) :]
    assert len(replay) <= 60
    assert padded is False or len(replay) >= min(count, 60) * 0.8
    batch = rows(replay)
    for i, kept in enumerate(naive):
        np.testing.assert_array_equal(batch.obs[i], kept.obs)
        np.testing.assert_array_equal(batch.next_obs[i], kept.next_obs)
        assert (batch.action[i], batch.terminated[i]) == (kept.action, float(kept.terminated))
        assert batch.reward[i] == np.float32(kept.reward)


def test_long_episodes_use_the_whole_capacity() -> None:
    replay = FrameReplay(400, SHAPE, np.random.default_rng(0))
    fill(replay, play(1, longest=80), 3000)
    assert len(replay) == 400


def test_samples_are_uniform_over_what_is_kept() -> None:
    replay = FrameReplay(50, (4, 1, 1), np.random.default_rng(3))
    for i in range(120):
        obs = np.arange(i - 3, i + 1).astype(np.uint8)[:, None, None]
        replay.add(obs, 0, i, obs + 1, False, False)
    drawn = np.concatenate([replay.sample(500).reward.copy() for _ in range(100)])
    counts = np.bincount(drawn.astype(int), minlength=120)
    assert not counts[:70].any()
    np.testing.assert_allclose(counts[70:], 1000, rtol=0.2)


def test_an_environment_that_was_started_again_begins_a_new_stack() -> None:
    replay, source = FrameReplay(60, SHAPE, np.random.default_rng(0)), play(5, longest=50)
    before = fill(replay, source, 3)
    assert not before[-1].terminated and not before[-1].truncated
    after = fill(replay, play(6), 2)  # as after a checkpoint of an environment that can't be restored
    np.testing.assert_array_equal(rows(replay).obs, [t.obs for t in (*before, *after)])


def test_a_million_atari_frames_take_less_than_8_gb() -> None:
    needed = frame_replay_bytes(1_000_000, (4, 84, 84))
    assert needed < 8e9
    tenth = FrameReplay(100_000, (4, 84, 84), np.random.default_rng())  # mapped, not taken
    assert tenth.nbytes == pytest.approx(needed / 10, rel=1e-3)


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
@pytest.mark.parametrize("count", [0, 3, 45, 61, 200])
@pytest.mark.parametrize("in_blocks", [True, False])
def test_it_goes_on_after_a_checkpoint(
    kind: str, count: int, in_blocks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_blocks:
        monkeypatch.setattr(replay_ring, "COPY_WHOLE_BELOW", 0)
        monkeypatch.setattr(replay_ring, "BLOCK_BYTES", 10 * 30)

    def fresh() -> Any:
        rng = np.random.default_rng(0)
        if kind == "uniform":
            return FrameReplay(60, SHAPE, rng)
        return PrioritisedFrameReplay(60, SHAPE, rng, n_step=3, gamma=0.9, alpha=0.5, eps=1e-6)

    def draw(replay: Any) -> Any:
        if kind == "uniform":
            return replay.sample(16)
        batch = replay.draw(16, 0.4)
        replay.update_priorities(batch.place, batch.reward)
        return batch

    one, source = fresh(), play(count)
    fill(one, source, count)
    if len(one):
        draw(one)
    fill(one, source, count and 2)
    CheckpointStore(tmp_path).save(1, {"replay": one.state_dict()}, {}, "interval", wait=True)
    found = newest_valid(tmp_path)
    assert found is not None
    other = fresh()
    other.load_state_dict(found.state["replay"])
    for _ in range(5):
        for transition in fill(one, source, 30):
            other.add(*transition)
        a, b = draw(one), draw(other)
        for name, array in vars(a).items():
            np.testing.assert_array_equal(array, getattr(b, name))


@pytest.mark.parametrize("capacity", [25, 200])
def test_another_capacity_takes_the_newest(capacity: int) -> None:
    one, source = FrameReplay(60, SHAPE, np.random.default_rng(0)), play(9)
    naive = fill(one, source, 150)
    other = FrameReplay(capacity, SHAPE, np.random.default_rng(0))
    other.load_state_dict(one.state_dict())
    naive += fill(other, source, 10)
    assert len(other) >= min(capacity, 60) * 0.8
    np.testing.assert_array_equal(rows(other).obs, [t.obs for t in naive[-len(other) :]])
    np.testing.assert_array_equal(rows(other).next_obs, [t.next_obs for t in naive[-len(other) :]])

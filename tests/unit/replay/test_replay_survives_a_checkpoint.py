"""A saved ring comes back bit by bit, and full blocks are written to disk once for all checkpoints that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.training import replay_ring as module
from cleanrl_worker.training.checkpoints import CheckpointStore, load_checkpoint, newest_valid
from cleanrl_worker.training.replay import Replay, transition_fields

FIELDS = transition_fields((4,), (2,))


def fresh(capacity: int) -> Replay:
    return Replay(capacity, FIELDS, np.random.default_rng(1))


def fill(replay: Replay, count: int) -> None:
    rng = np.random.default_rng(replay.added)
    for _ in range(count):
        replay.add(rng.random(4), rng.random(2), rng.random(), rng.random(4), rng.random() < 0.1)


def assert_same(a: Replay, b: Replay) -> None:
    assert (a.added, len(a)) == (b.added, len(b))
    for name in FIELDS:
        np.testing.assert_array_equal(a._arrays[name], b._arrays[name])
    for _ in range(3):
        x, y = a.sample(64), b.sample(64)
        np.testing.assert_array_equal(x.obs, y.obs)
        np.testing.assert_array_equal(x.next_obs, y.next_obs)


def save(store: CheckpointStore, step: int, replay: Replay) -> None:
    store.save(step, {"replay": replay.state_dict()}, {}, "interval", wait=True)


def loaded(path: Path, capacity: int) -> Replay:
    found = newest_valid(path)
    assert found is not None
    replay = fresh(capacity)
    replay.load_state_dict(found.state["replay"])
    return replay


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 10 transitions (16 bytes an observation) in rings of any size."""
    monkeypatch.setattr(module, "COPY_WHOLE_BELOW", 0)
    monkeypatch.setattr(module, "BLOCK_BYTES", 160)


@pytest.mark.parametrize("count", [7, 100, 137, 250])
def test_whole(tmp_path: Path, count: int) -> None:
    replay, store = fresh(100), CheckpointStore(tmp_path)
    fill(replay, count)
    save(store, 1, replay)
    assert not (tmp_path / "chunks").exists()
    assert_same(loaded(tmp_path, 100), replay)


def test_empty(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 1, fresh(100))
    assert len(loaded(tmp_path, 100)) == 0


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("capacity", [100, 95])
@pytest.mark.parametrize("count", [3, 10, 55, 95, 100, 137, 250, 295])
def test_in_blocks(tmp_path: Path, capacity: int, count: int) -> None:
    replay, store = fresh(capacity), CheckpointStore(tmp_path)
    fill(replay, count)
    save(store, 1, replay)
    assert_same(loaded(tmp_path, capacity), replay)


@pytest.mark.usefixtures("small_blocks")
def test_every_kept_checkpoint_stays_whole_while_the_ring_turns(tmp_path: Path) -> None:
    replay, store = fresh(100), CheckpointStore(tmp_path, keep=3)
    images: dict[int, dict[str, Any]] = {}
    for step in range(12):
        fill(replay, 23)
        save(store, step, replay)
        images[step] = {name: array.copy() for name, array in replay._arrays.items()}
    kept = sorted(tmp_path.glob("step-*"))
    assert len(kept) == 3
    for path in kept:
        found = load_checkpoint(path)
        other = fresh(100)
        other.load_state_dict(found.state["replay"])
        for name, image in images[found.step].items():
            np.testing.assert_array_equal(other._arrays[name], image)


@pytest.mark.usefixtures("small_blocks")
def test_full_blocks_are_written_once_and_dropped_when_nobody_names_them(tmp_path: Path) -> None:
    replay, store = fresh(100), CheckpointStore(tmp_path, keep=1)
    fill(replay, 50)
    save(store, 1, replay)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "chunks").glob("*.bin")}
    assert len(before) == 5 * len(FIELDS)
    fill(replay, 10)
    save(store, 2, replay)
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "chunks").glob("*.bin")}
    assert len(after) == 6 * len(FIELDS)
    assert before.items() <= after.items()
    fill(replay, 100)
    save(store, 3, replay)
    assert not before.keys() & {p.name for p in (tmp_path / "chunks").glob("*.bin")}


@pytest.mark.usefixtures("small_blocks")
def test_a_resumed_process_names_the_old_blocks_again(tmp_path: Path) -> None:
    replay, store = fresh(100), CheckpointStore(tmp_path, keep=1)
    fill(replay, 40)
    save(store, 1, replay)
    names = {p.name for p in (tmp_path / "chunks").glob("*.bin")}
    resumed, found = loaded(tmp_path, 100), newest_valid(tmp_path)
    assert found is not None
    second = CheckpointStore(tmp_path, keep=1)
    second.adopt(found)
    fill(resumed, 5)
    save(second, 2, resumed)
    assert {p.name for p in (tmp_path / "chunks").glob("*.bin")} == names
    fill(resumed, 5)
    save(second, 3, resumed)
    assert names < {p.name for p in (tmp_path / "chunks").glob("*.bin")}


@pytest.mark.parametrize(("count", "capacity"), [(60, 200), (250, 200), (250, 40), (60, 40)])
def test_another_capacity_takes_the_newest(count: int, capacity: int) -> None:
    replay = Replay(100, transition_fields((1,), ()), np.random.default_rng())
    for i in range(count):
        replay.add([i], i, i, [i], False)
    other = Replay(capacity, transition_fields((1,), ()), np.random.default_rng())
    other.load_state_dict(replay.state_dict())
    expected = min(count, 100, capacity)
    assert len(other) == expected
    np.testing.assert_array_equal(other._arrays["action"][:expected], np.arange(count - expected, count))


def test_another_environment_is_refused() -> None:
    replay = fresh(10)
    fill(replay, 3)
    other = Replay(10, transition_fields((5,), (2,)), np.random.default_rng())
    with pytest.raises(ValueError, match="'obs'"):
        other.load_state_dict(replay.state_dict())

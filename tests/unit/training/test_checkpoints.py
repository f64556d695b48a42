"""A checkpoint is whole or absent, verified when read, and the last few are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.training import checkpoints
from cleanrl_worker.training.checkpoints import BadCheckpoint, CheckpointStore, Chunk, load_checkpoint, newest_valid

META = {"algo": "ppo", "env_id": "CartPole-v1", "args": {}}


def save(store: CheckpointStore, step: int, **state: Any) -> None:
    store.save(step, {"w": np.full(100, step, np.float32), **state}, META, "interval", wait=True)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    told = []
    store = CheckpointStore(tmp_path / "c", on_saved=told.append)
    save(store, 512)
    loaded = newest_valid(tmp_path / "c")
    assert loaded is not None
    assert (loaded.step, loaded.meta) == (512, META)
    assert loaded.state["w"].tolist() == [512.0] * 100
    (saved,) = told
    assert (saved.step, saved.reason, saved.sha256) == (512, "interval", loaded.sha256)
    assert saved.bytes == sum(path.stat().st_size for path in saved.path.iterdir())
    assert load_checkpoint(saved.path / "manifest.json").step == 512


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for step in (10, 20, 30):
        save(store, step)
    assert names(tmp_path) == ["step-000000000020", "step-000000000030"]


def test_two_of_one_step_are_told_apart_and_the_later_one_is_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10, mark="before the update")
    save(store, 10, mark="after")
    loaded = newest_valid(tmp_path)
    assert loaded is not None
    assert loaded.state["mark"] == "after"


@pytest.mark.parametrize("file", ["arrays.bin", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_newest_one_falls_back_to_the_one_before(tmp_path: Path, file: str, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10)
    save(store, 20)
    path = tmp_path / "step-000000000020" / file
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    noted: list[str] = []
    loaded = newest_valid(tmp_path, noted.append)
    assert loaded is not None
    assert loaded.step == 10
    assert "step-000000000020" in noted[0]


def test_after_a_fallback_the_damaged_one_is_out_of_the_way(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 20)
    save(CheckpointStore(tmp_path, keep=2), 30)
    (tmp_path / "step-000000000030" / "arrays.bin").write_bytes(b"")
    again = CheckpointStore(tmp_path, keep=1)
    loaded = newest_valid(tmp_path)
    assert loaded is not None
    again.adopt(loaded)
    save(again, 25)
    assert names(tmp_path) == ["step-000000000025"]


def test_where_none_can_be_used_the_next_ones_are_kept_and_the_old_ones_too(tmp_path: Path) -> None:
    old = CheckpointStore(tmp_path, keep=3)
    for step in (10, 20, 30):
        save(old, step)
        (tmp_path / f"step-{step:012d}" / "arrays.bin").write_bytes(b"")
    again = CheckpointStore(tmp_path, keep=3)
    assert newest_valid(tmp_path) is None
    shelf = again.put_aside()
    save(again, 5)
    assert shelf == tmp_path / "unusable"
    assert names(shelf) == ["step-000000000010", "step-000000000020", "step-000000000030"]
    loaded = newest_valid(tmp_path)
    assert loaded is not None
    assert loaded.step == 5
    assert CheckpointStore(tmp_path / "empty").put_aside() is None


def test_a_folder_of_an_unfinished_write_is_neither_listed_nor_left(tmp_path: Path) -> None:
    (tmp_path / ".tmp-step-000000000020").mkdir()
    assert newest_valid(tmp_path) is None
    CheckpointStore(tmp_path)
    assert names(tmp_path) == []


def test_a_full_disk_is_told_and_leaves_the_last_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    store = CheckpointStore(tmp_path, on_error=told.append)
    save(store, 10)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.tree, "write_arrays", full)
    save(store, 20)
    assert "No space left" in told[0]
    assert names(tmp_path) == ["step-000000000010"]
    assert store.last is not None
    assert store.last.step == 10


def test_chunks_are_written_once_shared_and_removed_with_their_last_user(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    copies: list[str] = []

    def chunk(key: str) -> Chunk:
        def copy() -> np.ndarray:
            copies.append(key)
            return np.full(8, len(key), np.int64)

        return Chunk(key, copy)

    store.save(10, {"r": [chunk("a"), chunk("bb")]}, META, "interval", wait=True)
    store.save(20, {"r": [chunk("bb"), chunk("ccc")]}, META, "interval", wait=True)
    assert copies == ["a", "bb", "ccc"]
    loaded = load_checkpoint(tmp_path / "step-000000000020")
    assert [part.tolist() for part in loaded.state["r"]] == [[2] * 8, [3] * 8]

    resumed = CheckpointStore(tmp_path, keep=2)
    resumed.adopt(loaded)
    resumed.save(30, {"r": [chunk("bb"), chunk("ccc")]}, META, "interval", wait=True)
    assert copies == ["a", "bb", "ccc"]
    assert sorted({path.stem for path in (tmp_path / "chunks").iterdir()}) == ["bb", "ccc"]
    assert [part.tolist() for part in load_checkpoint(tmp_path / "step-000000000030").state["r"]] == [[2] * 8, [3] * 8]

    (tmp_path / "chunks" / "ccc.bin").write_bytes(b"damaged")
    with pytest.raises(BadCheckpoint, match="damaged"):
        load_checkpoint(tmp_path / "step-000000000030")


def test_a_manifest_can_not_point_outside(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, 10)
    path = tmp_path / "step-000000000010" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../../secret"] = {"sha256": "0", "bytes": 1}
    path.write_text(json.dumps(manifest))
    with pytest.raises(BadCheckpoint, match="parts missing"):
        load_checkpoint(path.parent)

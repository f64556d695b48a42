from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from cleanrl_worker.fastlane import metrics, segment
from cleanrl_worker.fastlane.metrics import MetricsReader, MetricsWriter, Snapshot


def write_raw(shm: Path, text: bytes, *, seq: int = 2, crc: int | None = None, version: int = 1) -> None:
    checksum = zlib.crc32(text) if crc is None else crc
    header = struct.pack("<4sIIIQQ", b"FLMX", version, len(text), checksum, seq, 0)
    (shm / "mosaic.fastlane.r.metrics").write_bytes((header + text).ljust(metrics.SIZE, b"\0"))


def test_who_follows_a_run_reads_its_last_figures_also_when_another_run_has_swept_them_away(shm: Path) -> None:
    reader = MetricsReader("r")
    assert reader.read() is None
    writer = MetricsWriter("r")
    writer.write(Snapshot(env_steps=900))
    assert reader.read() == Snapshot(env_steps=900)
    writer.write(Snapshot(env_steps=1500))
    writer.close()
    assert segment.unlink_stale() == ["mosaic.fastlane.r.metrics"], "what a starting run does"
    assert reader.read() == Snapshot(env_steps=1500)
    MetricsWriter("r").write(Snapshot(env_steps=7))
    assert reader.read() == Snapshot(env_steps=7), "another process of the run"
    reader.close()
    assert list(shm.iterdir()), "a reader leaves no trace"


def test_round_trip(shm: Path) -> None:
    writer = MetricsWriter("r")
    snapshot = Snapshot(
        env_steps=10,
        episodes=2,
        step_rate_hz=3.5,
        last_reward=-1.0,
        rolling_return=0.25,
        scalars={"losses/value_loss": 0.5},
    )
    writer.write(snapshot)
    assert metrics.read("r") == snapshot


def test_nothing_there(shm: Path) -> None:
    assert metrics.read("r") is None


def test_last_values_outlive_the_writer(shm: Path) -> None:
    writer = MetricsWriter("r")
    writer.write(Snapshot(env_steps=7))
    writer.close()
    found = metrics.read("r")
    assert found is not None and found.env_steps == 7


@pytest.mark.parametrize(
    "fault", [{"seq": 3}, {"crc": 1}, {"version": 2}], ids=["write under way", "torn", "another version"]
)
def test_not_whole_is_absent(shm: Path, fault: dict[str, int]) -> None:
    write_raw(shm, b'{"env_steps":1}', **fault)
    assert metrics.read("r") is None


@pytest.mark.parametrize("text", [b"[1]", b"nonsense", b"[" * 9000, b"\xff\xfe"])
def test_hostile_text_is_absent(shm: Path, text: bytes) -> None:
    write_raw(shm, text)
    assert metrics.read("r") is None


def test_hostile_values_are_dropped(shm: Path) -> None:
    document = {
        "env_steps": "many",
        "episodes": -5,
        "last_reward": True,
        "rolling_return": 10**400,
        "scalars": {"ok": 1, 'bad"name': 1, "text": "x", "nested": {}, "": 2, "n" * 200: 3},
    }
    write_raw(shm, json.dumps(document).encode())
    assert metrics.read("r") == Snapshot(scalars={"ok": 1.0})


def test_the_number_of_scalars_is_bounded(shm: Path) -> None:
    kept = metrics.bounded_scalars({f"tag{number}": 1.0 for number in range(1000)})
    assert len(kept) == metrics.MAX_SCALARS


def test_longest_legal_snapshot_fits(shm: Path) -> None:
    writer = MetricsWriter("r")
    writer.write(Snapshot(scalars={f"{number:02}" + "x" * 78: -1.2345678901234567e-300 for number in range(64)}))
    found = metrics.read("r")
    assert found is not None and len(found.scalars) == 64

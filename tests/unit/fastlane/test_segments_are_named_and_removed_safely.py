from __future__ import annotations

import os
from pathlib import Path

import pytest

from cleanrl_worker.fastlane import segment
from cleanrl_worker.fastlane.metrics import MetricsWriter
from cleanrl_worker.fastlane.ring import Geometry, RingWriter


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("01JABC", "mosaic.fastlane.01JABC"),
        ("a/b/../c", "mosaic.fastlane.a_b_.._c"),
        ("../../etc/passwd", "mosaic.fastlane..._.._etc_passwd"),
        ("a\0b", "mosaic.fastlane.a_b"),
        ("x.metrics", "mosaic.fastlane.x.metrics_"),
    ],
)
def test_names(run_id: str, name: str) -> None:
    assert segment.ring_name(run_id) == name


def test_long_ids_get_distinct_names_that_a_file_system_takes(shm: Path) -> None:
    names = {segment.ring_name("é" * 300 + ending) for ending in ("a", "b")}
    assert len(names) == 2
    assert all(len(os.fsencode(name + segment.METRICS_SUFFIX)) <= 255 for name in names)
    RingWriter("é" * 300, Geometry(2, 2, 3)).close()


def test_a_symbolic_link_is_not_followed(shm: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    victim = tmp_path_factory.mktemp("elsewhere") / "file"
    victim.write_text("untouched")
    (shm / "mosaic.fastlane.r").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        RingWriter("r", Geometry(2, 2, 3))
    assert victim.read_text() == "untouched"


def test_unlink_run_removes_both_and_tells(shm: Path) -> None:
    MetricsWriter("r").close()
    RingWriter("r", Geometry(2, 2, 3)).close()
    RingWriter("other", Geometry(2, 2, 3)).close()
    assert segment.unlink_run("r") == ["mosaic.fastlane.r", "mosaic.fastlane.r.metrics"]
    assert segment.unlink_run("r") == []
    assert [path.name for path in shm.iterdir()] == ["mosaic.fastlane.other"]


def test_what_another_run_of_the_same_name_writes_is_left_to_it(shm: Path) -> None:
    figures, ring = MetricsWriter("r"), RingWriter("r", Geometry(2, 2, 3))
    assert segment.unlink_run("r") == []
    assert ring.is_linked()
    figures.close()
    ring.close()
    assert len(segment.unlink_run("r")) == 2


def test_stale_segments_go_and_live_ones_stay(shm: Path) -> None:
    MetricsWriter("dead").close()
    RingWriter("dead", Geometry(2, 2, 3)).close()
    live = MetricsWriter("live")
    RingWriter("live", Geometry(2, 2, 3)).close()
    assert segment.unlink_stale() == ["mosaic.fastlane.dead", "mosaic.fastlane.dead.metrics"]
    live.close()
    assert segment.unlink_stale() == ["mosaic.fastlane.live", "mosaic.fastlane.live.metrics"]


def test_rings_of_other_programs_are_left_alone(shm: Path) -> None:
    RingWriter("foreign", Geometry(2, 2, 3)).close()
    (shm / "mosaic.fastlane.x.metrics").write_bytes(b"someone else's format")
    assert segment.unlink_stale() == []


def test_a_segment_that_died_in_creation_is_stale(shm: Path) -> None:
    (shm / "mosaic.fastlane.half.metrics").touch()
    assert segment.unlink_stale() == ["mosaic.fastlane.half.metrics"]

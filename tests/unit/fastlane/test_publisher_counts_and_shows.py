from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanrl_worker.fastlane import metrics, segment
from cleanrl_worker.fastlane.publisher import ROLLING_WEIGHT, Publisher
from cleanrl_worker.fastlane.ring import RingReader
from cleanrl_worker.fastlane.settings import FastLaneSettings


def settings(**changes: Any) -> FastLaneSettings:
    values: dict[str, Any] = {
        "run_id": "r", "enabled": True, "mode": "single", "slot": 0, "grid_limit": 4, "num_envs": 4,
        "interval": 0.0, "max_dim": 256,
    }  # fmt: skip
    return FastLaneSettings(**{**values, **changes})


def picture(value: int = 1, height: int = 8, width: int = 8) -> Any:
    return np.full((height, width, 3), value, dtype=np.uint8)


def test_figures_arrive(shm: Path) -> None:
    publisher = Publisher(settings())
    publisher.step(4, np.array([1.0, 2.0, 3.0, 4.0]))
    publisher.step(4, np.array([5.0, 6.0, 7.0, 8.0]))
    publisher.episode(100.0, 50)
    publisher.episode(200.0, 60)
    publisher.scalars({"losses/value_loss": np.float32(0.5), "losses/nan": float("nan"), "losses/text": "x"})
    publisher.close()
    found = metrics.read("r")
    assert found is not None
    assert (found.env_steps, found.episodes, found.episode_return, found.episode_length) == (8, 2, 200.0, 60.0)
    assert found.last_reward == 5.0, "the reward of the shown environment"
    assert found.rolling_return == pytest.approx(100 + ROLLING_WEIGHT * 100)
    assert found.scalars == {"losses/value_loss": 0.5}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_episode_without_a_finite_return_is_not_remembered(shm: Path, bad: float) -> None:
    publisher = Publisher(settings())
    for episode_return in (100.0, bad, 200.0):
        publisher.episode(episode_return, 1)
    publisher.close()
    found = metrics.read("r")
    assert found is not None
    assert (found.episodes, found.rolling_return) == (3, pytest.approx(100 + ROLLING_WEIGHT * 100))


def test_the_rate_is_environment_steps_per_second(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    publisher = Publisher(settings())
    for _ in range(200):  # 4 environments, 100 calls a second
        now += 0.01
        publisher.step(4, 0.0)
    publisher.close()
    found = metrics.read("r")
    assert found is not None
    assert found.step_rate_hz == pytest.approx(400, rel=0.05)


def test_a_frame_is_due_once_per_interval(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    publisher = Publisher(settings(interval=0.1))
    shown = 0
    for _ in range(1000):  # one second
        now += 0.001
        publisher.step(1, 0.0)
        if publisher.frame_due():
            publisher.frame(picture())
            shown += 1
    assert 9 <= shown <= 10
    publisher.close()


def test_frames_carry_the_metrics(shm: Path) -> None:
    publisher = Publisher(settings())
    publisher.step(1, 2.5)
    publisher.episode(7.0, 3)
    publisher.frame(picture(9))
    found = RingReader("r").latest_frame()
    assert found is not None
    assert found.data == bytes([9]) * 192
    assert (found.metrics.last_reward, found.metrics.rolling_return) == (2.5, 7.0)


def test_a_list_becomes_a_grid_and_large_pictures_shrink(shm: Path) -> None:
    publisher = Publisher(settings(mode="grid", max_dim=16))
    publisher.frame([picture(value) for value in range(4)])
    found = RingReader("r").latest_frame()
    assert found is not None and (found.width, found.height) == (16, 16)
    publisher.frame(picture(1, 400, 600))
    found = RingReader("r").latest_frame()
    assert found is not None and (found.width, found.height) == (16, 10)


def test_off_has_metrics_and_no_ring(shm: Path) -> None:
    publisher = Publisher(settings(mode="off"))
    publisher.step(1, 1.0)
    assert not publisher.frame_due()
    assert publisher.shown_slots == ()
    publisher.frame(picture())
    publisher.close()
    assert [path.name for path in shm.iterdir()] == ["mosaic.fastlane.r.metrics"]


def test_without_a_run_nothing_is_made(shm: Path) -> None:
    publisher = Publisher(settings(run_id=""))
    publisher.step(1, 1.0)
    publisher.frame(picture())
    publisher.close()
    assert list(shm.iterdir()) == []


def test_full_shared_memory_costs_the_frames_and_not_the_metrics(
    shm: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reserve = os.posix_fallocate

    def full(fd: int, offset: int, length: int) -> None:
        if length > metrics.SIZE:
            raise OSError(28, "No space left on device")
        reserve(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    publisher = Publisher(settings())
    with caplog.at_level(logging.WARNING):
        publisher.frame(picture())
        publisher.frame(picture())
    assert [record.getMessage() for record in caplog.records] == [
        "FastLane stops showing frames, metrics go on: OSError: [Errno 28] No space left on device"
    ]
    publisher.step(5, 1.0)
    publisher.close()
    found = metrics.read("r")
    assert found is not None and found.env_steps == 5
    assert not (shm / "mosaic.fastlane.r").exists()


def test_a_failing_renderer_costs_only_the_frames(shm: Path, caplog: pytest.LogCaptureFixture) -> None:
    def render() -> Any:
        raise RuntimeError("no OpenGL")

    publisher = Publisher(settings())
    publisher.frame(render)
    publisher.step(1, 1.0)
    assert not publisher.frame_due()
    assert "no OpenGL" in caplog.text


def test_a_second_process_of_the_run_publishes_nothing_and_says_so_when_asked(
    shm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every process that a script starts is one: on the script's stderr it would be taken for what ended the run."""
    first = Publisher(settings())
    second = Publisher(settings())
    assert caplog.text == ""
    with caplog.at_level(logging.DEBUG):
        Publisher(settings())
    assert "already publishes" in caplog.text
    second.step(100, 1.0)
    second.frame(picture())
    second.close()
    first.step(1, 1.0)
    first.close()
    found = metrics.read("r")
    assert found is not None and found.env_steps == 1


def test_a_ring_that_a_reader_unlinked_is_made_anew(shm: Path) -> None:
    publisher = Publisher(settings())
    publisher.frame(picture(1))
    segment.unlink("mosaic.fastlane.r")  # what Python 3.11 does when a process that merely attached exits
    publisher.frame(picture(2))
    found = RingReader("r").latest_frame()
    assert found is not None and found.data[0] == 2


def test_a_forked_child_writes_nothing(shm: Path) -> None:
    publisher = Publisher(settings())
    publisher.step(1, 1.0)
    pid = os.fork()
    if pid == 0:
        publisher.step(1000, 9.0)
        publisher.frame(picture())
        publisher.close()
        os._exit(0)
    os.waitpid(pid, 0)
    publisher.close()
    found = metrics.read("r")
    assert found is not None and found.env_steps == 1
    assert not (shm / "mosaic.fastlane.r").exists()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"enabled": False, "mode": "single", "slot": 0, "grid_limit": 1, "interval": 0.1, "max_dim": 256}),
        ({"GYM_GUI_FASTLANE_ONLY": "Yes"}, {"enabled": True}),
        ({"GYM_GUI_FASTLANE_ONLY": "0"}, {"enabled": False}),
        ({"GYM_GUI_FASTLANE_VIDEO_MODE": "sideways"}, {"mode": "single"}),
        ({"GYM_GUI_FASTLANE_SLOT": "9", "CLEANRL_NUM_ENVS": "4"}, {"slot": 3}),
        ({"GYM_GUI_FASTLANE_SLOT": "-2"}, {"slot": 0}),
        ({"GYM_GUI_FASTLANE_GRID_LIMIT": "99", "CLEANRL_NUM_ENVS": "8"}, {"grid_limit": 8}),
        ({"CLEANRL_NUM_ENVS": "8"}, {"grid_limit": 4}),
        ({"CLEANRL_FASTLANE_INTERVAL_MS": "x", "CLEANRL_FASTLANE_MAX_DIM": "-1"}, {"interval": 0.1, "max_dim": 0}),
    ],
)
def test_settings_are_clamped(environ: dict[str, str], expected: dict[str, Any]) -> None:
    found = FastLaneSettings.from_env(environ)
    assert {name: getattr(found, name) for name in expected} == expected

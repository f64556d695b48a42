from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cleanrl_worker.fastlane import metrics
from cleanrl_worker.fastlane.ring import RingReader

RunScript = Callable[..., subprocess.CompletedProcess[str]]
FASTLANE = {"GYM_GUI_FASTLANE_ONLY": "1", "CLEANRL_FASTLANE_INTERVAL_MS": "0"}


def test_single_mode_shows_one_environment_and_counts_all(run_script: RunScript, run_id: str, tmp_path: Path) -> None:
    done = run_script("rollout_like.py", "CartPole-v1", "3", "100", CLEANRL_NUM_ENVS="3", **FASTLANE)
    assert done.returncode == 0, done.stderr
    found = metrics.read(run_id)
    assert found is not None
    assert found.env_steps == 300
    assert found.frames > 0
    assert found.episodes == done.stdout.count("return")
    frame = RingReader(run_id).latest_frame()
    assert frame is not None and (frame.width, frame.height) == (256, 170)


def test_grid_mode_tiles_the_first_environments(run_script: RunScript, run_id: str) -> None:
    done = run_script(
        "rollout_like.py",
        "CartPole-v1",
        "5",
        "50",
        CLEANRL_NUM_ENVS="5",
        GYM_GUI_FASTLANE_VIDEO_MODE="grid",
        **FASTLANE,
    )
    assert done.returncode == 0, done.stderr
    frame = RingReader(run_id).latest_frame()
    assert frame is not None and (frame.width, frame.height) == (256, 170), "4 of 5 environments, 2 by 2"


def test_frames_off_keeps_the_metrics(run_script: RunScript, run_id: str) -> None:
    done = run_script("rollout_like.py", "CartPole-v1", "1", "50", GYM_GUI_FASTLANE_VIDEO_MODE="off", **FASTLANE)
    assert done.returncode == 0, done.stderr
    found = metrics.read(run_id)
    assert found is not None and (found.env_steps, found.frames) == (50, 0)


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_steps_are_those_of_the_training_loop(run_script: RunScript, run_id: str, vector: str) -> None:
    """Not the frames that a wrapper skips, and not the evaluation at the end."""
    done = run_script("frameskip_like.py", vector, CLEANRL_NUM_ENVS="2", **FASTLANE)
    assert done.returncode == 0, done.stderr
    found = metrics.read(run_id)
    assert found is not None and found.env_steps == 100


def test_steps_go_on_counting_in_a_script_of_two_phases(run_script: RunScript, run_id: str) -> None:
    done = run_script("two_phases_like.py", **FASTLANE, CLEANRL_PROCEDURAL_GENERATION="1")
    assert done.returncode == 0, done.stderr
    found = metrics.read(run_id)
    assert found is not None and found.env_steps == 70
    assert "limit 200" in done.stdout, "what the outermost wrapper of gym.make answers is found below ours"


@pytest.mark.parametrize("script", ["envpool_like.py", "procgen_like.py"])
def test_environments_that_a_library_steps_in_one_piece_are_counted_and_shown(
    run_script: RunScript, run_id: str, script: str
) -> None:
    done = run_script(script, **FASTLANE)
    assert done.returncode == 0, done.stderr
    found = metrics.read(run_id)
    assert found is not None
    assert found.env_steps == 1200
    assert found.frames > 0
    assert RingReader(run_id).latest_frame() is not None


def test_video_of_the_first_environment(run_script: RunScript, tmp_path: Path) -> None:
    done = run_script(
        "rollout_like.py",
        "CartPole-v1",
        "2",
        "40",
        MOSAIC_CAPTURE_VIDEO="1",
        MOSAIC_VIDEOS_DIR=str(tmp_path / "v" / "w"),
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "v" / "w").glob("*.mp4"))


def test_a_script_that_records_itself_is_recorded_once(run_script: RunScript, tmp_path: Path) -> None:
    folder = tmp_path / "worker"
    done = run_script("video_like.py", MOSAIC_CAPTURE_VIDEO="1", MOSAIC_VIDEOS_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    assert list(folder.glob("*.mp4")) == []
    assert list((tmp_path / "mine").glob("*.mp4"))
    assert done.stdout.startswith(f"True {tmp_path / 'mine' / 'rl-video-episode-'}")


def test_tensorboard_folder_model_folder_and_resume(run_script: RunScript, tmp_path: Path) -> None:
    first = run_script("torch_like.py", "3", CLEANRL_TENSORBOARD_DIR=str(tmp_path / "tensorboard"))
    assert first.returncode == 0, first.stderr
    for folder, tag, value in (
        ("some_run", "charts/episodic_return", 7.0),
        ("agent0/losses", "losses/value_loss", 0.0),
        ("agent1/losses", "losses/value_loss", 1.0),
    ):
        accumulator = EventAccumulator(str(tmp_path / "tensorboard" / folder))
        accumulator.Reload()
        assert [point.value for point in accumulator.Scalars(tag)] == [value]
    assert (tmp_path / "runs" / "some_run" / "not_by_torch.model").exists(), "the writer's own folder is there as well"
    model = tmp_path / "runs" / "some_run" / "deep" / "model.pt"
    assert model.exists()

    second = run_script("torch_like.py", CLEANRL_RESUME_PATH=str(model))
    assert second.stdout == "weights 6.0 18.0\nlearned\n", second.stderr
    assert second.stderr.count("resumed ") == 2


def test_resume_takes_the_model_of_a_run_and_refuses_what_it_cannot_read(run_script: RunScript, tmp_path: Path) -> None:
    assert run_script("torch_like.py", "3").returncode == 0
    earlier = tmp_path / "earlier"
    model = earlier / "runs" / "some_run" / "script.cleanrl_model"
    model.parent.mkdir(parents=True)
    (tmp_path / "runs" / "some_run" / "deep" / "model.pt").rename(model)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    (tmp_path / "broken.pt").write_bytes(b"not a model")
    (tmp_path / "empty").mkdir()

    for path, sha256 in ((earlier, ""), (model, digest), (model, digest.upper())):
        done = run_script("torch_like.py", CLEANRL_RESUME_PATH=str(path), CLEANRL_CHECKPOINT_SHA256=sha256)
        assert done.stdout == "weights 6.0 18.0\nlearned\n", done.stderr
    for path, sha256 in ((tmp_path / "broken.pt", ""), (tmp_path / "empty", ""), (model, "0" * 64)):
        done = run_script("torch_like.py", CLEANRL_RESUME_PATH=str(path), CLEANRL_CHECKPOINT_SHA256=sha256)
        assert (done.returncode, done.stdout) == (2, ""), "it does not begin from nothing"
        assert done.stderr.splitlines()[-1].startswith(f"[cleanrl-worker] cannot resume from {path}: ")


def test_weights_that_fit_nothing_end_a_script_before_it_learns(run_script: RunScript, tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(9, 9), "bias": torch.zeros(9)}, other := tmp_path / "other.pt")
    done = run_script("torch_like.py", CLEANRL_RESUME_PATH=str(other))
    assert done.returncode == 2
    assert done.stdout.startswith("weights ") and "learned" not in done.stdout
    assert done.stderr.splitlines()[-1] == (
        f"[cleanrl-worker] cannot resume from {other}: 1 sets of weights fit no module"
    )
    done = run_script("flax_like.py", CLEANRL_RESUME_PATH=str(other))
    assert (done.returncode, done.stdout) == (2, "")
    assert "the script uses flax" in done.stderr.splitlines()[-1]

"""What the algorithm's process is told, and by whom when several have a say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker import environment
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.registry import parse
from cleanrl_worker.runfolder import RunFolder

FLAT = {"run_id": "r1", "algo": "plugin.x", "env_id": "E-v0", "total_timesteps": 1}
FOLDER = RunFolder(Path("/runs/r1"))


def build(base: dict[str, str] | None = None, go_on: bool = False, **config: Any) -> dict[str, str]:
    read = CleanRLWorkerConfig.from_dict({**FLAT, **config}, env=base or {})
    return environment.build(
        read, parse(read.algo), FOLDER, base=base or {}, wandb={"WANDB_MODE": "offline"}, go_on=go_on
    )


def test_the_defaults() -> None:
    env = build()
    expected = {
        "CLEANRL_RUN_ID": "r1",
        "CLEANRL_RUN_DIR": "/runs/r1",
        "MOSAIC_RUN_DIR": "/runs/r1",
        "CLEANRL_NUM_ENVS": "1",
        "CLEANRL_TENSORBOARD_DIR": "/runs/r1/tensorboard",
        "CLEANRL_CHECKPOINT_DIR": "/runs/r1/checkpoints",
        "CLEANRL_CHECKPOINT_EVERY_STEPS": "0",
        "CLEANRL_CHECKPOINT_EVERY_SECONDS": "300",
        "CLEANRL_CHECKPOINT_KEEP": "3",
        "GYM_GUI_FASTLANE_ONLY": "1",
        "GYM_GUI_FASTLANE_SLOT": "0",
        "GYM_GUI_FASTLANE_VIDEO_MODE": "single",
        "GYM_GUI_FASTLANE_GRID_LIMIT": "1",
        "CLEANRL_FASTLANE_INTERVAL_MS": "100",
        "CLEANRL_FASTLANE_MAX_DIM": "256",
        "WANDB_MODE": "offline",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    assert {name: env.get(name) for name in expected} == expected
    blank = build(
        {name: "" for name in expected if name.startswith(("GYM_GUI_", "CLEANRL_CHECKPOINT_", "CLEANRL_FASTLANE_"))}
    )
    assert {name: blank.get(name) for name in expected} == expected, "a variable that is set to nothing says nothing"
    for absent in ("CLEANRL_SEED", "CLEANRL_CONTINUE", "CLEANRL_RESUME_PATH", "MOSAIC_CAPTURE_VIDEO"):
        assert absent not in env


def test_the_configuration_wins_over_the_environment() -> None:
    base = {
        "GYM_GUI_FASTLANE_VIDEO_MODE": "grid",
        "GYM_GUI_FASTLANE_ONLY": "0",
        "CLEANRL_NUM_ENVS": "2",
        "CLEANRL_CHECKPOINT_KEEP": "9",
        "MOSAIC_CAPTURE_VIDEO": "1",
        "CLEANRL_RUN_DIR": "/elsewhere",
    }
    env = build(base)
    assert (env["GYM_GUI_FASTLANE_VIDEO_MODE"], env["GYM_GUI_FASTLANE_ONLY"]) == ("grid", "0")
    assert (env["CLEANRL_NUM_ENVS"], env["CLEANRL_CHECKPOINT_KEEP"]) == ("2", "9")
    assert "MOSAIC_CAPTURE_VIDEO" not in env
    extras = {
        "fastlane_video_mode": "off",
        "fastlane_only": True,
        "fastlane_grid_limit": 99,
        "checkpoint_keep": 5,
        "algo_params": {"num_envs": 8, "capture_video": True, "procedural_generation": False},
    }
    env = build(base, extras=extras, seed=7, worker_id="w", resources={"gpus": 1})
    assert (env["GYM_GUI_FASTLANE_VIDEO_MODE"], env["GYM_GUI_FASTLANE_ONLY"]) == ("off", "1")
    assert (env["CLEANRL_NUM_ENVS"], env["GYM_GUI_FASTLANE_GRID_LIMIT"]) == ("8", "8")
    assert (env["CLEANRL_CHECKPOINT_KEEP"], env["CLEANRL_SEED"], env["WORKER_ID"]) == ("5", "7", "w")
    assert (env["MOSAIC_CAPTURE_VIDEO"], env["MOSAIC_VIDEOS_DIR"]) == ("1", "/runs/r1/videos")
    assert env["CLEANRL_PROCEDURAL_GENERATION"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in env
    assert env["CLEANRL_RUN_DIR"] == "/runs/r1"


@pytest.mark.parametrize(("said", "limit"), [("2", "2"), ("0", "1"), ("99", "4"), ("many", "4"), ("\u00b2", "4")])
def test_a_grid_has_as_many_frames_as_there_are_environments_at_most(said: str, limit: str) -> None:
    env = build({"GYM_GUI_FASTLANE_GRID_LIMIT": said}, extras={"num_envs": 4})
    assert env["GYM_GUI_FASTLANE_GRID_LIMIT"] == limit


@pytest.mark.parametrize("yes", [True, 1, "1", "true", "yes", "on", "TRUE"])
@pytest.mark.parametrize("spelling", ["{}", "{}-{}", "--{}-{}"])
def test_a_parameter_means_the_same_however_it_is_written(yes: Any, spelling: str) -> None:
    def named(first: str, second: str) -> str:
        return f"{first}_{second}" if spelling == "{}" else spelling.format(first, second)

    params = {named("capture", "video"): yes, named("procedural", "generation"): yes, named("num", "envs"): 8.0}
    for extras in ({"algo_params": params}, params):
        env = build(extras=extras)
        assert env["MOSAIC_CAPTURE_VIDEO"] == "1"
        assert env["CLEANRL_PROCEDURAL_GENERATION"] == "1"
        assert env["CLEANRL_NUM_ENVS"] == "8"


def test_the_descriptors_environment_reaches_the_child() -> None:
    assert build({"A": "1"}, environment={"A": "2", "B": "3"})["A"] == "2"


def test_tensorboard_can_be_off_or_elsewhere() -> None:
    off = build({"CLEANRL_TENSORBOARD_DIR": "/x"}, artifacts={"tensorboard": {"enabled": False}})
    assert "CLEANRL_TENSORBOARD_DIR" not in off
    assert off["CLEANRL_TENSORBOARD"] == "0"
    assert build(extras={"tensorboard_dir": "/abs/tb"})["CLEANRL_TENSORBOARD_DIR"] == "/abs/tb"


@pytest.mark.parametrize(("go_on", "expected"), [(True, "1"), (False, None)])
def test_only_the_runtime_decides_about_continuing(go_on: bool, expected: str | None) -> None:
    assert build({"CLEANRL_CONTINUE": "1"}, go_on=go_on).get("CLEANRL_CONTINUE") == expected


def test_a_checkpoint_to_extend_is_named_from_where_the_user_stands() -> None:
    extras = {"mode": "resume_training", "checkpoint_path": "models/a"}
    assert build(extras=extras)["CLEANRL_RESUME_PATH"] == str(Path.cwd() / "models/a")
    assert build({"CLEANRL_RESUME_PATH": "b"})["CLEANRL_RESUME_PATH"] == str(Path.cwd() / "b")


def test_relative_import_paths_keep_their_meaning() -> None:
    assert build({"PYTHONPATH": "lib:/abs"})["PYTHONPATH"] == f"{Path.cwd() / 'lib'}:/abs"

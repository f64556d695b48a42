"""The child's environment, made from the configuration. Pure: dictionaries in, a dictionary out.

What the configuration says wins over what the worker's own environment says, and that wins over the default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cleanrl_worker import flags, registry
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.registry import Algorithm
from cleanrl_worker.runfolder import RunFolder

CONTINUE = "CLEANRL_CONTINUE"
RESUME_PATH = "CLEANRL_RESUME_PATH"
CHECKPOINT_SHA256 = "CLEANRL_CHECKPOINT_SHA256"
CURRICULUM = "CLEANRL_CURRICULUM"
TENSORBOARD_DIR = "CLEANRL_TENSORBOARD_DIR"
TENSORBOARD = "CLEANRL_TENSORBOARD"
_LOCAL_HOSTS = ("127.0.0.1", "localhost")


def build(
    config: CleanRLWorkerConfig,
    algorithm: Algorithm,
    folder: RunFolder,
    *,
    base: Mapping[str, str],
    wandb: Mapping[str, str],
    go_on: bool,
) -> dict[str, str]:
    """Everything the algorithm's process is told by its environment.

    `base` is the worker's own environment and `wandb` what W&B needs. `go_on`: continue from the newest checkpoint.
    """
    env = {**base, **config.environment}
    env.update(wandb)
    env.update(_identity(config, folder))
    env.update(_fastlane(config, algorithm, env))
    env.update(_checkpoints(config, folder, env))
    _resume(env, config, go_on)
    env.pop(CURRICULUM, None)
    if config.stages:
        env[CURRICULUM] = json.dumps([stage.to_dict() for stage in config.stages])
    _tensorboard(env, config, folder)
    _video(env, config, folder)
    procedural = flags.truth(flags.given(config.extras).get("procedural_generation"))
    if procedural is not None:
        env["CLEANRL_PROCEDURAL_GENERATION"] = "1" if procedural else "0"
    if not config.cuda:
        env["CUDA_VISIBLE_DEVICES"] = ""  # also for those who never look at the flag
    if algorithm.upstream_dir is not None:
        env[registry.UPSTREAM_DIR] = str(algorithm.upstream_dir)
    env["PYTHONUNBUFFERED"] = "1"
    if env.get("PYTHONPATH"):  # relative entries count from where the worker was started, not from the run's folder
        entries = [os.path.abspath(entry) for entry in env["PYTHONPATH"].split(os.pathsep) if entry]  # noqa: PTH100
        env["PYTHONPATH"] = os.pathsep.join(entries)
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [host for host in env.get(name, "").split(",") if host.strip()]
        env[name] = ",".join([*hosts, *(host for host in _LOCAL_HOSTS if host not in hosts)])
    return env


def num_envs(config: CleanRLWorkerConfig, algorithm: Algorithm, env: Mapping[str, str]) -> int:
    """How many environments the algorithm steps at once, as far as that can be known from outside."""
    candidates = (
        flags.given(config.extras).get("num_envs"),
        env.get("CLEANRL_NUM_ENVS"),
        flags.default_of(algorithm, "num_envs"),
    )
    return next((count for value in candidates if (count := flags.whole(value)) is not None and count > 0), 1)


def _identity(config: CleanRLWorkerConfig, folder: RunFolder) -> dict[str, str]:
    worker = config.worker_id or f"cleanrl-worker-{config.run_id[:8]}"
    named = {
        "CLEANRL_RUN_ID": config.run_id,
        "MOSAIC_RUN_ID": config.run_id,
        "CLEANRL_RUN_DIR": str(folder.path),
        "MOSAIC_RUN_DIR": str(folder.path),
        "CLEANRL_AGENT_ID": str(config.extras.get("agent_id") or worker),
        "WORKER_ID": worker,
    }
    return named if config.seed is None else {**named, "CLEANRL_SEED": str(config.seed)}


def _fastlane(config: CleanRLWorkerConfig, algorithm: Algorithm, env: Mapping[str, str]) -> dict[str, str]:
    extras = config.extras
    count = num_envs(config, algorithm, env)
    on = extras.get("fastlane_only")
    on = extras.get("fastlane_enabled") if on is None else on
    limit = flags.whole(_first(extras.get("fastlane_grid_limit"), env.get("GYM_GUI_FASTLANE_GRID_LIMIT"), count))
    return {
        "CLEANRL_NUM_ENVS": str(count),
        "GYM_GUI_FASTLANE_ONLY": _first(env.get("GYM_GUI_FASTLANE_ONLY"), "1") if on is None else "1" if on else "0",
        "GYM_GUI_FASTLANE_SLOT": _first(extras.get("fastlane_slot"), env.get("GYM_GUI_FASTLANE_SLOT"), 0),
        "GYM_GUI_FASTLANE_VIDEO_MODE": _first(
            extras.get("fastlane_video_mode"), env.get("GYM_GUI_FASTLANE_VIDEO_MODE"), "single"
        ),
        "GYM_GUI_FASTLANE_GRID_LIMIT": str(count if limit is None else min(max(1, limit), count)),
        "CLEANRL_FASTLANE_INTERVAL_MS": _first(
            extras.get("fastlane_interval_ms"), env.get("CLEANRL_FASTLANE_INTERVAL_MS"), 100
        ),
        "CLEANRL_FASTLANE_MAX_DIM": _first(extras.get("fastlane_max_dim"), env.get("CLEANRL_FASTLANE_MAX_DIM"), 256),
    }


def _checkpoints(config: CleanRLWorkerConfig, folder: RunFolder, env: Mapping[str, str]) -> dict[str, str]:
    extras = config.extras
    every_steps, every_seconds = "CLEANRL_CHECKPOINT_EVERY_STEPS", "CLEANRL_CHECKPOINT_EVERY_SECONDS"
    keep = "CLEANRL_CHECKPOINT_KEEP"
    return {
        "CLEANRL_CHECKPOINT_DIR": str(folder.checkpoints),
        "MOSAIC_CHECKPOINT_DIR": str(folder.checkpoints),
        every_steps: _first(extras.get("checkpoint_every_steps"), env.get(every_steps), 0),
        every_seconds: _first(extras.get("checkpoint_every_seconds"), env.get(every_seconds), 300),
        keep: _first(extras.get("checkpoint_keep"), env.get(keep), 3),
    }


def _resume(env: dict[str, str], config: CleanRLWorkerConfig, go_on: bool) -> None:
    env.pop(CONTINUE, None)
    if go_on:
        env[CONTINUE] = "1"
    if config.mode == "resume_training" and config.extras.get("checkpoint_path"):
        env[RESUME_PATH] = str(Path(config.extras["checkpoint_path"]).absolute())
    elif env.get(RESUME_PATH):
        env[RESUME_PATH] = str(Path(env[RESUME_PATH]).absolute())
    env.pop(CHECKPOINT_SHA256, None)
    if config.extras.get("checkpoint_sha256"):
        env[CHECKPOINT_SHA256] = config.extras["checkpoint_sha256"]


def _tensorboard(env: dict[str, str], config: CleanRLWorkerConfig, folder: RunFolder) -> None:
    directory = config.tensorboard_dir
    env[TENSORBOARD] = "0" if directory is None else "1"
    if directory is None:
        env.pop(TENSORBOARD_DIR, None)
    else:
        env[TENSORBOARD_DIR] = str(folder.path / directory)


def _video(env: dict[str, str], config: CleanRLWorkerConfig, folder: RunFolder) -> None:
    wanted = flags.given(config.extras).get("capture_video")
    if config.mode == "policy_eval":
        wanted = config.extras.get("eval_capture_video")
    if flags.truth(wanted):
        env["MOSAIC_CAPTURE_VIDEO"] = "1"
        env["MOSAIC_VIDEOS_DIR"] = str(folder.videos)
    else:
        env.pop("MOSAIC_CAPTURE_VIDEO", None)
        env.pop("MOSAIC_VIDEOS_DIR", None)


def _first(*values: Any) -> str:
    """The first that says something: a variable that is set to nothing does not."""
    return str(next(value for value in values if value not in (None, "")))

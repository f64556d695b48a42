"""The worker's config out of a run's spec: the contract's own names, nothing secret."""

from __future__ import annotations

from typing import Any

from cleanrl_operator.api.spec import Mode
from cleanrl_operator.api.status import SourceStatus
from cleanrl_operator.policies.gpu import gpus_held
from cleanrl_operator.run import Run

MODES = {
    Mode.TRAIN: "train",
    Mode.CURRICULUM: "train",
    Mode.RESUME: "resume_training",
    Mode.POLICY_EVAL: "policy_eval",
    Mode.INTERACTIVE: "interactive",
    Mode.SCRIPT: "script",
}
TENSORBOARD_FOLDER = "tensorboard"
"""Of the run's folder, what the pod's TensorBoard shows: curves that are written elsewhere nobody would see."""
PRESETS = {"babyai-goto": "BABYAI_GOTO_CURRICULUM", "babyai-doorkey": "BABYAI_DOORKEY_CURRICULUM"}


def build(run: Run, source: SourceStatus | None, source_folder: str, script_folder: str) -> dict[str, Any]:
    """The config in the flat form that `--config` takes.

    `source` is what it starts from of the run that `from.run` names, whose folder is mounted at `source_folder`; for a path of
    `from.path` the run's claim is. A script's ConfigMap is at `script_folder`.
    """
    spec = run.spec
    extras: dict[str, Any] = {
        **spec.extras.dump(),
        "mode": MODES[Mode(spec.mode)],
        "cuda": gpus_held(spec, run.status) > 0,
        "algo_params": {**_object(spec.extras.dump().get("algo_params")), **spec.algo_params.dump()},
        "track_wandb": spec.artifacts.wandb.enabled,
        "fastlane_video_mode": str(spec.fastlane.video_mode),
        "fastlane_slot": spec.fastlane.slot,
        "fastlane_grid_limit": spec.fastlane.grid_limit,
    }
    if spec.artifacts.tensorboard.enabled:
        extras["tensorboard_dir"] = TENSORBOARD_FOLDER
    if spec.artifacts.capture_video:
        extras["algo_params"]["capture_video"] = True
    if spec.artifacts.wandb.project:
        extras["wandb_project_name"] = spec.artifacts.wandb.project
    if spec.artifacts.wandb.entity:
        extras["wandb_entity"] = spec.artifacts.wandb.entity
    if spec.artifacts.wandb.group:
        extras["wandb_group"] = spec.artifacts.wandb.group
    if spec.artifacts.wandb.tags:
        extras["wandb_tags"] = list(spec.artifacts.wandb.tags)
    if spec.artifacts.wandb.proxy is not None:
        proxy = spec.artifacts.wandb.proxy
        extras |= {"wandb_http_proxy": proxy.http, "wandb_https_proxy": proxy.https}
        extras["wandb_use_vpn_proxy"] = proxy.use_vpn
    if spec.requirements:
        extras["requirements"] = [str(name) for name in spec.requirements]
    extras |= _curriculum(run) | _source(run, source, source_folder) | _evaluation(run) | _script(run, script_folder)
    config: dict[str, Any] = {
        "run_id": run.run_id,
        "worker_id": run.pod_name(run.next_attempt),
        "algo": spec.algo,
        "env_id": spec.env_id,
        "seed": spec.seed,
        "extras": {name: value for name, value in extras.items() if value is not None},
    }
    if not spec.artifacts.tensorboard.enabled:
        config["tensorboard"] = False
    if spec.total_timesteps is not None:
        config["total_timesteps"] = spec.total_timesteps
    if spec.dry_run:
        config["dry_run"] = True
    return config


def _curriculum(run: Run) -> dict[str, Any]:
    curriculum = run.spec.curriculum
    if curriculum is None:
        return {}
    if curriculum.preset is not None:
        return {"curriculum_schedule": PRESETS[str(curriculum.preset)]}
    stages = [
        {
            "env_id": stage.env_id,
            "steps": stage.steps,
            "episodes": stage.episodes,
            "episode_return": stage.episode_return,
        }
        for stage in curriculum.schedule or []
    ]
    return {"curriculum_schedule": [{k: v for k, v in stage.items() if v is not None} for stage in stages]}


def _source(run: Run, source: SourceStatus | None, source_folder: str) -> dict[str, Any]:
    """Where to start from: a path on the run's claim, or the checkpoint that the source run's status vouches for."""
    named = run.spec.from_
    if named is None:
        return {}
    key = "checkpoint_path" if run.spec.mode == Mode.RESUME else "policy_path"
    if source is None:
        return {key: f"{source_folder}/{named.path or ''}"}
    return {key: f"{source_folder}/{source.checkpoint}", "checkpoint_sha256": source.sha256}


def _script(run: Run, script_folder: str) -> dict[str, Any]:
    script = run.spec.script
    if script is None:
        return {}
    return {"script_path": script.path or f"{script_folder}/{script.key}"}


def _evaluation(run: Run) -> dict[str, Any]:
    if run.spec.mode != Mode.POLICY_EVAL:
        return {}
    asked = run.spec.evaluation
    if asked is None:
        return {"eval_episodes": 50}
    return {
        "eval_episodes": asked.episodes,
        "eval_gamma": asked.gamma,
        "eval_capture_video": asked.capture_video,
        "eval_repeat": asked.repeat,
        "eval_max_episode_steps": asked.max_episode_steps,
        "eval_max_episode_seconds": asked.max_episode_seconds,
    }


def _object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}

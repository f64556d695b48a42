"""From a configuration to the command line of a mode that is not training. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.flags import given, truth
from cleanrl_worker.plainfile import exists

MODULES = {
    "policy_eval": "cleanrl_worker.modes.policy_eval",
    "interactive": "cleanrl_worker.modes.interactive",
    "script": "cleanrl_worker.modes.script",
}
"""Modes whose process is not the algorithm's."""
DEFAULT_EPISODES = 5


def arguments(config: CleanRLWorkerConfig) -> list[str]:
    """The flags of the mode's module."""
    extras = config.extras
    if config.mode == "script":
        return [f"--script-path={_absolute(extras['script_path'])}"]
    algo = config.algo.removeprefix("cleanrl.")
    words = [f"--algo={algo}", f"--env-id={config.env_id}", f"--policy-path={_absolute(extras['policy_path'])}"]
    words += _given(extras, {"checkpoint_sha256": "sha256", "eval_max_episode_steps": "max-episode-steps"})
    words += ["--greedy"] if extras.get("eval_greedy") else []
    params = given(extras)
    if extras.get("eval_max_episode_steps") is None:
        words += _given(params, {"max_episode_steps": "max-episode-steps"})
    words += _given(params, {"view_size": "view-size"})
    if truth(params.get("procedural_generation")) is False:
        words.append("--no-procedural-generation")
    if config.mode == "interactive":
        return [f"--run-id={config.run_id}", *words]
    gamma = params.get("gamma") if extras.get("eval_gamma") is None else extras["eval_gamma"]
    words += [f"--episodes={extras.get('eval_episodes') or DEFAULT_EPISODES}"]
    words += _given(extras, {"eval_batch_size": "batch-size", "eval_max_episode_seconds": "max-episode-seconds"})
    words += [] if gamma is None else [f"--gamma={gamma}"]
    words += [] if config.seed is None else [f"--seed={config.seed}"]
    words += ["--repeat"] if extras.get("eval_repeat") else []
    words += ["--capture-video"] if extras.get("eval_capture_video") else []
    return words


def _given(source: Mapping[str, Any], names: dict[str, str]) -> list[str]:
    return [f"--{flag}={source[name]}" for name, flag in names.items() if source.get(name) is not None]


def _absolute(path: str) -> str:
    """Relative paths count from where the worker was started; a bare name may be a shipped script's."""
    return str(Path(path).absolute()) if exists(path) or len(Path(path).parts) > 1 else path

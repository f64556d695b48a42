"""The algorithm's command line: which extras become flags, and how each value is written.

Flags are known from `schemas.json`, so a misspelt one is an error before anything starts. Algorithms without an entry
there (plug-ins, unknown upstream scripts) get what they are given.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from cleanrl_worker.registry import Algorithm
from cleanrl_worker.script_options import Option
from cleanrl_worker.tools.schemas import load_schemas

WORKER_KEYS = frozenset(
    {
        "mode",
        "algo_params",
        "cuda",
        "use_cuda",
        "gpu",
        "track_wandb",
        "tensorboard_dir",
        "notes",
        "agent_id",
        "requirements",
        "continue",
        "upstream_dir",
        "wandb_run_name",
        "wandb_email",
        "wandb_group",
        "wandb_tags",
        "wandb_api_key",
        "wandb_http_proxy",
        "wandb_https_proxy",
        "wandb_use_vpn_proxy",
        "wandb_run_path",
        "wandb_project",
        "fastlane_only",
        "fastlane_slot",
        "fastlane_video_mode",
        "fastlane_grid_limit",
        "fastlane_enabled",
        "fastlane_interval_ms",
        "fastlane_max_dim",
        "checkpoint_every_steps",
        "checkpoint_every_seconds",
        "checkpoint_keep",
        "policy_path",
        "checkpoint_path",
        "checkpoint_dir",
        "checkpoints_dir",
        "curriculum_schedule",
        "max_wallclock_minutes",
        "eval_capture_video",
        "eval_episodes",
        "eval_gamma",
        "eval_max_episode_steps",
        "eval_max_episode_seconds",
        "eval_batch_size",
        "eval_repeat",
        "eval_greedy",
        "script_path",
        "checkpoint_sha256",
        "schema_id",
        "schema_version",
        "supports_pause",
        "supports_checkpoint",
        "optuna_db",
    }
)
"""Extras that are the worker's own. They are never passed on as flags."""

_PASSED_WHEN_KNOWN = frozenset({"wandb_entity", "wandb_project_name", "procedural_generation"})
"""Keys that reach every run by the environment; a flag as well only where the algorithm has one."""

_NOT_UPSTREAMS = frozenset({"procedural_generation"})
"""Flags that no upstream script has, also where ours of the same name does."""

_TOP_LEVEL = frozenset({"env_id", "total_timesteps", "seed", "cuda", "track"})
"""Flags that the run's own fields set; the same name among the algorithm's parameters is not repeated."""

_FORMER_NAMES = {"env_id": "gym_id"}
"""As upstream's first scripts have it."""

_TRUE, _FALSE = frozenset({"1", "true", "yes", "on", "t", "y"}), frozenset({"0", "false", "no", "off", "f", "n"})

Schema = Mapping[str, Mapping[str, Any]]


def canonical(name: str) -> str:
    """`learning-rate` and `learning_rate` are one flag."""
    return name.strip().lstrip("-").replace("-", "_")


def schema_of(algorithm: Algorithm) -> Schema | None:
    """Field name -> its entry in `schemas.json`; None when the algorithm's flags are not known."""
    if algorithm.schema_name is None:
        return None
    entry = load_schemas()["algorithms"].get(algorithm.schema_name)
    return None if entry is None else {field["name"]: field for field in entry["fields"]}


def given(extras: Mapping[str, Any]) -> dict[str, Any]:
    """What the extras say about the algorithm's parameters, by canonical name; as with its flags, the last word counts."""
    return {name: value for _, name, value in parameters(extras) if not _is_blank(value)}


def truth(value: Any) -> bool | None:
    """What a switch is set to, in whichever way that is written; None when it isn't set, or to nonsense."""
    word = _write(value, "bool")
    return None if word is None else word == "True"


def whole(value: Any) -> int | None:
    """A whole number, in whichever way it is written; None when it isn't one."""
    word = _write(value, "int")
    return None if word is None else int(word)


def default_of(algorithm: Algorithm, name: str) -> Any:
    """The default of one flag, None when there is no such flag or nobody knows."""
    return (schema_of(algorithm) or {}).get(name, {}).get("default")


def check(algorithm: Algorithm, extras: Mapping[str, Any]) -> list[str]:
    """One line for each extra that the algorithm would refuse; empty when all is well."""
    schema = schema_of(algorithm)
    problems = []
    for path, name, value in parameters(extras):
        text = f"{path}: "
        if any(character in name for character in "\r\n\0= ") or not name:
            problems.append(f"{text}is not a name that a flag can have")
        elif any(character in item for item in _texts(value) for character in "\r\n\0"):
            problems.append(f"{text}must not contain a line break or a NUL character")
        elif schema is not None and not algorithm.foreign:
            problem = _mismatch(schema, name, value)
            if problem:
                problems.append(text + problem)
    return problems


def build(
    algorithm: Algorithm,
    *,
    env_id: str,
    total_timesteps: int,
    seed: int | None,
    track: bool,
    cuda: bool,
    extras: Mapping[str, Any],
) -> list[str]:
    """The flags, in a fixed order: the run's own fields, `algo_params`, then the remaining extras."""
    schema = schema_of(algorithm)
    words = [f"{_spelt(algorithm, 'env_id')}={env_id}", f"{_spelt(algorithm, 'total_timesteps')}={total_timesteps}"]
    if seed is not None:
        words.append(f"{_spelt(algorithm, 'seed')}={seed}")
    if track:
        words += _switch(algorithm, "track", True)
    # An algorithm whose flags nobody knows is told only what was said in so many words.
    takes_cuda = "cuda" in schema if schema is not None else cuda or _said_no_to_cuda(extras)
    if algorithm.options and "cuda" not in algorithm.options:  # somebody's own script of a name that is known
        takes_cuda = False
    if takes_cuda:
        words += _switch(algorithm, "cuda", cuda)
    for _, name, value in parameters(extras):
        lacking = schema is not None and name not in schema and name in _PASSED_WHEN_KNOWN
        if name in _TOP_LEVEL or lacking or (algorithm.foreign and name in _NOT_UPSTREAMS):
            continue
        words += _flag(algorithm, name, value, (schema or {}).get(name, {}).get("type"))
    return words


def check_command(command: Iterable[object]) -> list[str]:
    """The command as text. Raises ValueError when a component is missing or would break a line or a string."""
    words = []
    for index, word in enumerate(command):
        if word is None:
            raise ValueError(f"Command component at index {index} is None")
        text = str(word)
        if any(character in text for character in "\r\n\0"):
            raise ValueError(f"Command component at index {index} contains a line break or a NUL character")
        words.append(text)
    return words


def parameters(extras: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """(where it was given, canonical name, value) of everything that is meant for the algorithm."""
    params = extras.get("algo_params")
    params = params if isinstance(params, Mapping) else {}
    found = [(f"extras.algo_params.{key}", canonical(str(key)), value) for key, value in params.items()]
    found += [(f"extras.{key}", canonical(str(key)), value) for key, value in extras.items() if key not in WORKER_KEYS]
    return found


def _mismatch(schema: Schema, name: str, value: Any) -> str | None:
    field = schema.get(name)
    if field is None:
        if name in _PASSED_WHEN_KNOWN:
            return None
        close = difflib.get_close_matches(name, [*schema, *WORKER_KEYS], n=2)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; the flags are listed in the algorithm's --help"
        return f"the algorithm has no flag --{name.replace('_', '-')}{hint}"
    if value is None or value == "":
        return None
    kind = str(field["type"])
    items = value if isinstance(value, list | tuple) and kind.startswith("list[") else [value]
    inner = kind.removeprefix("list[").removesuffix("]")
    for item in items:
        if _write(item, inner) is None:
            return f"expected {_words(inner)}, got {json.dumps(item, default=str)[:80]}"
    choices = field.get("choices")
    if choices and str(value) not in [str(choice) for choice in choices]:
        return f"expected one of {', '.join(map(str, choices))}, got {json.dumps(value, default=str)[:80]}"
    return None


def _words(kind: str) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(kind, "text or a number")


def _flag(algorithm: Algorithm, name: str, value: Any, kind: str | None) -> list[str]:
    if _is_blank(value) or isinstance(value, Mapping):
        return []
    spelt = _spelt(algorithm, name)
    if isinstance(value, list | tuple):
        items = [text for item in value if (text := _write(item, None)) is not None]
        if items and _hears_a_list(algorithm, name, kind):
            return [spelt, *items]
        return [f"{spelt}={item}" for item in items]
    text = _write(value, kind)
    if text is None:  # only a script of others, whose flags are its own business: it says what is wrong with it
        return [f"{spelt}={value}"]
    if kind == "bool" or (kind is None and isinstance(value, bool)):
        return _switch(algorithm, name, text == "True")
    return [f"{spelt}={text}"]


def _option(algorithm: Algorithm, name: str) -> Option:
    """What is known of one flag; else it is spelt as upstream's are."""
    known = algorithm.options or {}
    return known.get(name) or known.get(_FORMER_NAMES.get(name, "")) or Option(f"--{name.replace('_', '-')}")


def _hears_a_list(algorithm: Algorithm, name: str, kind: str | None) -> bool:
    """Whether the flag takes all of a list at once: of a repeated one, argparse and tyro hear the last value only."""
    if algorithm.options is not None and name in algorithm.options:
        return algorithm.options[name].action != "append"
    return algorithm.tyro or (kind or "").startswith("list[")


def _spelt(algorithm: Algorithm, name: str) -> str:
    return _option(algorithm, name).spelling


def _switch(algorithm: Algorithm, name: str, on: bool) -> list[str]:
    if algorithm.options is not None:
        return _option(algorithm, name).switch(on)
    dashed = name.replace("_", "-")
    return [f"--{dashed}" if on else f"--no-{dashed}"]


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _write(value: Any, kind: str | None) -> str | None:
    """A scalar as a flag's value of this type; None when it isn't one."""
    if kind == "bool":
        word = str(value).strip().lower()
        return "True" if word in _TRUE else "False" if word in _FALSE else None
    if kind in ("int", "float"):
        return None if isinstance(value, bool) else _number(value, whole=kind == "int")
    return str(value) if isinstance(value, str | int | float) else None


def _number(value: Any, *, whole: bool) -> str | None:
    try:
        number = value if isinstance(value, int) else float(value)
        if whole:
            return str(int(number)) if int(number) == number else None
        return str(number)
    except (TypeError, ValueError, OverflowError):
        return None


def _texts(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list | tuple) else [value])]


def _said_no_to_cuda(extras: Mapping[str, Any]) -> bool:
    words = [given(extras).get("cuda"), *(extras.get(name) for name in ("cuda", "use_cuda", "gpu"))]
    return any(truth(word) is False for word in words)

"""The shape of a configuration's parts, as pydantic models, and their faults in words.

Only what the worker understands is described; everything else passes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from cleanrl_worker.redact import HIDDEN, is_secret_name

MODES = ("train", "resume_training", "policy_eval", "interactive", "curriculum", "script")
MODE_ALIASES = {
    "resume": "resume_training",
    "eval": "policy_eval",
    "evaluate": "policy_eval",
    "custom_script": "script",
}

SAFE_ID = r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,127}$"
_SAFE_ID_WORDS = "letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 128"


def _not_a_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, got true or false")  # noqa: TRY004 - pydantic reports ValueError only
    return value


def _blank_is_none(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _zero_is_none(value: Any) -> Any:
    """Forms write 0 for no limit."""
    return None if not isinstance(value, bool) and value in (0, "0") else value


def mode_name(value: Any) -> Any:
    """The mode by its own name: manifests and older descriptors have other words for some."""
    if not isinstance(value, str):
        return value
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", value.strip()).lower().replace("-", "_")
    return MODE_ALIASES.get(word, word) or None


def _count_alone(value: Any) -> Any:
    """`gpus: 1` is short for `gpus: {requested: 1}`."""
    return {"requested": value} if isinstance(value, int | float | str) else value


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _text_of_scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int | float) else value


Whole = Annotated[int, BeforeValidator(_not_a_bool), Field(lt=2**63, gt=-(2**63))]
Number = Annotated[float, BeforeValidator(_not_a_bool), Field(allow_inf_nan=False)]
Blankable = BeforeValidator(_blank_is_none)
Unlimited = BeforeValidator(_zero_is_none)
Sha256 = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{64}$")]
WorkerId = Annotated[str, BeforeValidator(_text_of_number), StringConstraints(strip_whitespace=True, max_length=256)]
Text = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\s\x00-\x1f\x7f]+$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Gpus(_Part):
    requested: Annotated[Whole, Field(ge=0, le=1024)] = 0
    mandatory: bool | None = None


class Resources(_Part):
    gpus: Annotated[Gpus | None, BeforeValidator(_count_alone)] = None


class Schedule(_Part):
    max_duration_seconds: Annotated[Number, Field(gt=0)] | None = None


class Switch(_Part):
    enabled: bool | None = None


class Artifacts(_Part):
    tensorboard: Switch | None = None
    wandb: Switch | None = None


class Job(_Part):
    """The keys of a whole job descriptor that this worker honours."""

    resources: Resources | None = None
    schedule: Schedule | None = None
    artifacts: Artifacts | None = None
    environment: dict[str, Annotated[str, BeforeValidator(_text_of_scalar)]] | None = None
    max_wallclock_minutes: Annotated[Number, Field(gt=0)] | None = None


class Extras(BaseModel):
    """The extras that the worker itself understands; all others are the algorithm's."""

    model_config = ConfigDict(extra="allow")

    mode: Annotated[Literal[MODES] | None, BeforeValidator(mode_name)] = None  # type: ignore[valid-type]
    algo_params: dict[str, Any] | None = None
    cuda: bool | None = None
    use_cuda: bool | None = None
    gpu: bool | None = None
    track_wandb: bool | None = None
    tensorboard_dir: Annotated[str | None, Blankable] = None
    notes: Any = None
    agent_id: Annotated[str | None, Blankable] = None
    requirements: list[str] | None = None
    policy_path: Annotated[str | None, Blankable] = None
    checkpoint_path: Annotated[str | None, Blankable] = None
    upstream_dir: Annotated[str | None, Blankable] = None
    checkpoint_sha256: Annotated[Sha256 | None, Blankable] = None
    script_path: Annotated[str | None, Blankable] = None
    curriculum_schedule: Any = None
    eval_episodes: Annotated[Whole, Field(ge=1)] | None = None
    eval_batch_size: Annotated[Whole, Field(ge=1)] | None = None
    eval_gamma: Annotated[Number, Field(ge=0, le=1)] | None = None
    eval_max_episode_steps: Annotated[Annotated[Whole, Field(ge=1)] | None, Unlimited] = None
    eval_max_episode_seconds: Annotated[Annotated[Number, Field(gt=0)] | None, Unlimited] = None
    eval_repeat: bool | None = None
    eval_greedy: bool | None = None
    eval_capture_video: bool | None = None
    wandb_api_key: Annotated[str | None, Blankable] = None
    wandb_http_proxy: Annotated[str | None, Blankable] = None
    wandb_https_proxy: Annotated[str | None, Blankable] = None
    wandb_use_vpn_proxy: bool | None = None
    wandb_run_name: Annotated[str | None, Blankable] = None
    wandb_group: Annotated[str | None, Blankable] = None
    wandb_tags: list[str] | str | None = None
    fastlane_only: bool | None = None
    fastlane_enabled: bool | None = None
    fastlane_slot: Annotated[Whole, Field(ge=0)] | None = None
    fastlane_video_mode: Annotated[Literal["single", "grid", "off"] | None, Blankable] = None
    fastlane_grid_limit: Annotated[Whole, Field(ge=1)] | None = None
    fastlane_interval_ms: Annotated[Whole, Field(ge=0)] | None = None
    fastlane_max_dim: Annotated[Whole, Field(ge=0)] | None = None
    checkpoint_every_steps: Annotated[Whole, Field(ge=0)] | None = None
    checkpoint_every_seconds: Annotated[Whole, Field(ge=0)] | None = None
    checkpoint_keep: Annotated[Whole, Field(ge=1)] | None = None
    max_wallclock_minutes: Annotated[Number, Field(gt=0)] | None = None


class Worker(_Part):
    """The worker's part. `run_id` is settled before this is read."""

    run_id: Annotated[str, BeforeValidator(_text_of_number), Field(pattern=SAFE_ID)]
    algo: Text
    env_id: Text
    total_timesteps: Whole | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**32)] | None = None
    dry_run: bool | None = None
    worker_id: Annotated[WorkerId | None, Blankable] = None
    max_wallclock_minutes: Annotated[Number, Field(gt=0)] | None = None


_EXPECTED: dict[str, str] = {
    "missing": "is required",
    "string_type": "expected text",
    "string_unicode": "expected text that is valid Unicode",
    "string_too_short": "must not be empty",
    "string_too_long": "is too long",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a whole number of sensible size",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "finite_number": "expected a finite number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "dict_type": "expected an object",
    "model_type": "expected an object",
    "model_attributes_type": "expected an object",
    "list_type": "expected a list",
}


def explain(error: Any, prefix: str) -> str:
    path = ".".join([*([prefix] if prefix else []), *(str(part) for part in error["loc"])])
    kind, context, got = error["type"], error.get("ctx", {}), error["input"]
    if kind == "missing" or got is None:
        return f"{path}: is required" + (" and must not be null" if kind != "missing" else "")
    if kind in ("greater_than_equal", "greater_than", "less_than", "less_than_equal"):
        words = {"ge": "at least", "gt": "more than", "lt": "less than", "le": "at most"}
        expected = "expected a number of " + " and ".join(f"{words[k]} {v:g}" for k, v in context.items() if k in words)
    elif kind == "string_pattern_mismatch":
        words = {"run_id": _SAFE_ID_WORDS, "extras.checkpoint_sha256": "a sha256 of 64 hexadecimal digits"}
        expected = f"expected {words.get(path, 'text without spaces')}"
    elif kind == "literal_error":
        expected = f"expected one of {', '.join(repr(choice) for choice in _choices(context))}"
    elif kind == "value_error":
        expected = str(context.get("error", error["msg"])).partition(", got")[0]
    else:
        expected = _EXPECTED.get(kind, error["msg"].removeprefix("Input should be "))
    shown = HIDDEN if is_secret_name(path.rpartition(".")[2]) else show(got)
    return f"{path}: {expected}, got {shown}"


def _choices(context: Mapping[str, Any]) -> list[str]:
    return re.findall(r"'([^']*)'", str(context.get("expected", "")))


def show(value: Any) -> str:
    """A value as JSON, short and in ASCII, so that it can be printed anywhere."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."

"""The termination record: what a worker leaves behind when its container ends.

The kubelet keeps at most 4 KiB of a container's termination message, so the record has at most 3 KiB, whatever
happened. `dump` always fits (the message is shortened first); `parse` reads it on the operator's side and trusts
nothing.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

MAX_RECORD_BYTES = 3 * 1024
MAX_MESSAGE = 2000
MAX_TRANSITIONS = 20
MAX_URL = 512
MAX_PATH = 256
REASON = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"

Outcome = Literal["completed", "failed", "canceled", "deadline_exceeded", "suspended"]
"""`suspended`: the worker obeyed a request to stop that is no end of the run."""

State = Literal["INIT", "HSHK", "RDY", "EXEC", "PAUSE", "FAULT", "TERM"]


class BadRecord(ValueError):
    """A termination message that is no record of ours. The text is safe to show."""


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def is_inside(path: str) -> bool:
    """Whether this is a path inside the run's folder that a status may show."""
    return 0 < len(path) <= MAX_PATH and not path.startswith("/") and ".." not in path.split("/") and path.isprintable()


def _relative(path: str) -> str:
    if not is_inside(path):
        raise ValueError("has to be a path inside the run's folder")
    return path


def _shorten(limit: int) -> Any:
    """Both ends of a long text say more than one: the sentence at the front and the last line at the back."""

    def shorten(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        clean = _printable(value).strip()
        return clean if len(clean) <= limit else f"{clean[: limit // 2 - 3]} ... {clean[-(limit // 2 - 3) :]}"

    return shorten


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Time = Annotated[float, Field(ge=0, lt=2**37, allow_inf_nan=False)]
"""Up to the year 6325: a date can be made of it."""


class _Model(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )


class Transition(_Model):
    """When the worker entered a state, in seconds since 1970."""

    state: State
    at: Time


class CheckpointRef(_Model):
    """The newest checkpoint that is whole."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH), AfterValidator(_relative)]
    step: Count
    sha256: Sha256


class TerminationRecord(_Model):
    """See the module. Field names travel in camel case."""

    version: Literal[1] = 1
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    attempt: Annotated[int, Field(ge=1, lt=2**31)] = 1
    outcome: Outcome
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=64)] | None = None
    reason: Annotated[str, Field(pattern=REASON)] | None = None
    message: Annotated[str, BeforeValidator(_shorten(MAX_MESSAGE)), Field(max_length=MAX_MESSAGE)] = ""
    transitions: Annotated[list[Transition], Field(max_length=MAX_TRANSITIONS)] = []
    last_event: Count = 0
    last_step: Count | None = None
    checkpoint: CheckpointRef | None = None
    manifest_sha256: Sha256 | None = None
    wandb_url: Annotated[str, Field(max_length=MAX_URL, pattern=r"^https?://[!-?A-~]+$")] | None = None
    """Where the tracked run is: printable, and without a user or password in it."""


def dump(record: TerminationRecord) -> bytes:
    """The record as JSON of at most 3 KiB. The message gives way."""
    data = record.model_dump(by_alias=True, exclude_none=True)
    limit = len(record.message)
    while len(encoded := _encode(data)) > MAX_RECORD_BYTES:
        if limit <= 8:
            data["message"] = ""
            return _encode(data)  # everything else is bounded and fits
        limit = limit * 3 // 4
        data["message"] = _shorten(limit)(record.message)
    return encoded


def _encode(data: dict[str, Any]) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def parse(text: str, *, run_id: str, attempt: int) -> TerminationRecord:
    """Read a container's termination message. It has to speak of this run and this attempt. Raises BadRecord."""
    if not text.strip():
        raise BadRecord("the container left no termination record")
    if len(text.encode(errors="replace")) > 4096:
        raise BadRecord("the termination message is longer than a record can be")
    try:
        data = json.loads(text)
        record = TerminationRecord.model_validate(data, strict=True)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5])
        raise BadRecord(f"the termination message is not a record: {faults}") from None
    except (ValueError, RecursionError):
        raise BadRecord("the termination message is not JSON") from None
    if record.run_id != run_id or record.attempt != attempt:
        raise BadRecord("the termination record speaks of another run or attempt")
    return record

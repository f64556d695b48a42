"""Log lines and wire messages: `encode` on the worker's side, `decode` on the gateway's.

A log line is `{"event", "payload", "run_id", "seq", "timestamp"}`. `encode` never fails, and `decode` takes whatever it
made: an event that cannot travel whole travels shortened and says so, because one that was refused would be replayed
for ever. `decode` trusts nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol.limits import LAST_NUMBER, MAX_NAME, MAX_PAYLOAD_BYTES, MAX_SCALARS

HEARTBEAT = "heartbeat"
SCALARS = "scalars"
CHECKPOINT_SAVED = "checkpoint_saved"
LATEST = 2.0**37
"""No event is later than this (the year 6325): whoever reads a time can make a date of it, and count on from there."""
MAX_TEXT = 4096
"""Characters that are left of a long text when a payload is shortened."""


class BadEvent(ValueError):
    """A message that no worker of ours would send. The text is safe to log."""


def is_scalars(event: Mapping[str, Any]) -> bool:
    """Whether a log line holds headline figures, which newer ones replace."""
    return event.get("event") == SCALARS


def number_of(event: Mapping[str, Any]) -> int:
    """A log line's number; 0 for a line that has none, which is no line of ours."""
    number = event.get("seq")
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= LAST_NUMBER else 0


def epoch_micros(timestamp: Any) -> int:
    """A log line's time as the whole number that names a log (see `Ledger.epoch`); 0 for what is not a time."""
    seconds = _seconds(timestamp)
    return round(seconds * 1_000_000) if seconds < LATEST else 0


def encode(event: Mapping[str, Any], after: int) -> pb.Event:
    """One log line as a message. `after`: the number of the event sent before it."""
    name = _name(event.get("event")) or "unnamed"
    payload = event.get("payload")
    payload = payload if isinstance(payload, Mapping) else {}
    message = pb.Event(number=number_of(event), after=after, timestamp=_seconds(event.get("timestamp")), name=name)
    if name == SCALARS:
        message.scalars.CopyFrom(_scalars(payload))
    elif name == CHECKPOINT_SAVED:
        message.checkpoint.CopyFrom(_checkpoint(payload))
    elif name == HEARTBEAT:
        message.heartbeat.payload_json = _payload_json(payload)
    else:
        message.lifecycle.payload_json = _payload_json(payload)
    return message


def _scalars(payload: Mapping[str, Any]) -> pb.Scalars:
    values = payload.get("values")
    figures = {
        _name(name): float(value)
        for name, value in (values if isinstance(values, Mapping) else {}).items()
        if _name(name) and isinstance(value, int | float) and _fits_float(value)
    }
    return pb.Scalars(
        step=_count(payload.get("step")),
        total=_count(payload.get("total")),
        steps_per_second=_number(payload.get("sps")),
        episodes=_count(payload.get("episodes")),
        values=dict(list(figures.items())[:MAX_SCALARS]),
    )


def _checkpoint(payload: Mapping[str, Any]) -> pb.Checkpoint:
    return pb.Checkpoint(
        path=_text(payload.get("path")),
        step=_count(payload.get("step")),
        sha256=_text(payload.get("sha256")),
        bytes=_count(payload.get("bytes")),
        seconds=_number(payload.get("seconds")),
        reason=_text(payload.get("reason")),
    )


def _payload_json(payload: Mapping[str, Any]) -> str:
    try:
        text = _dump(payload)
    except (ValueError, RecursionError):  # nested too deeply for anybody
        return _dump({"truncated": True})
    if len(text.encode()) <= MAX_PAYLOAD_BYTES:
        return text
    short: dict[str, Any] = {"truncated": True}
    for key, value in payload.items():
        candidate = {**short, str(key)[:MAX_NAME]: _shortened(value)}
        if len(_dump(candidate).encode()) <= MAX_PAYLOAD_BYTES:
            short = candidate
    return _dump(short)


def _dump(payload: Mapping[str, Any]) -> str:
    return json.dumps(payload, separators=(",", ":"), sort_keys=True, default=str, skipkeys=True)


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[: MAX_TEXT // 2]} ... {value[-MAX_TEXT // 2 :]}"
    if value is None or isinstance(value, bool | int | float):
        return value
    return _shortened(json.dumps(value, default=str, skipkeys=True))


def _text(value: Any) -> str:
    # JSON may hold half of a surrogate pair, protobuf's text may not.
    return str(value)[:MAX_TEXT].encode(errors="replace").decode() if value is not None else ""


def _name(value: Any) -> str:
    return "".join(character for character in _text(value)[:MAX_NAME] if character.isprintable())


def _seconds(value: Any) -> float:
    seconds = _number(value)
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _count(value: Any) -> int:
    return max(0, min(value, 2**63 - 1)) if isinstance(value, int) and not isinstance(value, bool) else 0


def _fits_float(value: Any) -> bool:
    return not isinstance(value, bool) and (isinstance(value, float) or abs(value) < 2**1023)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and _fits_float(value) else 0.0


@dataclass(frozen=True)
class Received:
    """One event as the gateway may use it: bounded, of known types, figures finite."""

    number: int
    after: int
    timestamp: float
    name: str
    payload: dict[str, Any] = field(default_factory=dict)

    @property
    def is_scalars(self) -> bool:
        return self.name == SCALARS


def decode(message: pb.Event) -> Received:
    """Read a message from a worker that may be hostile. Raises BadEvent with a sentence."""
    if not 0 < message.number <= LAST_NUMBER:
        raise BadEvent("an event needs a number from 1 up")
    if not message.name or len(message.name) > MAX_NAME or not message.name.isprintable():
        raise BadEvent(f"an event needs a printable name of at most {MAX_NAME} characters")
    if not math.isfinite(message.timestamp) or message.timestamp < 0:
        raise BadEvent("an event needs a finite timestamp")
    body = message.WhichOneof("body")
    if body == "scalars":
        payload = _decode_scalars(message.scalars)
    elif body == "checkpoint":
        payload = {
            "path": message.checkpoint.path[:MAX_TEXT],
            "step": _count(message.checkpoint.step),
            "sha256": message.checkpoint.sha256[:MAX_NAME],
            "bytes": _count(message.checkpoint.bytes),
            "seconds": message.checkpoint.seconds if math.isfinite(message.checkpoint.seconds) else 0.0,
            "reason": message.checkpoint.reason[:MAX_NAME],
        }
    elif body == "heartbeat":
        payload = _decode_json(message.heartbeat.payload_json)
    elif body == "lifecycle":
        payload = _decode_json(message.lifecycle.payload_json)
    elif len(UnknownFieldSet(message)) > 0:  # a newer worker's kind: counted, not read
        payload = {}
    else:
        raise BadEvent("an event needs a body")
    expected = {"scalars": SCALARS, "checkpoint": CHECKPOINT_SAVED, "heartbeat": HEARTBEAT}.get(body or "")
    if expected is not None and message.name != expected:
        raise BadEvent(f"an event with a {body} body is called {expected}")
    if expected is None and message.name in (SCALARS, CHECKPOINT_SAVED, HEARTBEAT):
        raise BadEvent(f"a {message.name} event needs its own body")
    return Received(message.number, message.after, min(message.timestamp, LATEST), message.name, payload)


def _decode_scalars(scalars: pb.Scalars) -> dict[str, Any]:
    if len(scalars.values) > MAX_SCALARS:
        raise BadEvent(f"at most {MAX_SCALARS} headline figures travel in one message")
    if any(not name or len(name) > MAX_NAME or not name.isprintable() for name in scalars.values):
        raise BadEvent(f"a figure needs a printable name of at most {MAX_NAME} characters")
    return {
        "step": _count(scalars.step),
        "total": _count(scalars.total),
        "sps": scalars.steps_per_second if math.isfinite(scalars.steps_per_second) else 0.0,
        "episodes": _count(scalars.episodes),
        "values": {name: value for name, value in scalars.values.items() if math.isfinite(value)},
    }


def _decode_json(text: str) -> dict[str, Any]:
    if len(text) > MAX_PAYLOAD_BYTES:
        raise BadEvent(f"a payload has at most {MAX_PAYLOAD_BYTES} bytes")
    if not text:
        return {}
    try:
        payload = json.loads(text)
    except (ValueError, RecursionError):
        raise BadEvent("a payload has to be JSON") from None
    if not isinstance(payload, dict):
        raise BadEvent("a payload has to be a JSON object")
    return payload

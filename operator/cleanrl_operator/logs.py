"""Logs: one JSON object per line, from whatever library, with the run and the attempt it is about."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

_run: ContextVar[str | None] = ContextVar("run", default=None)
_attempt: ContextVar[int | None] = ContextVar("attempt", default=None)
DETAILS = ("reason", "peer", "code", "fault")
QUIET = ("kopf", "aiohttp.access", "asyncio", "grpc")
"""Libraries that are heard from WARNING on."""


def about(run: str | None, attempt: int | None = None) -> None:
    """From here on, in this task, lines are about this run."""
    _run.set(run)
    _attempt.set(attempt)


class JsonLines(logging.Formatter):
    """`run` and `attempt` are on every line; they are null on one that is about no run."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "run": getattr(record, "run", _run_of_kopf(record) or _run.get()),
            "attempt": getattr(record, "attempt", _attempt.get()),
        }
        for name in DETAILS:
            if hasattr(record, name):
                line[name] = getattr(record, name)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _run_of_kopf(record: logging.LogRecord) -> str | None:
    """kopf's lines carry a reference to the object that they are about."""
    reference = getattr(record, "k8s_ref", None)
    if not isinstance(reference, dict):
        return None
    return f"{reference.get('namespace')}/{reference.get('name')}"


def _not_about_signals(record: logging.LogRecord) -> bool:
    """kopf warns that it does not get the process' signals; that is as it should be, they are handled elsewhere."""
    return not str(record.msg).startswith("OS signals are ignored")


def set_up(level: str) -> None:
    """Every logger of the process, Python's warnings too, onto standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    handler.addFilter(_not_about_signals)
    logging.captureWarnings(True)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))

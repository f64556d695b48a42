"""What archive and delete ask about a folder: is it a run's, and is the run alive?"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cleanrl_worker import telemetry

_HEARTBEAT_SECONDS = 30.0
SILENCE_SECONDS = 3 * _HEARTBEAT_SECONDS
"""A run without a final event counts as alive until it has been silent for this long: it may be on another machine."""


class NotARunError(RuntimeError):
    """The path is not a run's folder. The message is a sentence for the person who named it."""


class InUseError(RuntimeError):
    """A worker on this machine holds the folder's lock."""


def require_run_folder(path: Path) -> Path:
    """The folder's absolute path. Raises NotARunError when it is a link, not there, or not a run's folder."""
    if path.is_symlink():
        raise NotARunError(f"{path} is a symbolic link; name the run's folder itself")
    if not path.is_dir():
        raise NotARunError(f"{path} is not a folder")
    if not _has_events(path / "events.jsonl") and not _has_config(path / "config.json"):
        raise NotARunError(f"{path} is not a run's folder: it holds no events.jsonl and no config.json of a run")
    return path.resolve()


@contextmanager
def taken(run_dir: Path) -> Iterator[None]:
    """Hold the lock that a worker takes on its run's folder. Raises InUseError when one holds it."""
    try:
        lock = os.open(run_dir / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # no worker of this machine has used the folder: an extracted archive
        yield
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(f"{run_dir} is left alone: the run is alive (a worker holds its lock)") from None
        yield
    finally:
        os.close(lock)


def sign_of_life(run_dir: Path, now: float | None = None) -> str | None:
    """Why the run's events make it look alive, in words; None when it has ended or has been silent for long."""
    last: dict[str, Any] = {}
    ended = False
    for last in telemetry.read_events(run_dir / "events.jsonl"):
        if last.get("event") == telemetry.RUN_STARTED:  # another attempt in the same folder
            ended = False
        elif last.get("event") in telemetry.FINAL_EVENTS:
            ended = True
    if ended or not last:
        return None
    age = (time.time() if now is None else now) - telemetry.seconds_of(last)
    if age >= SILENCE_SECONDS:
        return None
    return f"its last event, {last.get('event')}, is {max(age, 0.0):.0f} s old and none says that it ended"


def _has_events(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    return any("run_id" in event and "event" in event for event in telemetry.read_events(path))


def _has_config(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return False
    return isinstance(config, dict) and "run_id" in config and "algo" in config

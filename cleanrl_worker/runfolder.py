"""The run's folder: where everything lies, who may use it, and what an earlier start left in it."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cleanrl_protocol.limits import DISK_FULL, RUN_FOLDER
from cleanrl_worker.plainfile import open_plain
from cleanrl_worker.telemetry import FINAL_EVENTS, RUN_STARTED, read_events, seconds_of

log = logging.getLogger(__name__)

DEFAULT_ROOT = Path("var/trainer")
PHASES_DIR = "CLEANRL_PHASES_DIR"
"""Set for the workers that a script starts: each takes a folder of its own in there."""
LONGEST_SILENCE = 600.0
"""Seconds. A worker that runs says something every half minute: between events further apart the clock was set, or the
machine slept."""
LOCK = ".lock"
EARLIER = ".earlier"


class RunFolderError(Exception):
    """The folder can't be used. The message says why and what to do, `reason` is the word for it."""

    def __init__(self, message: str, reason: str = RUN_FOLDER) -> None:
        super().__init__(message)
        self.reason = reason


class FolderInUse(RunFolderError):
    """Another worker holds the folder."""


def reason_of(error: OSError) -> str:
    """The word for a folder that does not take what is written: a full one needs another remedy than a forbidden one."""
    return DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else RUN_FOLDER


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path
    counter: Path | None = None
    """Counts the workers that a script has started, each of which takes a folder; None for any other run."""
    number: int = 0
    """Which of them this is."""

    @classmethod
    def choose(cls, run_id: str, mode: str, env: Mapping[str, str], given: Path | None = None) -> RunFolder:
        """`given`, else what the environment names, else the place of this run under the current directory."""
        named = given or env.get("CLEANRL_RUN_DIR")
        if env.get(PHASES_DIR):
            return cls._next_phase(Path(env[PHASES_DIR]).absolute(), named)
        named = named or env.get("MOSAIC_RUN_DIR")
        default = DEFAULT_ROOT / ("evals" if mode == "policy_eval" else "runs") / run_id
        return cls(Path(named or default).absolute())

    @classmethod
    def _next_phase(cls, phases: Path, named: str | Path | None) -> RunFolder:
        """A worker that a script starts: the folders are numbered in the order of the starts, whether or not one is named."""
        counter = phases / ".count"
        try:
            taken = int(counter.read_text())
        except (OSError, ValueError):
            taken = 0
        return cls(Path(named or phases / str(taken + 1)).absolute(), counter, taken + 1)

    @property
    def is_phase(self) -> bool:
        """It lies among the folders of a script's phases: whose it is says the script, not a name."""
        return self.counter is not None and self.path.parent == self.counter.parent

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def stdout_log(self) -> Path:
        return self.logs / "cleanrl.stdout.log"

    @property
    def stderr_log(self) -> Path:
        return self.logs / "cleanrl.stderr.log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def saved(self) -> dict[str, Any]:
        """The configuration that was saved here last; empty where that can't be read."""
        try:
            with open_plain(self.config) as file:
                config = json.load(file)
        except (OSError, ValueError, RecursionError):
            return {}
        return config if isinstance(config, dict) else {}

    @property
    def saved_run_id(self) -> str | None:
        """The name of the run whose configuration that is."""
        name = self.saved.get("run_id")
        return name if isinstance(name, str) else None

    @property
    def has_checkpoints(self) -> bool:
        return any(self.checkpoints.glob("step-*"))

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    def take(self) -> int:
        """Make the folder and take it for this process. Returns the lock's descriptor; raises RunFolderError.

        The lock goes with the process, however it ends.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if self.counter is not None:
                self.counter.write_text(str(self.number))
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise self._refusal(error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise FolderInUse(
                f"the run folder {self.path} is in use by another worker; wait for it, or choose another --run-dir"
            ) from None
        except OSError as error:
            log.warning("%s can't be locked here (%s): see that no second worker uses it", self.path, error.strerror)
        return lock

    def prepare(self, config: Mapping[str, Any]) -> None:
        """Make what a run needs in its folder and save its configuration. Raises RunFolderError."""
        try:
            for folder in (self.logs, self.checkpoints):
                folder.mkdir(exist_ok=True)
            write_atomically(self.config, json.dumps(config, indent=2, sort_keys=True, default=str) + "\n")
        except OSError as error:
            raise self._refusal(error) from None

    def set_aside(self) -> Path:
        """Move what earlier starts left into a folder of its own, `.earlier/<n>`, and return that. Nothing is deleted.

        A fresh start among old checkpoints would be pruned, or continued, by their step numbers. Raises RunFolderError.
        """
        shelf = self.path / EARLIER
        try:
            shelf.mkdir(exist_ok=True)
            taken = [int(entry.name) for entry in shelf.iterdir() if entry.name.isdigit()]
            aside = shelf / str(max(taken, default=0) + 1)
            aside.mkdir()
            for entry in self.path.iterdir():
                if entry.name not in (EARLIER, LOCK):
                    entry.rename(aside / entry.name)
        except OSError as error:
            raise self._refusal(error) from None
        return aside

    def history(self) -> History:
        """What earlier starts in this folder came to. Raises RunFolderError when that can't be read."""
        try:
            return History.of(read_events(self.events))
        except OSError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: OSError) -> RunFolderError:
        reason = reason_of(error)
        remedy = "free space" if reason == DISK_FULL else "make it writable"
        return RunFolderError(
            f"the run folder {self.path} can't be used: {error.strerror or error}; "
            f"{remedy} or choose another with --run-dir (or CLEANRL_RUN_DIR)",
            reason,
        )


@dataclass(frozen=True)
class History:
    """Earlier starts, from their events."""

    starts: int = 0
    outcome: str | None = None
    """Of the last start; None when it was cut off."""
    seconds: float = 0.0
    """How long they ran, all together."""
    run_id: str | None = None
    """Of the last start."""
    end: Mapping[str, Any] = field(default_factory=dict)
    """The last start's final event; empty when it was cut off."""

    @property
    def unfinished(self) -> bool:
        """The last start was cut off, or suspended: the run goes on by itself."""
        return self.starts > 0 and self.outcome in (None, "suspended")

    @classmethod
    def of(cls, events: Any) -> History:
        starts, seconds, outcome, run_id = 0, 0.0, None, None
        last: float | None = None
        end: Mapping[str, Any] = {}
        for event in events:
            payload = event.get("payload") if isinstance(event.get("payload"), dict) else {}
            if payload.get("dry_run"):
                continue  # nothing was run
            at = seconds_of(event)
            if event["event"] == RUN_STARTED:
                starts, last, outcome, run_id, end = starts + 1, at, None, event.get("run_id"), {}
            if last is not None:
                seconds += min(max(0.0, at - last), LONGEST_SILENCE)
                last = at
            if event["event"] in FINAL_EVENTS:
                outcome = str(payload.get("outcome") or event["event"])
                last, end = None, event
        return cls(starts, outcome, seconds, run_id if isinstance(run_id, str) else None, end)


def write_atomically(path: Path, text: str) -> None:
    """Whole or not at all, also when the machine dies."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise

"""Uploads what W&B kept offline, when there is a key and a way to the server.

    python -m cleanrl_worker.wandb_sync RUN_FOLDER     the key from WANDB_API_KEY, the rest from WANDB_* variables

The worker does it by itself: at the end of a run that had a key but no network when it started, and before an attempt that
goes online where an earlier one could not, so that the curve arrives in order. Each attempt left a part of its own. They are
uploaded one at a time, oldest first: W&B's program gives all of them up over one that it can't read, and an attempt that was
killed leaves a torn one. What a torn part holds arrives; it is then marked like a whole one, because W&B would append it once
more.

The key reaches W&B's own program by its environment; nothing that the program prints is passed on but the address of the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cleanrl_worker import wandb_mode
from cleanrl_worker.runfolder import FolderInUse, RunFolder, RunFolderError

SECONDS, CATCH_UP_SECONDS = 120.0, 60.0
"""For all that is pending: at the end, and before training starts."""
MAX_RUNS = 32
HEADER_BYTES = 7
"""A file of W&B's that holds nothing yet."""


@dataclass(frozen=True)
class Synced:
    """What became of it: `done` when nothing is left to upload."""

    done: bool
    message: str
    url: str | None = None


def pending(run_dir: Path) -> list[Path]:
    """The offline runs in a run's folder that have something to upload, oldest first. Links are not followed."""
    root = run_dir / "wandb"
    found = []
    for folder in (root, root / "wandb"):  # W&B makes a folder of its own name in the one that it is given
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            match = wandb_mode.RUN_FOLDER.fullmatch(path.name)
            if match is None or match[1] is None or path.is_symlink() or not path.is_dir():
                continue
            if any(file.stat().st_size > HEADER_BYTES for file in path.glob("*.wandb")) and not _is_marked(path):
                found.append(path)
    return sorted(found, key=lambda path: path.name)[-MAX_RUNS:]


def sync(
    run_dir: Path, environ: Mapping[str, str], extras: Mapping[str, Any] | None = None, seconds: float = SECONDS
) -> Synced:
    """Upload what is pending. `environ` is the environment of W&B's program; it holds the key."""
    parts = pending(run_dir)
    if not parts:
        return Synced(True, "W&B has nothing to upload.")
    if not environ.get("WANDB_API_KEY", "").strip():
        return Synced(False, "W&B keeps the run offline: there is no API key; set WANDB_API_KEY to upload it.")
    reached, sentence = wandb_mode.probe(environ, extras or {})
    if not reached:
        return Synced(False, f"W&B keeps the run offline: {sentence}")
    env = {name: value for name, value in environ.items() if name not in ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_SILENT")}
    deadline = time.monotonic() + seconds
    url, unreadable = None, 0
    for part in parts:
        try:
            code, output = _upload(part, run_dir, env, max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Synced(False, f"W&B did not take the run within {seconds:.0f} s; it is kept offline.", url)
        except OSError as error:
            return Synced(False, f"W&B's program could not be started: {error.strerror}.", url)
        url = wandb_mode.url_in(output) or url
        if _is_marked(part):
            continue
        if code == 0 and b"incomplete record" in output and wandb_mode.url_in(output):
            _mark(part)
        elif code == 0 and b"Failed to read" in output:
            unreadable += 1
        else:
            return Synced(False, f"`wandb sync` ended with exit code {code}; the run is kept offline.", url)
    told = "The run was uploaded to W&B."
    if unreadable:
        told = f"{unreadable} of {len(parts)} parts of the run can't be read by W&B; the others were uploaded."
    return Synced(True, told, url)


def catch_up(
    plan: wandb_mode.Plan, run_dir: Path, environ: Mapping[str, str], extras: Mapping[str, Any]
) -> wandb_mode.Plan:
    """The plan of an attempt, after what earlier ones kept offline has been uploaded; offline too when that can't be."""
    if plan.mode != "online" or not pending(run_dir):
        return plan
    result = sync(run_dir, {**environ, **plan.environment}, extras, CATCH_UP_SECONDS)
    if result.done:
        return replace(plan, notes=(*plan.notes, f"Earlier attempts were kept offline. {result.message}"))
    return wandb_mode.offline_for_now(plan, result.message)


def _upload(part: Path, run_dir: Path, env: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", str(part)],
        cwd=run_dir,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds,
        check=False,
    )
    return done.returncode, done.stdout


def _is_marked(part: Path) -> bool:
    return any(part.glob("*.wandb.synced"))


def _mark(part: Path) -> None:
    """As W&B marks what it has uploaded."""
    for file in part.glob("*.wandb"):
        file.with_name(f"{file.name}.synced").touch()


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m cleanrl_worker.wandb_sync", description="Upload a run to W&B.")
    parser.add_argument("folder", type=Path, help="a run's folder")
    folder = parser.parse_args(argv).folder
    if not folder.is_dir():
        parser.error(f"{folder} is not a folder")
    try:
        lock = RunFolder(folder).take()
    except FolderInUse as error:
        parser.error(f"{error}: a run uploads by itself when it ends")
    except RunFolderError as error:
        parser.error(str(error))
    result = sync(folder, os.environ)
    os.close(lock)
    print(result.message, result.url or "")
    return 0 if result.done else 1


if __name__ == "__main__":
    raise SystemExit(main())

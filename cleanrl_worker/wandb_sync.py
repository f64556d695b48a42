"""Uploads what W&B kept offline, when there is a key and a way to the server.

    python -m cleanrl_worker.wandb_sync RUN_FOLDER     the key from WANDB_API_KEY, the rest from WANDB_* variables

The worker does it by itself at the end of a run that had a key but no network when it started. The key reaches W&B's own
program by its environment; nothing that the program prints is passed on but the address of the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanrl_worker import wandb_mode

SECONDS = 120.0
MAX_RUNS = 32


@dataclass(frozen=True)
class Synced:
    """What became of it: `done` when nothing is left to upload."""

    done: bool
    message: str
    url: str | None = None


def pending(run_dir: Path) -> list[Path]:
    """The offline runs in a run's folder that have not been uploaded, oldest first. Links are not followed."""
    root = run_dir / "wandb"
    found = []
    for folder in (root, root / "wandb"):  # W&B makes a folder of its own name in the one that it is given
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.iterdir():
            match = wandb_mode.RUN_FOLDER.fullmatch(path.name)
            if match is None or match[1] is None or path.is_symlink() or not path.is_dir():
                continue
            if any(path.glob("*.wandb")) and not any(path.glob("*.wandb.synced")):
                found.append(path)
    return sorted(found, key=lambda path: path.name)[-MAX_RUNS:]


def sync(
    run_dir: Path, environ: Mapping[str, str], extras: Mapping[str, Any] | None = None, seconds: float = SECONDS
) -> Synced:
    """Upload what is pending. `environ` is the environment of W&B's program; it holds the key."""
    runs = pending(run_dir)
    if not runs:
        return Synced(True, "W&B has nothing to upload.")
    if not environ.get("WANDB_API_KEY", "").strip():
        return Synced(False, "W&B keeps the run offline: there is no API key.")
    reached, sentence = wandb_mode.probe(environ, extras or {})
    if not reached:
        return Synced(False, f"W&B keeps the run offline: {sentence}")
    env = {name: value for name, value in environ.items() if name not in ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_SILENT")}
    command = [sys.executable, "-m", "wandb", "sync", *(str(path) for path in runs)]
    try:
        answer = subprocess.run(
            command,
            cwd=run_dir,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Synced(False, f"W&B did not take the run within {seconds:.0f} s; it is kept offline.")
    except OSError as error:
        return Synced(False, f"W&B's program could not be started: {error.strerror}.")
    left = pending(run_dir)
    if answer.returncode != 0 or left:
        return Synced(False, f"`wandb sync` ended with exit code {answer.returncode}; the run is kept offline.")
    return Synced(True, "The run was uploaded to W&B.", wandb_mode.url_in(answer.stdout))


def main(argv: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m cleanrl_worker.wandb_sync", description="Upload a run to W&B.")
    parser.add_argument("folder", type=Path, help="a run's folder")
    folder = parser.parse_args(argv).folder
    if not folder.is_dir():
        parser.error(f"{folder} is not a folder")
    result = sync(folder, os.environ)
    print(result.message, result.url or "")
    return 0 if result.done else 1


if __name__ == "__main__":
    raise SystemExit(main())

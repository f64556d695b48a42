"""The reproducibility record: everything outside the algorithm that decided how a run went. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_GIT_SECONDS = 5.0
_NVIDIA_SECONDS = 10.0
_NVIDIA_FIELDS = ("name", "driver_version", "memory.total", "uuid")


def collect(
    config: Mapping[str, Any],
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    checkout: Path | None = None,
) -> dict[str, Any]:
    """The record for one run. `config` and `command` are already redacted; `checkout` is upstream's, if one is used."""
    environ = os.environ if environ is None else environ
    return {
        "packages": packages(),
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "platform": {
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
        },
        "cpu": cpu(),
        "gpus": gpus(),
        "git": {
            "working_directory": git_state(Path.cwd()),
            "checkout": git_state(checkout) if checkout is not None else None,
        },
        "image": {
            "name": environ.get("CLEANRL_IMAGE") or None,
            "digest": environ.get("CLEANRL_IMAGE_DIGEST") or None,
        },
        "command": list(command),
        "arguments": dict(config),
        "arguments_sha256": arguments_sha256(config),
        "seed": config.get("seed"),
        "env_id": config.get("env_id"),
        "algo": config.get("algo"),
    }


def arguments_sha256(config: Mapping[str, Any]) -> str:
    """A digest of what was asked for, the same for the same request: without the ids of run and worker."""
    asked = {key: value for key, value in config.items() if key not in ("run_id", "worker_id", "raw")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(found.items()))


def cpu() -> dict[str, Any]:
    """The processor's name, the cores of the machine and those that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"model": _cpu_model(), "cores": os.cpu_count(), "usable_cores": usable}


def gpus() -> list[dict[str, str]]:
    """NVIDIA devices as the driver lists them, without loading CUDA; empty when there are none."""
    query = ["nvidia-smi", f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader"]
    text = _output(query, None, _NVIDIA_SECONDS)
    if text is not None:
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
        return [dict(zip(_NVIDIA_FIELDS, row, strict=True)) for row in rows if len(row) == len(_NVIDIA_FIELDS)]
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        found.append({"name": fields.get("Model", "").strip(), "uuid": fields.get("GPU UUID", "").strip()})
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, and whether tracked files differ from it; None outside a checkout or without git."""
    commit = _output(["git", "rev-parse", "HEAD"], folder, _GIT_SECONDS)
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit.strip()):
        return None
    changes = _output(["git", "status", "--porcelain", "--untracked-files=no"], folder, _GIT_SECONDS)
    return {"commit": commit.strip(), "modified": bool(changes.strip()) if changes is not None else None}


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor() or None
    match = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or None


def _output(command: list[str], folder: Path | None, timeout: float) -> str | None:
    # A checkout may belong to somebody else: none of its hooks or file-system monitors may run for our question.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_COUNT": "1"}
    environment |= {"GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "false"}
    try:
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


if __name__ == "__main__":
    json.dump(collect({}, sys.argv), sys.stdout, indent=2)

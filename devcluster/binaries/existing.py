"""Programs that are on the machine already: in DEVCLUSTER_BIN_DIR, in KUBEBUILDER_ASSETS or on PATH.

One of another version is passed over, and `note` says so: a cluster made of mixed versions fails in ways that nobody
can explain afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from devcluster.binaries.catalog import Program

_VERSION = re.compile(r"\bv?(\d+\.\d+(?:\.\d+)?)")
_SECONDS = 20
OVERRIDE = "DEVCLUSTER_BIN_DIR"
"""Names a folder that was put there for us: to pass over a program in it must never go unsaid."""


def look(program: Program, version: str, note: Callable[[str, str], None]) -> Path | None:
    """The first copy that is as good as the wanted version. `note` is told of each that is not: where, and a line."""
    for where, path in _places(program):
        if not program.version_arguments:
            return path
        reported = ask_version(program, path)
        if reported is not None and _parts(reported, program) == _parts(version, program):
            return path
        note(where, f"{path} ({where}) is {reported or 'of unknown version'}, not {version}: passed over")
    return None


def ask_version(program: Program, path: Path) -> str | None:
    """The version that the program itself reports, or None when it reports none."""
    try:
        answer = subprocess.run(
            [str(path), *program.version_arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stdout) if answer.returncode == 0 else None
    return f"v{match[1]}" if match else None


def _parts(version: str, program: Program) -> list[str]:
    return version.removeprefix("v").split(".")[: program.same_parts]


def _places(program: Program) -> Iterator[tuple[str, Path]]:
    """Where copies are. A program that can't tell its version is only taken from the folder that was named for us."""
    variables = [OVERRIDE]
    if program.version_arguments:
        variables.append("KUBEBUILDER_ASSETS")
    for variable in variables:
        if folder := os.environ.get(variable):
            path = Path(folder) / program.name
            if path.is_file() and os.access(path, os.X_OK):
                yield variable, path.resolve()
    if program.version_arguments and (found := shutil.which(program.name)):
        yield "PATH", Path(found).resolve()

"""From a program's name to a file that can be started.

In this order: what the user points to or has on PATH, the cache, the official download, a build from pinned Go modules.
`DEVCLUSTER_DOWNLOADS=off` leaves the download out.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devcluster.binaries import cache, download, existing
from devcluster.binaries.build import build
from devcluster.binaries.catalog import Program, check_version, find
from devcluster.binaries.errors import BinaryError, Unavailable
from devcluster.progress import step

Say = Callable[[str], None]
_DOWNLOAD_SECONDS = 20.0


def ensure(name: str, *, kubernetes_version: str | None = None, progress: Say | None = None) -> Path:
    """A file of the program that can be started. See ensure_many."""
    return ensure_many([name], kubernetes_version=kubernetes_version, progress=progress)[name]


def ensure_many(
    names: Iterable[str], *, kubernetes_version: str | None = None, progress: Say | None = None, verbose: bool = False
) -> dict[str, Path]:
    """Files of the programs, by name; those of one Go module are built together.

    `kubernetes_version` asks for another Kubernetes than the pinned one, which is found or downloaded but not built.
    `progress` is called with each line for the user; without it lines go to standard error, and steps are shown live on
    a terminal. `verbose` also tells why copies on the machine were passed over. Raises BinaryError with one sentence
    when a program can't be had.
    """
    wanted: dict[str, tuple[Program, str]] = {}
    for name in names:
        program = find(name)
        other = kubernetes_version if program.module == "kubernetes" else None
        wanted[name] = (program, check_version(other, program.version) if other else program.version)

    def at_hand(pair: tuple[Program, str]) -> Path | None:
        path = existing.look(*pair, note)
        return path if path is not None else _cached(*pair, progress)

    def note(where: str, line: str) -> None:
        if verbose or where == existing.OVERRIDE:
            _tell(line, progress)

    found: dict[str, Path] = {}
    missing: list[tuple[Program, str]] = []
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for (program, version), path in zip(wanted.values(), pool.map(at_hand, wanted.values()), strict=True):
            if path is None:
                missing.append((program, version))
            else:
                found[program.name] = path
    modules = dict.fromkeys(program.module for program, _ in missing)
    for module in modules:
        group = [(program, version) for program, version in missing if program.module == module]
        found |= _make(module, group, progress)
    return {name: found[name] for name in wanted}


def _cached(program: Program, version: str, progress: Say | None) -> Path | None:
    fault = cache.fault(program, version)
    if fault is None:
        return cache.place(program, version)
    if fault != "absent":
        _tell(f"{program.name} in the cache is not used: {fault}; making it again", progress)
    return None


def _make(module: str, group: list[tuple[Program, str]], progress: Say | None) -> dict[str, Path]:
    """Download or build the programs of one module into the cache."""

    def waiting() -> None:
        _tell(f"another process is making {module}; waiting for it", progress)

    made: dict[str, Path] = {}
    with cache.lock(module, waiting), cache.work_folder(module) as work:
        to_build: list[Program] = []
        for program, version in group:
            # Another process may have made it while this one waited for the lock.
            path = _cached(program, version, _silent) or _downloaded(program, version, work, progress)
            if path is None:
                to_build.append(program)
            else:
                made[program.name] = path
        if to_build:
            for name, file in build(to_build, work, progress).items():
                program = find(name)
                made[name] = cache.install(program, program.version, file, origin="built")
    return made


def _downloaded(program: Program, version: str, work: Path, progress: Say | None) -> Path | None:
    """The official file, or None when it has to be built. A version that can't be built must be downloaded."""
    try:
        if os.environ.get("DEVCLUSTER_DOWNLOADS") == "off":
            raise Unavailable("downloads are switched off by DEVCLUSTER_DOWNLOADS")
        with step(f"downloading {program.name} {version}", _DOWNLOAD_SECONDS, progress) as shown:
            file = download.fetch(program, version, work, shown)
    except BinaryError as error:
        if version != program.version:
            raise BinaryError(
                f"{program.name} {version} can't be had: {error}, and only {program.version} can be built; "
                "leave the version out, or name a folder that has it in DEVCLUSTER_BIN_DIR"
            ) from error
        if not isinstance(error, Unavailable):
            _tell(f"{error}; building {program.name} instead", progress)
        return None
    return cache.install(program, version, file, origin="downloaded")


def _silent(_line: str) -> None:
    """For a second look at what was told already."""


def _tell(line: str, progress: Say | None) -> None:
    if progress is not None:
        progress(line)
    else:
        sys.stderr.write(line + "\n")

"""Programs built from pinned Go modules: all wanted programs of one module at once, with the time left shown."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from devcluster.binaries import cache, existing
from devcluster.binaries.catalog import Program
from devcluster.binaries.errors import BinaryError
from devcluster.binaries.golang import environment, find_go
from devcluster.progress import Progress, step

_LINK_WEIGHT = 25
"""Linking a program costs about as much as compiling this many packages."""
_SOURCES_SECONDS = 60.0


def build(programs: Sequence[Program], work: Path, say: Callable[[str], None] | None) -> dict[str, Path]:
    """Build programs of one module inside `work` and return where they are, by name."""
    first = programs[0]
    assert all(program.module == first.module for program in programs)
    names = ", ".join(program.name for program in programs)
    cache.demand_space(first.megabytes, f"building {names}")
    go = find_go(_needed_go(first.folder), say)
    source, output = work / "source", work / "output"
    shutil.copytree(first.folder, source)
    output.mkdir()
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags={first.linker_flags()}"]
    packages = [program.package for program in programs]
    # One package is written under the name we ask for, several under the last parts of their own names.
    target = output / first.name if len(programs) == 1 else output
    run = _Go(go, source, work / "go.log", names)

    with step(f"fetching the sources of {first.module}", _SOURCES_SECONDS, say) as progress:
        stale = _fetch_sources(run, progress, flags, packages, first.folder)
    with step(f"building {names}", first.typical_seconds, say) as progress:
        _compile(run, progress, ["build", "-v", *flags, "-o", str(target), *packages], stale, len(programs))

    made = {program.name: output / program.name for program in programs}
    for program in programs:
        _check(program, made[program.name])
    return made


class _Go:
    """Runs `go` in a module, and turns its failures into sentences."""

    def __init__(self, go: Path, folder: Path, log: Path, names: str) -> None:
        self.go, self.folder, self.log, self.names = go, folder, log, names

    def __call__(self, arguments: Sequence[str], on_line: Callable[[str], None]) -> str:
        """Run to the end and return standard output; `on_line` sees each line of standard error as it comes."""
        tail: deque[str] = deque(maxlen=8)
        with self.log.open("w+") as output:
            process = subprocess.Popen(
                [str(self.go), *arguments],
                cwd=self.folder,
                env=environment(self.go),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # so that an interrupt also ends the compilers that go has started
            )
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    tail.append(line.rstrip())
                    on_line(line)
                code = process.wait()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            output.seek(0)
            if code == 0:
                return output.read()
        raise BinaryError(f"{self.names} could not be built: {_reason(tail)}")


def _reason(tail: Sequence[str]) -> str:
    text = "; ".join(line.strip() for line in tail if line.strip()) or "go gave no reason"
    if "no space left on device" in text:
        return "the disk is full; free some space and try again"
    if re.search(r"dial tcp|proxyconnect|no such host|i/o timeout|connection refused|Forbidden|TLS handshake", text):
        return f"the Go module proxy can't be reached; check the network and GOPROXY ({text})"
    if "SECURITY ERROR" in text or "checksum mismatch" in text:
        return f"a Go module is not the one that go.sum pins, and was not used ({text})"
    return text


def _fetch_sources(run: _Go, progress: Progress, flags: Sequence[str], packages: Sequence[str], folder: Path) -> int:
    """Have all sources on disk, and return how many packages still have to be compiled."""
    modules = _pinned_modules(folder / "go.sum")
    seen = 0

    def count(line: str) -> None:
        nonlocal seen
        if line.startswith("go: downloading"):
            seen += 1
            progress.fraction = min(seen / max(modules, 1), 0.99)

    run(["list", "-deps", *flags, *packages], count)
    stale = run(["list", "-deps", *flags, "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", *packages], count)
    return len(stale.split())


def _pinned_modules(go_sum: Path) -> int:
    """How many modules a cold build may have to fetch: those whose content, not only whose go.mod, is pinned."""
    lines = go_sum.read_text().splitlines() if go_sum.exists() else []
    return sum("/go.mod h1:" not in line for line in lines)


def _compile(run: _Go, progress: Progress, command: Sequence[str], stale: int, programs: int) -> None:
    whole = stale + programs * _LINK_WEIGHT
    compiled = 0

    def count(_line: str) -> None:
        nonlocal compiled
        compiled += 1
        progress.fraction = min(compiled / whole, 0.99)

    run(command, count)


def _check(program: Program, path: Path) -> None:
    """A program that does not run, or names another version than the pinned one, is not what was asked for."""
    if not path.is_file():
        raise BinaryError(f"go built no {program.name}; restore modules/{program.module} from the repository")
    if program.version_arguments and (reported := existing.ask_version(program, path)) != program.version:
        raise BinaryError(f"{program.name} was built but reports {reported or 'no version'}, not {program.version}")


def _needed_go(folder: Path) -> str:
    match = re.search(r"^go (\d+(?:\.\d+)*)", (folder / "go.mod").read_text(), re.MULTILINE)
    assert match is not None, folder
    return match[1]

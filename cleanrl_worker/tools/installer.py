"""uv or pip, whichever there is, aimed at one Python interpreter. Only the standard library is imported."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_UNREACHABLE = re.compile(
    r"connection|name resolution|network is unreachable|timed out|dns error|error sending request|failed to fetch"
    r"|no matching distribution|not found in the (package registry|cache|provided)|no versions|network was disabled",
    re.IGNORECASE,
)
"""What uv and pip say when a package can't be had from where they looked."""


class InstallError(RuntimeError):
    """Installing failed. `unreachable` says that the packages could not be had, as opposed to not installed."""

    def __init__(self, message: str, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable


@dataclass(frozen=True)
class Installer:
    """Installs into `python`, which need not be the interpreter that runs this."""

    python: Path
    uv: str | None
    pip: tuple[str, ...] | None
    """The command that is pip for `python`, or None when only uv is there."""

    @classmethod
    def find(cls, python: Path | str = sys.executable) -> Installer:
        """uv when it is on the PATH, else the pip of this interpreter, else of the one that it was made from."""
        uv = shutil.which("uv")
        pip = _find_pip(str(python))
        if uv is None and pip is None:
            raise InstallError(
                f"neither uv nor pip is here to install with; get pip with: {python} -m ensurepip --upgrade"
            )
        return cls(Path(python), uv, pip)

    def install_command(self, requirements: Iterable[str], wheels: Path | None = None) -> list[str]:
        """The command that installs; from the folder `wheels` only, when one is given."""
        offline = ["--no-index", "--find-links", str(wheels)] if wheels is not None else []
        if self.uv is not None:
            return [self.uv, "pip", "install", "--python", str(self.python), *offline, *requirements]
        assert self.pip is not None
        return [*self.pip, "install", *_PIP_OPTIONS, *offline, *requirements]

    def wheel_command(self, requirements: Iterable[str], into: Path) -> list[str]:
        """The command that gets the wheels of these packages and of all they depend on. uv has none: it calls pip."""
        pip = self.pip or (str(self.uv), "tool", "run", "--python", str(self.python), "pip")
        return [*pip, "wheel", *_PIP_OPTIONS, "--wheel-dir", str(into), *requirements]

    def install(self, requirements: Sequence[str], wheels: Path | None = None) -> None:
        run(self.install_command(requirements, wheels))

    def get_wheels(self, requirements: Sequence[str], into: Path) -> None:
        run(self.wheel_command(requirements, into))


_PIP_OPTIONS = ("--disable-pip-version-check", "--retries", "2")


def run(command: Sequence[str]) -> None:
    """Run an installer with its output shown as it comes. Raises InstallError when it fails."""
    tail: deque[str] = deque(maxlen=12)
    print(f"+ {shlex.join(command)}", file=sys.stderr, flush=True)
    with subprocess.Popen(list(command), stderr=subprocess.PIPE, stdout=2, text=True, errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            tail.append(line.rstrip())
    if process.returncode != 0:
        message = f"{Path(command[0]).name} ended with exit code {process.returncode}; what it said is above"
        raise InstallError(message, unreachable=bool(_UNREACHABLE.search("\n".join(tail))))


def _find_pip(python: str) -> tuple[str, ...] | None:
    """pip for `python`. It need not be installed there: a pip elsewhere can be pointed at it."""
    if importlib.util.find_spec("pip") is not None:
        aim = () if python == sys.executable else ("--python", python)
        return (sys.executable, "-m", "pip", *aim)
    base = getattr(sys, "_base_executable", sys.executable)  # a virtual environment made by uv has no pip of its own
    if base != sys.executable and _works([base, "-m", "pip", "--python", python, "--version"]):
        return (base, "-m", "pip", "--python", python)
    return None


def _works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0

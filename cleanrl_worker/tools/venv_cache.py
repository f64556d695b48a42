"""Whole virtual environments, one for each combination of requirement sets, kept and used again.

An environment is built where it will stay, since its scripts hold its path, and counts only once its marker file has
been renamed into place. Without the marker, or when its modules can't be found, it is removed and made again.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cleanrl_worker import requirement_sets
from cleanrl_worker.tools import locks
from cleanrl_worker.tools.installer import Installer
from cleanrl_worker.tools.wheel_cache import key_of, python_tag

MARKER = "complete.json"


@dataclass(frozen=True)
class Contents:
    """What an environment is made of: packages, and the project's folder when it runs from a checkout."""

    sets: tuple[str, ...]
    packages: tuple[str, ...]
    source: Path | None

    @classmethod
    def of(cls, sets: Sequence[str]) -> Contents:
        """`base` is part of every environment: without it nothing trains."""
        names = requirement_sets.resolve(["base", *sets])
        checkout = _checkout()
        if checkout is None:
            extras = ",".join(requirement_sets.SETS[name].extra for name in names)
            version = importlib.metadata.version(requirement_sets.DISTRIBUTION)
            return cls(tuple(names), (f"{requirement_sets.DISTRIBUTION}[{extras}]=={version}",), None)
        packages = [*requirement_sets.core_packages()]
        for name in names:
            packages += requirement_sets.SETS[name].packages
        return cls(tuple(names), tuple(dict.fromkeys(packages)), checkout)

    @property
    def folder_name(self) -> str:
        facts = {"packages": sorted(self.packages), "source": str(self.source or ""), **python_tag()}
        return f"{'+'.join(self.sets)}-{key_of(facts)}"


def obtain(root: Path, contents: Contents, install: Callable[[Installer], None]) -> tuple[Path, bool]:
    """The interpreter of an environment with these contents, and whether it was there already.

    `install` puts the packages into it; it is called only when the environment has to be made.
    """
    home = root / contents.folder_name
    python = home / "bin" / "python"
    with locks.exclusive(root / f".{contents.folder_name}.lock"):
        if _is_sound(home, contents):
            return python, True
        if home.exists():
            print(f"{home} is incomplete or broken; making it again", file=sys.stderr, flush=True)
            shutil.rmtree(home)
        print(f"making the environment {home}", file=sys.stderr, flush=True)
        venv.create(home, symlinks=True)  # without pip: the installer at hand is aimed at it
        if contents.source is not None:
            site = next((home / "lib").glob("python*/site-packages"))
            (site / "cleanrl_operator_checkout.pth").write_text(f"{contents.source}\n")
        install(Installer.find(python))
        marker = home / MARKER
        partial = marker.with_suffix(".partial")
        partial.write_text(json.dumps({"packages": sorted(contents.packages), "sets": contents.sets}) + "\n")
        partial.replace(marker)
    return python, False


def _is_sound(home: Path, contents: Contents) -> bool:
    try:
        marker = json.loads((home / MARKER).read_text())
    except (OSError, ValueError):
        return False
    if marker.get("packages") != sorted(contents.packages):
        return False
    modules = [module for name in contents.sets for module in requirement_sets.SETS[name].modules]
    code = "import sys, importlib.util as u; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))"
    try:
        probe = subprocess.run([home / "bin" / "python", "-c", code, *modules], capture_output=True, check=False)
    except OSError:
        return False
    return probe.returncode == 0


def _checkout() -> Path | None:
    """The project's folder when this package runs from its source tree rather than from an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None

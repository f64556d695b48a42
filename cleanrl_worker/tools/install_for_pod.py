"""Install what is missing of requirement sets into a folder of a pod's own: the program of a run's init container.

    python -m cleanrl_worker.tools.install_for_pod --set atari,minigrid --prefix /requirements --wheels /wheels
    python -m cleanrl_worker.tools.install_for_pod --set atari --prefix /requirements --index-url https://packages.example/simple

The image is read-only and keeps what it has: only what it lacks goes below the prefix, and `<prefix>/site-packages` leads
there. Without an index nothing but the folder of wheels is asked. The last lines that it prints say what went wrong: they
become the reason of the run.

Exit codes: 0 everything is there; 1 something could not be had or installed; 2 a bad command line.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from cleanrl_worker import requirement_sets
from cleanrl_worker.requirement_sets import SETS
from cleanrl_worker.tools import installer
from cleanrl_worker.tools.installer import Installer, InstallError

LINK = "site-packages"
OPTIONS = (
    "--disable-pip-version-check",
    "--retries",
    "1",
    "--no-cache-dir",
    "--no-warn-script-location",
    "--only-binary",
    ":all:",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Install, or say in one sentence why not."""
    options = _parser().parse_args(argv)
    try:
        sets = requirement_sets.resolve(name for name in options.sets.split(",") if name.strip())
        absent = list(dict.fromkeys(item.set for item in requirement_sets.missing(sets)))
        if not absent:
            print(f"the image has all of {', '.join(sets)}")
            (options.prefix / LINK).mkdir(parents=True, exist_ok=True)
            return 0
        _install(absent, options)
    except requirement_sets.UnknownSetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (InstallError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"installed: {', '.join(absent)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", dest="sets", required=True, metavar="A,B", help="the sets that the run needs")
    parser.add_argument("--prefix", type=Path, required=True, metavar="DIR", help="where to install")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="a wheel cache, or a folder of wheels")
    parser.add_argument("--index-url", metavar="URL", help="a package index; without one only --wheels is asked")
    return parser


def _install(sets: list[str], options: argparse.Namespace) -> None:
    packages = list(dict.fromkeys(package for name in sets for package in SETS[name].packages))
    try:
        installer.run(_command(packages, options))
    except InstallError as error:
        raise InstallError(_explanation(sets, options) if error.unreachable else str(error)) from None
    site = _site(options.prefix)
    sys.path.append(str(site))
    importlib.invalidate_caches()
    absent = requirement_sets.missing(sets)
    if absent:
        raise InstallError(f"the installer ended well, and module {absent[0].module} is still missing")


def _command(packages: list[str], options: argparse.Namespace) -> list[str]:
    """pip and not uv: with a prefix pip leaves out what the image has, and uv installs it again."""
    pip = Installer.find().pip
    if pip is None:
        raise InstallError("the image has no pip to install with: add pip to it, or build an image with the sets in it")
    index = ["--index-url", options.index_url] if options.index_url else ["--no-index"]
    folder = []
    if options.wheels is not None:
        wheels = options.wheels / "wheels"
        folder = ["--find-links", str(wheels if wheels.is_dir() else options.wheels)]
    return [*pip, "install", *OPTIONS, "--prefix", str(options.prefix), *index, *folder, *packages]


def _site(prefix: Path) -> Path:
    """The folder that Python has to look into, under one name whatever this Python calls it."""
    link = prefix / LINK
    found = [path for name in ("site-packages", "dist-packages") for path in sorted(prefix.glob(f"*/**/{name}"))]
    if not found:
        raise InstallError(f"the installer ended well, and put nothing below {prefix}")
    if not link.exists():
        link.symlink_to(found[0].relative_to(prefix), target_is_directory=True)
    return link


def _explanation(sets: list[str], options: argparse.Namespace) -> str:
    names = ",".join(sets)
    if options.index_url:
        return f"the packages of {names} can't be had from {options.index_url}; what the installer said is above"
    fill = f"python -m cleanrl_worker.tools.install_extras --set {names} --wheel-cache {options.wheels} --download-only"
    return f"the wheel cache does not hold the packages of {names}; fill its claim with: {fill}"


if __name__ == "__main__":
    sys.exit(main())

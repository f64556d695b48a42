"""Install the libraries of requirement sets.

    python -m cleanrl_worker.tools.install_extras --list
    python -m cleanrl_worker.tools.install_extras --set atari,procgen
    python -m cleanrl_worker.tools.install_extras --set atari --check
    python -m cleanrl_worker.tools.install_extras --set atari --wheel-cache var/cache/pip [--download-only]
    python -m cleanrl_worker.tools.install_extras --set atari --venv-cache var/trainer/venvs

Exit codes: 0 done, or nothing is missing; 1 something is missing or could not be installed; 2 a bad command line.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from cleanrl_worker import requirement_sets
from cleanrl_worker.requirement_sets import SETS
from cleanrl_worker.tools import venv_cache
from cleanrl_worker.tools.installer import Installer, InstallError
from cleanrl_worker.tools.wheel_cache import WheelCache

PROGRAM = "python -m cleanrl_worker.tools.install_extras"


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    sets: list[str] = []
    try:
        if options.list:
            _list()
            return 0
        sets = requirement_sets.resolve(name for item in options.sets for name in item.split(",") if name.strip())
        if options.check:
            return _check(sets or list(SETS))
        if not sets:
            print(f"error: name the sets to install, for example: {PROGRAM} --set atari,procgen", file=sys.stderr)
            return 2
        return _install(sets, options)
    except requirement_sets.UnknownSetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (InstallError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        if getattr(error, "unreachable", False):
            print(_without_network(sets, options.wheel_cache), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Install the libraries of requirement sets.")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A,B", help="sets, or all")
    parser.add_argument("--list", action="store_true", help="show every set, its packages and whether it is installed")
    parser.add_argument("--check", action="store_true", help="install nothing; exit 1 when something is missing")
    parser.add_argument("--wheel-cache", type=Path, metavar="DIR", help="download into DIR once, install from it after")
    parser.add_argument("--download-only", action="store_true", help="fill the wheel cache and install nothing")
    parser.add_argument("--venv-cache", type=Path, metavar="DIR", help="make or reuse an environment with these sets")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run none")
    return parser


def _list() -> None:
    rows = [("SET", "INSTALLED", "PACKAGES")]
    for entry in SETS.values():
        absent = {module.module for module in requirement_sets.missing([entry.name])}
        state = "yes" if not absent else "no" if len(absent) == len(entry.modules) else "in part"
        rows.append((entry.name, state, ", ".join(entry.packages)))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, state, packages in rows:
        print(f"{name:<{widths[0]}}  {state:<{widths[1]}}  {packages}")


def _check(sets: list[str]) -> int:
    absent = requirement_sets.missing(sets)
    libraries = requirement_sets.missing_libraries(sets)
    for item in absent:
        print(f"missing: module {item.module} (set {item.set})")
    for library, package in libraries:
        print(f"missing: system library {library} (Debian package {package})")
    if absent:
        incomplete = list(dict.fromkeys(item.set for item in absent))
        print(f"install the modules with: {requirement_sets.install_command(incomplete)}")
    if libraries:
        print(f"install the system libraries with: apt-get install -y {' '.join(package for _, package in libraries)}")
    if absent or libraries:
        return 1
    print(f"complete: {', '.join(sets)}")
    return 0


def _install(sets: list[str], options: argparse.Namespace) -> int:
    if options.download_only and options.wheel_cache is None:
        print("error: --download-only needs --wheel-cache DIR to download into", file=sys.stderr)
        return 2
    cache = WheelCache(options.wheel_cache) if options.wheel_cache is not None else None
    if options.venv_cache is not None:
        contents = venv_cache.Contents.of(sets)
        packages = list(contents.packages)
    else:
        packages = list(dict.fromkeys(package for name in sets for package in SETS[name].packages))
    if options.dry_run:
        _explain(sets, packages, cache, options)
        return 0
    if cache is not None and options.download_only:
        downloaded = cache.fill(packages, Installer.find())
        print(f"{'downloaded into' if downloaded else 'already in'} {cache.root}: {', '.join(sets)}")
        return 0
    if options.venv_cache is not None:
        python, reused = venv_cache.obtain(options.venv_cache.resolve(), contents, lambda to: _put(packages, cache, to))
        print(f"{'reused' if reused else 'made'} {python}", file=sys.stderr)
        print(python)  # alone on standard output, so that a script can use it
        return 0
    if not requirement_sets.missing(sets):
        print(f"already installed: {', '.join(sets)}")
    else:
        _put(packages, cache, Installer.find())
        importlib.invalidate_caches()
        absent = requirement_sets.missing(sets)
        if absent:
            raise InstallError(f"the installer ended well, and still something is missing: {absent[0]}")
        print(f"installed: {', '.join(sets)}")
    for library, package in requirement_sets.missing_libraries(sets):
        print(f"note: system library {library} is missing; install it with: apt-get install -y {package}")
    return 0


def _put(packages: list[str], cache: WheelCache | None, installer: Installer) -> None:
    """Install from the cache, which is filled first if need be; straight from the index without one."""
    if cache is None:
        installer.install(packages)
        return
    cache.fill(packages, installer)
    with cache.verified(packages) as wheels:
        installer.install(packages, wheels)


def _explain(sets: list[str], packages: list[str], cache: WheelCache | None, options: argparse.Namespace) -> None:
    installer = Installer.find()
    wheels = cache.wheels if cache is not None else None
    if cache is not None and cache.damage(packages) is not None:
        print(f"would download: {shlex.join(installer.wheel_command(packages, cache.wheels))}")
    if options.venv_cache is not None:
        home = options.venv_cache / venv_cache.Contents.of(sets).folder_name
        print(f"would install into the environment: {home}")
    if not options.download_only:
        print(f"would run: {shlex.join(installer.install_command(packages, wheels))}")


def _without_network(sets: Sequence[str], cache: Path | None) -> str:
    folder = cache or "DIR"
    where = f"the wheel cache {cache} does not hold them" if cache is not None else "no --wheel-cache was given"
    fill = f"{PROGRAM} --set {','.join(sets)} --wheel-cache {folder} --download-only"
    return (
        f"The packages of {', '.join(sets)} can't be downloaded (is there a network?) and {where}. On a machine with "
        f"network and the same Python run:\n  {fill}\ncopy {folder} here, and run this command again "
        f"with --wheel-cache {folder}."
    )


if __name__ == "__main__":
    sys.exit(main())

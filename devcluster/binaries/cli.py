"""`devcluster binaries`: what is there, make it now, check it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from devcluster.binaries import cache, existing
from devcluster.binaries.catalog import PROGRAMS, find
from devcluster.binaries.errors import BinaryError
from devcluster.binaries.obtain import ensure_many


def cli_main(argv: Sequence[str]) -> int:
    """Run the subcommand and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="devcluster binaries", description="Programs that a local cluster is made of."
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="show each program, its version and where it is (default)")
    action.add_argument(
        "--build", nargs="+", metavar="NAME", help="have these programs ready now; `all` means every one"
    )
    action.add_argument("--verify", action="store_true", help="check every program in the cache against its record")
    arguments = parser.parse_args(argv)
    try:
        if arguments.build:
            return _build(list(PROGRAMS) if arguments.build == ["all"] else arguments.build)
        return _verify() if arguments.verify else _list()
    except BinaryError as error:
        sys.stderr.write(f"devcluster: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("devcluster: interrupted; nothing half-made was kept\n")
        return 130


def _build(names: list[str]) -> int:
    for name, path in ensure_many(names, progress=_tell, verbose=True).items():
        sys.stdout.write(f"{name:24} {path}\n")
    return 0


def _list() -> int:
    for name, program in PROGRAMS.items():
        path = existing.look(program, program.version, lambda _where, line: _tell(line))
        if path is None and cache.fault(program, program.version) is None:
            path = cache.place(program, program.version)
        sys.stdout.write(f"{name:24} {program.version:10} {path or 'made when it is first needed'}\n")
    return 0


def _verify() -> int:
    bad = 0
    for name in PROGRAMS:
        program = find(name)
        fault = cache.fault(program, program.version)
        bad += fault not in {None, "absent"}
        sys.stdout.write(f"{name:24} {program.version:10} {'sound' if fault is None else fault}\n")
    return 1 if bad else 0


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")

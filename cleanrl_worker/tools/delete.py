"""Delete a run's folder, after its archive was compared with it.

    python -m cleanrl_worker.tools.delete RUN_DIR [--archive FILE]
    python -m cleanrl_worker.tools.delete RUN_DIR --force       # without an archive

A run that is alive is never deleted, and neither is anything that is not a run's folder.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from cleanrl_worker.tools import archive, liveness
from cleanrl_worker.tools.manifest import ArchiveError

PROGRAM = "python -m cleanrl_worker.tools.delete"


class DeleteError(RuntimeError):
    """The folder was left as it is. The message says why and what to do."""


def delete(folder: Path, archive_file: Path | None = None, force: bool = False) -> Path:
    """Delete the run's folder and return its path. Raises an error with a sentence when nothing was deleted."""
    run_dir = liveness.require_run_folder(folder)
    with liveness.taken(run_dir):  # no worker starts in it from here on
        alive = liveness.sign_of_life(run_dir)
        if alive is not None:
            raise DeleteError(f"{run_dir} is left alone: the run is alive ({alive})")
        if not force:
            _require_archive(run_dir, archive_file or run_dir.parent / f"{run_dir.name}.tar.gz")
        doomed = run_dir.with_name(f".{run_dir.name}.deleting")
        if doomed.is_dir() and not doomed.is_symlink():
            shutil.rmtree(doomed)  # of an earlier deletion that was interrupted
        run_dir.rename(doomed)  # the run is gone at once or not at all
        shutil.rmtree(doomed)
    return run_dir


def _require_archive(run_dir: Path, archive_file: Path) -> None:
    if not archive_file.is_file():
        raise DeleteError(
            f"{run_dir} is left alone: there is no archive {archive_file}. Make one with: {archive.PROGRAM} {run_dir}; "
            "name it with --archive FILE; or delete without one by --force"
        )
    problems = archive.verify(archive_file, run_dir)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise DeleteError(
            f"{run_dir} is left alone: the archive {archive_file} is not a copy of it: {problems[0]}{more}. "
            f"Archive it again, or delete without an archive by --force"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Delete a run's folder after checking its archive.")
    parser.add_argument("folder", type=Path, metavar="RUN_DIR")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="default: RUN_DIR.tar.gz beside the folder")
    parser.add_argument("--force", action="store_true", help="delete without an archive")
    options = parser.parse_args(argv)
    try:
        gone = delete(options.folder, options.archive, options.force)
    except (DeleteError, liveness.NotARunError, liveness.InUseError, ArchiveError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"deleted {gone}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Pack a run's folder into one file that proves its own contents, check such a file, and unpack it.

    python -m cleanrl_worker.tools.archive RUN_DIR [-o FILE]
    python -m cleanrl_worker.tools.archive --verify FILE [RUN_DIR]
    python -m cleanrl_worker.tools.archive --extract FILE DIR

The archive is a gzipped tar. Its first member, `<run>.manifest.json`, lists every file with size and sha256; the files
follow in the order of their paths under `<run>/`. The same folder gives the same bytes. Symbolic links are
kept as links and never followed. An archive from elsewhere is hostile until read: unpacking writes only what the
manifest lists, into a new folder, and that folder appears only when every checksum was right.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from cleanrl_worker.tools import liveness
from cleanrl_worker.tools.manifest import CHUNK, ArchiveError, Entry, Manifest, open_regular, scan
from cleanrl_worker.tools.progress import Progress

PROGRAM = "python -m cleanrl_worker.tools.archive"
MANIFEST_SUFFIX = ".manifest.json"
_LARGEST_MANIFEST = 64 * 2**20
_LARGEST_PADDING = 4 * 2**20


# ---- packing -----------------------------------------------------------------------------------------------------


def pack(run_dir: Path, target: Path) -> Manifest:
    """Write the archive of `run_dir` to `target`, whole or not at all. Raises ArchiveError, OSError."""
    if target.exists() or target.is_symlink():
        raise ArchiveError(f"{target} is there already; remove it or name another file with -o")
    if target.resolve().is_relative_to(run_dir):
        raise ArchiveError(f"{target} lies inside the folder that is to be archived; name another place with -o")
    if not target.parent.is_dir():
        raise ArchiveError(f"the folder {target.parent} does not exist")
    with Progress("reading") as progress:
        manifest = scan(run_dir, progress)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as raw:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=3, mtime=0) as packed:
                _write_tar(run_dir, manifest, packed)
            raw.flush()
            os.fsync(raw.fileno())
        problems = verify(partial)
        if problems:
            raise ArchiveError(f"the archive could not be read back: {problems[0]}")
        partial.chmod(0o644)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def _write_tar(run_dir: Path, manifest: Manifest, packed: gzip.GzipFile) -> None:
    text = manifest.to_json()
    with (
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        Progress("packing", manifest.size) as progress,
    ):
        head = tarfile.TarInfo(manifest.run + MANIFEST_SUFFIX)
        head.size = len(text)
        tar.addfile(head, io.BytesIO(text))
        for entry in manifest.entries:
            info = tarfile.TarInfo(f"{manifest.run}/{entry.path}")
            info.mode, info.mtime = entry.mode, entry.mtime
            if entry.kind == "folder":
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            elif entry.kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
                tar.addfile(info)
            else:
                info.size = entry.size
                with open_regular(run_dir / entry.path) as handle:
                    reader = _HashingReader(handle, entry, progress)
                    tar.addfile(info, reader)
                reader.compare()


class _HashingReader:
    """Gives tarfile a file's bytes and remembers their checksum, to notice a file that changes while it is packed."""

    def __init__(self, source: IO[bytes], entry: Entry, progress: Progress) -> None:
        self._source, self._entry, self._progress = source, entry, progress
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._digest.update(data)
        self._progress.advance(len(data))
        return data

    def compare(self) -> None:
        if self._digest.hexdigest() != self._entry.sha256:
            raise ArchiveError(f"{self._entry.path} changed while it was archived; is something still writing?")


# ---- reading -----------------------------------------------------------------------------------------------------


@contextmanager
def _reading(archive: Path) -> Iterator[tuple[Manifest, tarfile.TarFile]]:
    """Open an archive, its manifest read and checked. Every way in which the file can be broken is an ArchiveError."""
    try:
        with gzip.open(archive, "rb") as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            head = tar.next()
            if head is None or not head.isreg() or not head.name.endswith(MANIFEST_SUFFIX):
                raise ArchiveError(f"{archive} is not an archive of a run: it does not begin with a manifest")
            if head.size > _LARGEST_MANIFEST:
                raise ArchiveError(f"the manifest of {archive} is too large to be one")
            source = tar.extractfile(head)
            assert source is not None
            manifest = Manifest.from_json(source.read())
            yield manifest, tar
            _drain(packed)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
        raise ArchiveError(f"{archive} is damaged: {error or 'it ends too early'}") from None


def _drain(packed: gzip.GzipFile) -> None:
    """Read what follows the last member, which is zeros, to the end: gzip compares its own checksum there."""
    left = _LARGEST_PADDING
    while chunk := packed.read(CHUNK):
        left -= len(chunk)
        if left < 0 or chunk.strip(b"\0"):
            raise ArchiveError("the archive goes on after its last member")


def _members(manifest: Manifest, tar: tarfile.TarFile) -> Iterator[tuple[Entry, tarfile.TarInfo]]:
    """The members in the manifest's order, each compared with its entry. What the manifest does not list is an error."""
    for entry in manifest.entries:
        info = tar.next()
        kind = None if info is None else "file" if info.isreg() else "folder" if info.isdir() else "link"
        if info is None:
            raise ArchiveError(f"{entry.path} is listed in the manifest and missing from the archive")
        if info.name != f"{manifest.run}/{entry.path}" or kind != entry.kind or not (kind != "link" or info.issym()):
            raise ArchiveError(f"the archive holds {info.name!r} where the manifest lists {entry.path!r}")
        if info.size != entry.size or (kind == "link" and info.linkname != entry.target):
            raise ArchiveError(f"{entry.path} differs from its entry in the manifest")
        yield entry, info
    extra = tar.next()
    if extra is not None:
        raise ArchiveError(f"the archive holds {extra.name!r}, which its manifest does not list")


def _chunks(tar: tarfile.TarFile, info: tarfile.TarInfo, entry: Entry) -> Iterator[bytes]:
    """A member's bytes. Raises ArchiveError after the last ones when their checksum is not the entry's."""
    digest = hashlib.sha256()
    source = tar.extractfile(info)
    assert source is not None
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != entry.sha256:
        raise ArchiveError(f"{entry.path} does not have the checksum that the manifest lists")


def verify(archive: Path, run_dir: Path | None = None) -> list[str]:
    """What is wrong with the archive, or differs between it and `run_dir`; empty when nothing is."""
    try:
        with _reading(archive) as (manifest, tar), Progress("verifying", manifest.size) as progress:
            for entry, info in _members(manifest, tar):
                if entry.kind == "file":
                    for chunk in _chunks(tar, info, entry):
                        progress.advance(len(chunk))
    except ArchiveError as error:
        return [str(error)]
    if run_dir is None:
        return []
    with Progress("comparing", manifest.size) as progress:
        return _differences(manifest, scan(run_dir, progress), run_dir)


def _differences(archived: Manifest, present: Manifest, run_dir: Path) -> list[str]:
    before = {entry.path: entry for entry in archived.entries}
    now = {entry.path: entry for entry in present.entries}
    problems = [f"{path} is in {run_dir} and not in the archive" for path in now if path not in before]
    problems += [f"{path} is in the archive and not in {run_dir}" for path in before if path not in now]
    for path in before.keys() & now.keys():
        old, new = before[path], now[path]
        if (old.kind, old.size, old.sha256, old.target) != (new.kind, new.size, new.sha256, new.target):
            problems.append(f"{path} changed after it was archived")
    return sorted(problems)


def extract(archive: Path, into: Path) -> tuple[Path, list[str]]:
    """Unpack into the new folder `into/<run>`. Returns it and the links that were left out because they point outside."""
    into.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".extracting-", dir=into))
    try:
        with _reading(archive) as (manifest, tar):
            final = into / manifest.run
            if final.exists() or final.is_symlink():
                raise ArchiveError(f"{final} is there already; nothing is overwritten, so name another folder")
            if manifest.size > shutil.disk_usage(into).free:
                raise ArchiveError(f"the run takes {manifest.size} bytes, and {into} has not that many free")
            left_out = _unpack(manifest, tar, partial)
        partial.chmod(0o755)
        partial.rename(final)
    except (FileExistsError, NotADirectoryError) as error:
        raise ArchiveError(f"the archive's paths contradict each other: {error}") from None
    finally:
        if partial.exists():
            shutil.rmtree(partial)
    return final, left_out


def _unpack(manifest: Manifest, tar: tarfile.TarFile, partial: Path) -> list[str]:
    """Files and folders first. Links come last, so that nothing is ever written through one."""
    links: list[Entry] = []
    with Progress("unpacking", manifest.size) as progress:
        for entry, info in _members(manifest, tar):
            path = partial / entry.path
            if entry.kind == "link":
                links.append(entry)
                continue
            if entry.kind == "folder":
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "wb") as target:
                for chunk in _chunks(tar, info, entry):
                    target.write(chunk)
                    progress.advance(len(chunk))
            path.chmod(entry.mode & 0o777)
            os.utime(path, (entry.mtime, entry.mtime))
    left_out = []
    for entry in links:
        if _stays_inside(entry):
            path = partial / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(entry.target)
        else:
            left_out.append(f"{entry.path} -> {entry.target}")
    for entry in sorted(manifest.entries, key=lambda item: item.path, reverse=True):
        if entry.kind == "folder":
            (partial / entry.path).chmod(entry.mode & 0o777 | 0o700)
            os.utime(partial / entry.path, (entry.mtime, entry.mtime))
    return left_out


def _stays_inside(link: Entry) -> bool:
    """Whether a link's target lies in the run's folder, judged by its text alone.

    Up first and then down: `..` behind a name could leave by way of another link.
    """
    target = PurePosixPath(link.target)
    if not link.target or "\0" in link.target or target.is_absolute():
        return False
    ups = sum(part == ".." for part in target.parts)
    depth = len(PurePosixPath(link.path).parts) - 1
    return ups <= depth and all(part == ".." for part in target.parts[:ups])


# ---- command line ------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Pack, check and unpack run folders.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--verify", type=Path, metavar="FILE", help="check an archive, and RUN_DIR against it if given")
    action.add_argument("--extract", type=Path, metavar="FILE", help="unpack an archive into a new folder inside DIR")
    parser.add_argument("folder", type=Path, nargs="?", metavar="RUN_DIR|DIR")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: RUN_DIR.tar.gz beside the folder")
    parser.add_argument("--force", action="store_true", help="archive also while the run is alive")
    options = parser.parse_args(argv)
    try:
        if options.verify is not None:
            return _verify_command(options.verify, options.folder)
        if options.folder is None:
            parser.error("name a folder")
        if options.extract is not None:
            final, left_out = extract(options.extract, options.folder)
            for link in left_out:
                print(f"left out, since it points outside of the run's folder: {link}", file=sys.stderr)
            print(f"extracted to {final}; every checksum is right")
            return 0
        return _pack_command(options.folder, options.output, options.force)
    except (ArchiveError, liveness.NotARunError, liveness.InUseError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        return 130


def _pack_command(folder: Path, output: Path | None, force: bool) -> int:
    run_dir = liveness.require_run_folder(folder)
    target = output if output is not None else run_dir.parent / f"{run_dir.name}.tar.gz"
    if force:
        manifest = pack(run_dir, target)
    else:
        with liveness.taken(run_dir):
            alive = liveness.sign_of_life(run_dir)
            if alive is not None:
                raise ArchiveError(f"the run is alive: {alive}. Use --force for a snapshot of what is there now")
            manifest = pack(run_dir, target)
    for path in manifest.skipped:
        print(f"left out, since it is neither file, folder nor link: {path}", file=sys.stderr)
    print(f"{target}: {len(manifest.files)} files, {manifest.size} bytes, {target.stat().st_size} packed, verified")
    return 0


def _verify_command(archive: Path, folder: Path | None) -> int:
    run_dir = liveness.require_run_folder(folder) if folder is not None else None
    problems = verify(archive, run_dir)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{archive}: every checksum is right" + (f", and {run_dir} is the same" if run_dir else ""))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

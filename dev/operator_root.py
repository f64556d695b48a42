"""Gather the operator image's whole root in one folder: Python, the libraries that it loads, the virtual environment.

Run by the Dockerfile's build stage, with that stage's Python. The image is built from nothing else, so it has no shell,
no package manager, and a third of the base's size. The Kubernetes client, two thirds of the environment's bytes, goes in
as bytecode without docstrings; everything else keeps its source, for tracebacks that can be read.
"""

import compileall
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

UNUSED = {
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "dist-packages",
}
"""Parts of the standard library that a server without a person in front of it never imports."""
USER = 65532


def main(environment: Path, root: Path) -> None:
    """Fill `root`."""
    for link in map(Path, ("/bin", "/lib", "/lib64")):
        if link.is_symlink():
            (root / link.name).symlink_to(link.readlink())
    interpreter = environment / "bin" / "python"
    while interpreter.is_symlink():
        interpreter = Path(os.path.normpath(interpreter.parent / interpreter.readlink()))
        if not interpreter.is_relative_to(environment):
            copy(interpreter, root, follow=False)
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, inside(root, library), symlinks=True, ignore=lambda _, names: unused(names))
    shutil.copytree(environment, inside(root, environment), symlinks=True)
    without_source(next(inside(root, environment).glob("lib/python3*/site-packages/kubernetes")), root)
    for library in sorted({path for program in [interpreter, *root.rglob("*.so*")] for path in loaded(program)}):
        copy(library, root)
    copy(Path("/etc/ld.so.cache"), root)  # where the loader finds libraries outside of its own folders
    for folder, mode in (("etc", 0o755), ("tmp", 0o1777), ("var/tmp", 0o1777)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).chmod(mode)
    (root / "etc/passwd").write_text(f"root:x:0:0::/:/nologin\nnonroot:x:{USER}:{USER}::/tmp:/nologin\n")
    (root / "etc/group").write_text(f"root:x:0:\nnonroot:x:{USER}:\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")


def unused(names: list[str]) -> set[str]:
    """Which entries of a folder stay outside."""
    return {name for name in names if name in UNUSED or name.startswith("config-")}


def loaded(program: Path) -> set[Path]:
    """The libraries that the loader finds for a program."""
    answer = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    words = [line.replace("=>", " ").split() for line in answer.stdout.splitlines()]
    paths = {Path(word) for line in words for word in line if word.startswith("/")}
    return {path for path in paths if path.is_file() and not path.is_relative_to("/opt")}


def inside(root: Path, path: Path) -> Path:
    """Where a path of the build stage is in the new root, links of its folders followed."""
    return root / (path.parent.resolve() / path.name).relative_to("/")


def copy(path: Path, root: Path, *, follow: bool = True) -> None:
    """A file under its own name; what a link leads to, unless it is to stay one."""
    target = inside(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(target):
        shutil.copy2(path, target, follow_symlinks=follow)


def without_source(package: Path, root: Path) -> None:
    """Replace modules by their bytecode, without docstrings."""
    for cache in list(package.rglob("__pycache__")):
        shutil.rmtree(cache)
    if not compileall.compile_dir(
        package, quiet=1, legacy=True, optimize=2, workers=0, stripdir=str(root), prependdir="/"
    ):
        raise SystemExit(f"{package} does not compile")
    for source in package.rglob("*.py"):
        source.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

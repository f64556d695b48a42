"""Make the project's virtual environment on a machine that has Python 3.11 or newer and nothing else.

Only the standard library is used: this runs before anything is installed. Steps: uv (from PATH, else in a private
virtual environment in the user's cache), the locked environment in `.venv`, the Debian packages that some environment
families load. A stamp makes the second run a matter of milliseconds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from devcluster.progress import StepFailed, run_step  # noqa: E402  (the project is not installed yet)

UV_VERSION = "0.13.7"
OLDEST_UV = (0, 8)
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
ENVIRONMENT_BYTES = 14 * 2**30
"""What PyPI's torch, its CUDA libraries and the download cache take on the disk, once."""

SYSTEM_PACKAGES = {
    "libqt5gui5": "the Procgen environments of envpool",
    "libqt5core5a": "the Procgen environments of envpool",
    "jq": "the shipped training scripts",
    "libfaketime": "the clocks that `make chaos` sets wrong",
    "prometheus": "the tests of metrics, dashboards and alerts",
}


class Refused(Exception):
    """The surroundings do not allow a step; the message says what to do about it."""


def main() -> int:
    """Set up everything, or say in one sentence what is in the way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--force", action="store_true", help="sync the environment even if nothing has changed")
    arguments = parser.parse_args()
    try:
        check_python()
        sync_environment(force=arguments.force)
        install_system_packages()
    except (Refused, StepFailed) as refusal:
        sys.stderr.write(f"setup: {refusal}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("setup: interrupted; run the command again to go on\n")
        return 130
    return 0


def check_python() -> None:
    """Refuse an interpreter that the lock file does not cover."""
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST_PYTHON, NEWEST_PYTHON))
        raise Refused(
            f"this is Python {platform.python_version()}, and the project needs {oldest} to {newest}: "
            f"run `make PYTHON=/path/to/python3.11 ...`"
        )


def sync_environment(force: bool) -> None:
    """Bring `.venv` to what `uv.lock` says; nothing is done when it already is."""
    environment = PROJECT / ".venv"
    stamp = environment / ".bootstrap-stamp"
    wanted = environment_digest()
    if not force and stamp.is_file() and stamp.read_text() == wanted:
        return
    free = shutil.disk_usage(PROJECT).free
    if not stamp.is_file() and free < ENVIRONMENT_BYTES:
        raise Refused(
            f"{free / 2**30:.0f} GiB are free where the project lies and the environment takes up to "
            f"{ENVIRONMENT_BYTES / 2**30:.0f}: free some space, or move the project to a larger disk"
        )
    uv = find_uv()
    stamp.unlink(missing_ok=True)
    run_step(
        "Python packages into .venv (torch and its libraries are large)",
        [uv, "sync", "--frozen", "--all-extras", "--python", sys.executable],
        typical_seconds=120,
        cwd=PROJECT,
        env={**os.environ, "VIRTUAL_ENV": "", "UV_COMPILE_BYTECODE": "1"},  # pods see the environment read-only
        remedy="see the lines above; `make setup` tries again and keeps what was downloaded",
    )
    stamp.write_text(wanted)


def environment_digest() -> str:
    """A digest of everything that decides what is in `.venv`."""
    digest = hashlib.sha256(f"{sys.executable} {sys.version} {PROJECT}".encode())
    for name in ("uv.lock", "pyproject.toml"):
        digest.update((PROJECT / name).read_bytes())
    return digest.hexdigest()


def find_uv() -> str:
    """The path of a recent uv: the user's own, else one in a private virtual environment."""
    own = shutil.which("uv")
    if own and uv_version(own) >= OLDEST_UV:
        return own
    home = cache_folder() / f"uv-{UV_VERSION}-py{sys.version_info[0]}.{sys.version_info[1]}"
    private = home / "bin" / "uv"
    if private.is_file() and uv_version(str(private)) >= OLDEST_UV:
        return str(private)
    shutil.rmtree(home, ignore_errors=True)
    make_virtual_environment(home)
    run_step(
        f"uv {UV_VERSION} into a private virtual environment",
        [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", f"uv=={UV_VERSION}"],
        typical_seconds=10,
        remedy="is the Python package registry reachable? Or install uv yourself and run this again",
    )
    return str(private)


def make_virtual_environment(home: Path) -> None:
    """A virtual environment with pip; on Debian the parts it needs may have to be installed first."""
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(
            f"{home.parent} can't be made ({error.strerror}): set XDG_CACHE_HOME to a folder of yours"
        ) from None
    command = [sys.executable, "-m", "venv", str(home)]
    if subprocess.run(command, capture_output=True, check=False).returncode == 0:
        return
    shutil.rmtree(home, ignore_errors=True)
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if not can_install_packages():
        raise Refused(f"`python -m venv` does not work here: install {package} (Debian and Ubuntu), or uv itself")
    apt_install([package], "to make virtual environments")
    subprocess.run(command, check=True)


def uv_version(uv: str) -> tuple[int, ...]:
    """The version that a uv program reports, or () if it does not run."""
    try:
        answer = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
        return tuple(int(part) for part in answer.split()[1].split(".")[:3])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()


def install_system_packages() -> None:
    """Install the Debian packages that are missing, or say once what will not work without them."""
    if shutil.which("dpkg-query") is None:
        return
    there = installed_packages()
    missing = [name for name in SYSTEM_PACKAGES if name not in there]
    if not missing:
        return
    why = "this is not root"
    if can_install_packages():
        try:
            apt_install(missing, "that environments, scripts and tests need")
        except StepFailed as failure:  # a mirror that is out of reach keeps nobody from the demo
            sys.stderr.write(f"setup: {failure}\n")
            why = "they could not be installed"
        else:
            return
    uses = ", ".join(sorted({SYSTEM_PACKAGES[name] for name in missing}))
    sys.stderr.write(f"setup: left out, since {why}: {' '.join(missing)} (for {uses})\n")


def installed_packages() -> set[str]:
    """What dpkg has installed, and what that stands in for: Debian 13 has libqt5core5t64, which provides libqt5core5a."""
    query = ["dpkg-query", "-W", "-f=${db:Status-Status}\t${Package}\t${Provides}\n"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    lines = [line.split("\t") for line in answer.stdout.splitlines()]
    named = [
        name for status, package, provides in lines if status == "installed" for name in (package, *provides.split(","))
    ]
    return {name.partition("(")[0].strip() for name in named}


def can_install_packages() -> bool:
    """Whether this process may run apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(packages: list[str], why: str) -> None:
    """Install Debian packages, with the package lists brought up to date first."""
    apt = ["apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run_step("Debian's package lists", [*apt, "update"], typical_seconds=10, env=env)
    run_step(
        f"Debian packages {why}: {' '.join(packages)}",
        [*apt, "install", "--no-install-recommends", *packages],
        typical_seconds=15,
        env=env,
    )


def cache_folder() -> Path:
    """Where tools that belong to no single checkout are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "cleanrl-operator"


if __name__ == "__main__":
    sys.exit(main())

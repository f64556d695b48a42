from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import cleanrl_worker

PROJECT = Path(cleanrl_worker.__file__).resolve().parents[1]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run_tool() -> Run:
    """Run `python -m cleanrl_worker.tools.<name>` as a process of its own."""

    def run(
        name: str, *arguments: object, python: Path | str = sys.executable, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", f"cleanrl_worker.tools.{name}", *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=120
        )

    return run


def make_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> Path:
    """A wheel with one module that says its version."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small wheels that stands for the package index."""
    folder = tmp_path_factory.mktemp("index")
    make_wheel(folder, "tiny-base", "1.0")
    make_wheel(folder, "tiny-ale", "1.2", ("tiny-helper>=1",))
    make_wheel(folder, "tiny-helper", "1.0")
    return folder


@pytest.fixture(scope="session")
def small_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Metadata of the distribution in which the sets hold the small packages; goes before the real one on the path."""
    folder = tmp_path_factory.mktemp("metadata")
    info = folder / "cleanrl_operator-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: cleanrl-operator\nVersion: 0.1.0\n"
        "Requires-Dist: tiny-base>=1; extra == 'worker'\nRequires-Dist: tiny-ale>=1.1; extra == 'atari'\n"
    )
    return folder


@pytest.fixture(scope="session")
def bare_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with pip and nothing else; not to be installed into."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(home, symlinks=True, with_pip=True)
    return home


@pytest.fixture
def fresh_python(bare_environment: Path, tmp_path: Path) -> Path:
    """The interpreter of an environment of the test's own."""
    shutil.copytree(bare_environment, tmp_path / "target", symlinks=True)
    return tmp_path / "target" / "bin" / "python"


@pytest.fixture
def install_extras(run_tool: Run, small_distribution: Path, index: Path) -> Run:
    """install_extras with the small packages. `network=False`: there is no index to reach."""

    def run(*arguments: object, python: Path, network: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {
            "PYTHONPATH": f"{small_distribution}{os.pathsep}{PROJECT}",
            "PATH": "/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(index) if network else "",
            "PIP_CONFIG_FILE": os.devnull,
        }
        return run_tool("install_extras", *arguments, python=python, **environment)

    return run

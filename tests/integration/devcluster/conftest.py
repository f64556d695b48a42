"""The command line as a person uses it, with a state folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devcluster import processes
from devcluster.layout import Layout

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder, below a home with a space, that only this module's clusters use; what a failed test left is ended."""
    folder = tmp_path_factory.mktemp("a home") / "state"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder
        subprocess.run([sys.executable, "-m", "devcluster.cli", "down", "--all"], check=True, capture_output=True)


@pytest.fixture(scope="module")
def devcluster(state: Path) -> Run:
    """Run the command and return what it said."""

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "devcluster.cli", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **env},
        )

    return run


@pytest.fixture(scope="module")
def nothing_left(state: Path) -> Callable[[str], None]:
    """Assert that no process and no file of a cluster is left."""

    def check(name: str) -> None:
        layout = Layout.of(name)
        assert layout.root.is_relative_to(state)
        assert processes.marked(layout.root) == []
        assert not layout.root.exists()
        assert not layout.lock_file.exists()
        assert not layout.run.exists()

    return check

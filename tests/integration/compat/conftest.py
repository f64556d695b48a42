from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from cleanrl_worker.compat import child_environment
from cleanrl_worker.fastlane import segment

SCRIPTS = Path(__file__).parent / "scripts"
RunScript = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_id() -> str:
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def shm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev/shm: no supervisor elsewhere on the machine sweeps it at its start."""
    folder = tmp_path_factory.mktemp("shm")
    monkeypatch.setattr(segment, "SHM_DIR", folder)
    return folder


@pytest.fixture
def run_script(run_id: str, shm: Path, tmp_path: Path) -> RunScript:
    """Run a script the way its grandchildren run: an unmodified Python with our folder on PYTHONPATH, in a run folder."""

    def run(script: str, *arguments: str, patched: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
        base = {**os.environ, "CLEANRL_RUN_ID": run_id, "CLEANRL_SHM_DIR": str(shm), "SDL_VIDEODRIVER": "dummy"}
        base |= {"OMP_NUM_THREADS": "1", **environ}
        return subprocess.run(
            [sys.executable, str(SCRIPTS / script), *arguments],
            env=child_environment(base) if patched else base,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanrl_worker.fastlane import segment


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev/shm: no supervisor elsewhere on the machine sweeps it at its start."""
    monkeypatch.setattr(segment, "SHM_DIR", tmp_path)
    return tmp_path


@pytest.fixture
def run_id() -> Iterator[str]:
    """A run of its own, whose segments are removed afterwards."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    segment.unlink_run(name)

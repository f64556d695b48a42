from __future__ import annotations

from pathlib import Path

import pytest

from cleanrl_worker.fastlane import segment


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /dev/shm, so that tests neither see nor leave segments of the machine."""
    monkeypatch.setattr(segment, "SHM_DIR", tmp_path)
    return tmp_path

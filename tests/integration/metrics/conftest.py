"""A real Prometheus over a real run, as `dev/observatory.py` makes it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def observatory() -> ModuleType:
    """The module behind the pictures of the documentation."""
    spec = importlib.util.spec_from_file_location("observatory", PROJECT / "dev" / "observatory.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["observatory"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def promtool(observatory: ModuleType) -> str:
    """Prometheus' own checker. A machine without it fails here, with the way to get it."""
    return str(observatory.program("promtool"))


@pytest.fixture(scope="session")
def watched(observatory: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Prometheus, once it has seen a run learn, take a checkpoint and be told of by the operator."""
    folder = tmp_path_factory.mktemp("observatory")
    with observatory.watched_run(folder) as prometheus:
        for sign in ("cleanrl_worker_checkpoint_age_seconds", "cleanrl_worker_loss", "cleanrl_run_episodic_return"):
            observatory.until(
                lambda sign=sign: prometheus.query(f"count_over_time({sign}[1m]) > 1"),
                f"nothing was ever scraped of {sign}",
                (folder / "worker.log").read_text,
            )
        yield prometheus

"""A real Prometheus over a real run, as `dev/observatory.py` makes it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def promtool(observatory: ModuleType) -> str:
    """Prometheus' own checker. A machine without it fails here, with the way to get it."""
    return str(observatory.program("promtool"))


@pytest.fixture(scope="module")
def watched(observatory: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Prometheus, once it has seen a run learn, take a checkpoint and be told of by the operator.

    For one module: the run trains as fast as it can, and would take a core from every later test.
    """
    folder = tmp_path_factory.mktemp("observatory")
    with observatory.watched_run(folder) as prometheus:
        for sign in ("cleanrl_worker_checkpoint_age_seconds", "cleanrl_worker_loss", "cleanrl_run_episodic_return"):
            observatory.until(
                lambda sign=sign: prometheus.query(f"count_over_time({sign}[1m]) > 1"),
                f"nothing was ever scraped of {sign}",
                (folder / "worker.log").read_text,
            )
        yield prometheus

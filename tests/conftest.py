"""What every tier shares: a test's tier is the folder it lies in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleanrl_worker.tools import coverage_matrix, smoke_record

pytest_plugins = ["devcluster.pytest_plugin"]

TIERS = {"unit": "unit", "integration": "integration", "e2e": "e2e", "benchmarks": "benchmark"}


PROJECT = Path(__file__).parents[1]
RECORDS = Path(os.environ.get("CLEANRL_SMOKE_RECORDS") or PROJECT / "var" / "smoke-records")
ALL = os.environ.get("CLEANRL_COVERAGE") == "all"
"""Set by `make coverage`: check resume and evaluation of every algorithm, and keep what was found for docs/coverage.md."""


def covered(item: pytest.Item) -> str:
    """The algorithm of a test that is marked with `covers`; empty for the others."""
    if item.get_closest_marker("covers") is None or not isinstance(item, pytest.Function):
        return ""
    parameters = item.callspec.params
    return str(parameters.get("algo") or parameters["case"]).split()[0]


def is_due(item: pytest.Item, checked: dict[str, str]) -> bool:
    """Whether a test of an algorithm has something new to say: the page has no word on the source as it is now."""
    marker = item.get_closest_marker("covers")
    if ALL or marker is None or not marker.kwargs.get("once"):
        return True
    algo = covered(item)
    return checked.get(algo) != smoke_record.source_digest(algo)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Keep what a test that is marked with `covers` found."""
    outcome = yield
    marker, algo = item.get_closest_marker("covers"), covered(item)
    if ALL and marker is not None and algo and call.when == "call":
        passed = outcome.get_result().passed
        for what, how in marker.kwargs.items():
            if what != "once":
                smoke_record.note_check(RECORDS, algo, what, how if passed else smoke_record.FAILED)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, so that `-m e2e` works across folders, and leave out what the coverage page settled."""
    tests = Path(__file__).parent
    page = PROJECT / "docs" / "coverage.md"
    checked = coverage_matrix.checked_sources(page.read_text()) if page.exists() else {}
    settled = [item for item in items if not is_due(item, checked)]
    if settled:
        config.hook.pytest_deselected(items=settled)
        items[:] = [item for item in items if item not in settled]
    for item in items:
        tier = item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
        if tier in TIERS:
            item.add_marker(TIERS[tier])

"""What every tier shares: a test's tier is the folder it lies in."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["devcluster.pytest_plugin"]

TIERS = {"unit": "unit", "integration": "integration", "e2e": "e2e", "benchmarks": "benchmark"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, so that `-m e2e` works across folders."""
    tests = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
        if tier in TIERS:
            item.add_marker(TIERS[tier])

"""What integration tests of several parts share."""

from __future__ import annotations

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def observatory() -> ModuleType:
    """The module behind the pictures of the documentation."""
    import observatory

    return observatory

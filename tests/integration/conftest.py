"""What integration tests of several parts share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).parents[2]


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

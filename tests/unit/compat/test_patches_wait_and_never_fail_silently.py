from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cleanrl_worker.compat import PATCHES
from cleanrl_worker.compat.hooks import Patch, apply_when_imported


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module of its own that nobody has imported yet."""
    name = f"library_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def double(module: ModuleType) -> None:
    module.value *= 2  # type: ignore[attr-defined]


def test_a_patch_waits_for_its_library(library: str) -> None:
    apply_when_imported(Patch("double", library, double))
    assert library not in sys.modules
    assert importlib.import_module(library).value == 2


def test_who_only_looks_for_a_library_does_not_use_the_patch_up(library: str) -> None:
    apply_when_imported(Patch("double", library, double))
    assert importlib.util.find_spec(library) is not None
    assert importlib.import_module(library).value == 2


def test_a_library_that_is_there_already_is_patched_now(library: str) -> None:
    module = importlib.import_module(library)
    apply_when_imported(Patch("double", library, double))
    assert module.value == 2


def test_several_patches_of_one_library(library: str) -> None:
    apply_when_imported(Patch("first", library, double))
    apply_when_imported(Patch("second", library, double))
    assert importlib.import_module(library).value == 4


def test_a_failing_patch_says_so_and_stops_nobody(library: str, capfd: pytest.CaptureFixture[str]) -> None:
    def fail(module: ModuleType) -> None:
        raise AttributeError("the library changed")

    apply_when_imported(Patch("of the day", library, fail))
    apply_when_imported(Patch("double", library, double))
    assert importlib.import_module(library).value == 2
    assert "of the day: AttributeError: the library changed" in capfd.readouterr().err


def test_a_library_that_is_not_installed_stays_so() -> None:
    apply_when_imported(Patch("none", "no_such_library_anywhere", double))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_library_anywhere")


def test_every_patch_has_a_name_of_its_own() -> None:
    assert len({patch.name for patch in PATCHES}) == len(PATCHES)

"""What we depend on can't change under us, and none of it came in unseen. `make audit` asks for known vulnerabilities too."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    return importlib.import_module("audit")


def test_every_package_is_pinned_and_hashed(audit: ModuleType) -> None:
    lock = audit.load("uv.lock")
    assert list(audit.loosely_locked(lock)) == []
    assert len(lock["package"]) > 100


def test_a_package_that_could_change_is_named(audit: ModuleType) -> None:
    lock: dict[str, Any] = {
        "package": [
            {
                "name": "a",
                "source": {"git": "https://a"},
                "version": "1",
                "wheels": [{"url": "u", "hash": "sha256:0"}],
            },
            {"name": "b", "source": {"registry": "r"}, "version": "1", "sdist": {"url": "u"}},
            {"name": "c", "source": {"registry": "r"}, "version": "1"},
        ]
    }
    assert [sentence.split()[0] for sentence in audit.loosely_locked(lock)] == ["a", "b:", "c"]


def test_the_lock_was_made_for_these_requirements(audit: ModuleType) -> None:
    lock, project = audit.load("uv.lock"), audit.load("pyproject.toml")
    assert list(audit.not_in_lock(lock, project)) == []
    changed = copy.deepcopy(project)
    changed["project"]["dependencies"].append("leftpad>=1")
    assert list(audit.not_in_lock(lock, changed)) == ["leftpad>=1 is required and not in the lock: run `uv lock`"]


def test_every_licence_is_permissive_or_was_decided_on(audit: ModuleType) -> None:
    assert list(audit.unusual_licences()) == []


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        ("Found no known vulnerabilities", 0, 0),
        ("error: Request failed after 3 retries\n  cause: error sending request\n  cause: dns error", 2, 3),
        ("error: unrecognized subcommand 'audit'", 2, 3),
        ("aiohttp 3.0 has 1 known vulnerability", 1, 1),
    ],
)
def test_a_service_that_cannot_be_asked_is_not_a_clean_answer(
    audit: ModuleType, tmp_path: Path, said: str, code: int, expected: int
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {code}\n")
    uv.chmod(0o755)
    assert audit.vulnerabilities(str(uv)) == expected

"""The committed CRD is generated, and the names in it are the worker's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cleanrl_operator.api import GROUP, PLURAL
from cleanrl_operator.api.crd import build, render

from cleanrl_protocol.algorithms import ALGORITHMS, REQUIREMENT_SETS

PROJECT = Path(__file__).parents[3]


def test_the_committed_file_is_current() -> None:
    assert (PROJECT / "crds" / f"{GROUP}_{PLURAL}.yaml").read_text() == render(), "run `make crds`"


def test_every_field_is_described() -> None:
    version = build()["spec"]["versions"][0]
    missing: list[str] = []

    def walk(schema: dict, path: str) -> None:
        for name, field in schema.get("properties", {}).items():
            if not field.get("description") and path:
                missing.append(f"{path}.{name}")
            walk(field, f"{path}.{name}" if path else name)
        if "items" in schema:
            walk(schema["items"], f"{path}[]")

    for part in ("spec", "status"):
        walk(version["schema"]["openAPIV3Schema"]["properties"][part], part)
    assert missing == []


def test_the_names_are_the_workers_registry() -> None:
    from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY

    assert set(ALGORITHMS) == set(DEFAULT_ALGO_REGISTRY)


def test_the_requirement_sets_are_the_workers() -> None:
    from cleanrl_worker.requirement_sets import SETS

    assert set(REQUIREMENT_SETS) == set(SETS)


@pytest.mark.parametrize(
    ("amount", "taken"),
    [
        *(
            (f"2{unit}", True)
            for unit in ("", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e9")
        ),
        ("0.5Gi", True),
        *((text, False) for text in ("2K", "2ki", "2mi", "2GB", "2gi", "2 Gi", "-2Gi", ".5Gi", "lots", "")),
    ],
)
def test_an_amount_has_the_units_of_kubernetes(amount: str, taken: bool) -> None:
    spec = build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    memory = spec["properties"]["resources"]["properties"]["memory"]
    assert bool(re.fullmatch(memory["pattern"], amount)) is taken

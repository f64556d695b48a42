from __future__ import annotations

from pathlib import Path

import pytest

from cleanrl_worker import requirement_sets
from cleanrl_worker.tools import venv_cache, wheel_cache
from cleanrl_worker.tools.venv_cache import Contents


def test_a_checkout_gives_its_packages_and_its_folder() -> None:
    contents = Contents.of(["atari"])
    assert contents.sets == ("base", "atari")
    assert contents.source == Path(requirement_sets.__file__).resolve().parents[1]
    wanted = {*requirement_sets.core_packages(), *requirement_sets.SETS["base"].packages}
    assert wanted | set(requirement_sets.SETS["atari"].packages) == set(contents.packages)
    assert any(package.startswith("pydantic") for package in contents.packages)


def test_an_installed_distribution_gives_itself_with_its_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venv_cache, "_checkout", lambda: None)
    contents = Contents.of(["dm_control", "jax"])
    [package] = contents.packages
    assert package.startswith("cleanrl-operator[worker,dm-control,jax]==")
    assert contents.source is None


def test_other_sets_other_versions_or_another_python_are_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Contents.of(["atari"])
    assert one.folder_name == Contents.of(["ale"]).folder_name
    assert one.folder_name.startswith("base+atari-")
    assert one.folder_name != Contents.of(["jax"]).folder_name
    assert one.folder_name != Contents(one.sets, (*one.packages[:-1], "other>=1"), one.source).folder_name
    here = one.folder_name
    monkeypatch.setattr(venv_cache, "python_tag", lambda: {**wheel_cache.python_tag(), "python": "3.99"})
    assert one.folder_name != here

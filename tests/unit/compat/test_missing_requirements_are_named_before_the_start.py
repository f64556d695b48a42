from __future__ import annotations

from pathlib import Path

import pytest

from cleanrl_worker.compat import foreign_requirements


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl_utils").mkdir()
    (tmp_path / "cleanrl_utils" / "buffers.py").write_text("import numpy\nimport a_missing_helper\n")
    return tmp_path


def names(path: Path) -> list[str]:
    return [missing.module for missing in foreign_requirements(path)]


def test_missing_modules_with_the_command(checkout: Path) -> None:
    script = checkout / "cleanrl" / "s.py"
    script.write_text("import os, numpy\nfrom a_missing_library.common.buffers import ReplayBuffer\nimport gym\n")
    (missing,) = foreign_requirements(script)
    assert str(missing) == (
        "s.py imports a_missing_library, which is not installed: python -m pip install a_missing_library"
    )


def test_the_package_behind_a_module_name(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    script = checkout / "cleanrl" / "s.py"
    script.write_text("import pybullet_envs\nfrom stable_baselines3.common.buffers import ReplayBuffer\n")
    assert [missing.command for missing in foreign_requirements(script)] == [
        "python -m pip install pybullet",
        "python -m pip install stable-baselines3",
    ]


def test_files_of_the_checkout_are_followed(checkout: Path) -> None:
    script = checkout / "cleanrl" / "s.py"
    script.write_text("from cleanrl_utils.buffers import ReplayBuffer\nfrom cleanrl_utils import buffers\n")
    assert names(script) == ["a_missing_helper"]


def test_conditional_imports_are_the_scripts_business(checkout: Path) -> None:
    script = checkout / "cleanrl" / "s.py"
    script.write_text("try:\n    import missing_one\nexcept ImportError:\n    pass\ndef f():\n    import missing_two\n")
    assert names(script) == []


@pytest.mark.parametrize("source", ["def broken(:\n", "\0", "x = " + "(" * 5000])
def test_a_script_that_cannot_be_parsed_gives_no_requirements(checkout: Path, source: str) -> None:
    script = checkout / "cleanrl" / "s.py"
    script.write_text(source)
    assert names(script) == []


def test_a_script_that_does_not_exist(tmp_path: Path) -> None:
    assert names(tmp_path / "nothing.py") == []


def test_what_answers_for_a_package_that_cannot_be_installed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    script = checkout / "cleanrl" / "s.py"
    script.write_text("import gym\nfrom procgen import ProcgenEnv\n")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name in ("gymnasium", "envpool") else None
    )
    assert foreign_requirements(script) == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "gymnasium" else None)
    (missing,) = foreign_requirements(script)
    assert str(missing) == "s.py imports procgen, which is not installed: python -m pip install envpool"


def test_a_script_in_a_folder_of_its_own_finds_the_checkout(checkout: Path) -> None:
    folder = checkout / "cleanrl" / "s"
    folder.mkdir()
    (folder / "beside.py").write_text("import numpy\n")
    (folder / "s.py").write_text("from beside import thing\nfrom cleanrl_utils import buffers\n")
    found = [missing.module for missing in foreign_requirements(folder / "s.py", checkout)]
    assert found == ["a_missing_helper"]


def test_what_cannot_be_had_is_said_instead_of_a_command(checkout: Path) -> None:
    (checkout / "cleanrl" / "isaacgym").mkdir()
    (checkout / "cleanrl" / "isaacgym" / "notes.toml").write_text("a folder of its name is no module\n")
    script = checkout / "cleanrl" / "s.py"
    script.write_text("import isaacgym\n")
    (missing,) = foreign_requirements(script)
    assert "no package index has it for this Python" in str(missing)
    assert "pip install" not in str(missing)

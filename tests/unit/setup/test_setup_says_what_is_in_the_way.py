"""Bad surroundings get one sentence that names the way out, and leave nothing half-made."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = importlib.import_module("bootstrap")
    for name in ("uv.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((PROJECT / name).read_bytes())
    monkeypatch.setattr(module, "PROJECT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    return module


def test_an_old_python_is_refused_with_the_way_out(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert bootstrap.main() == 1
    answer = capsys.readouterr().err
    assert answer.count("\n") == 1
    assert "needs 3.11 to 3.14" in answer
    assert "make PYTHON=" in answer


def test_a_full_disk_is_refused_before_anything_is_made(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert bootstrap.main() == 1
    assert "free some space" in capsys.readouterr().err
    assert not (tmp_path / ".venv").exists()


def test_an_unchanged_environment_is_left_alone(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".bootstrap-stamp").write_text(bootstrap.environment_digest())
    monkeypatch.setattr(bootstrap, "find_uv", lambda: pytest.fail("nothing had to be installed"))
    bootstrap.sync_environment(force=False)


def test_a_changed_lock_file_makes_the_environment_anew(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".venv").mkdir()
    stamp = tmp_path / ".venv" / ".bootstrap-stamp"
    stamp.write_text(bootstrap.environment_digest())
    (tmp_path / "uv.lock").write_text("changed")
    commands: list[list[str]] = []
    monkeypatch.setattr(bootstrap, "find_uv", lambda: "uv")
    monkeypatch.setattr(bootstrap, "run_step", lambda label, command, **_: commands.append(command))
    bootstrap.sync_environment(force=False)
    assert commands[0][:3] == ["uv", "sync", "--frozen"]
    assert stamp.read_text() == bootstrap.environment_digest()


def test_a_failed_install_is_tried_again_next_time(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".bootstrap-stamp").write_text("old")

    def broken(*_: object, **__: object) -> None:
        raise bootstrap.StepFailed("no network")

    monkeypatch.setattr(bootstrap, "find_uv", lambda: "uv")
    monkeypatch.setattr(bootstrap, "run_step", broken)
    with pytest.raises(bootstrap.StepFailed):
        bootstrap.sync_environment(force=False)
    assert not (tmp_path / ".venv" / ".bootstrap-stamp").exists()


def test_without_root_missing_packages_are_named_once(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "installed_packages", set)
    monkeypatch.setattr(bootstrap, "can_install_packages", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    bootstrap.install_system_packages()
    answer = capsys.readouterr().err
    assert answer.count("\n") == 1
    assert "libqt5gui5" in answer
    assert "not root" in answer


def test_a_mirror_out_of_reach_keeps_nobody_from_the_rest(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise bootstrap.StepFailed("Debian's package lists failed with exit code 100")

    monkeypatch.setattr(bootstrap, "installed_packages", set)
    monkeypatch.setattr(bootstrap, "can_install_packages", lambda: True)
    monkeypatch.setattr(bootstrap, "run_step", broken)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    bootstrap.install_system_packages()
    answer = capsys.readouterr().err
    assert "failed with exit code 100" in answer
    assert "left out, since they could not be installed" in answer


def test_a_library_is_also_known_by_what_stands_in_for_it(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Debian 13 has libqt5core5t64 for libqt5core5a: it would be installed again with every command."""
    told = (
        "installed\tlibqt5core5t64\tlibqt5core5a (= 5.15.15), qtbase-abi\nconfig-files\tjq\t\ninstalled\tprometheus\t\n"
    )
    query = tmp_path / "dpkg-query"
    query.write_text(f"#!/bin/sh\ncat <<'END'\n{told}END\n")
    query.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert {"libqt5core5a", "libqt5core5t64", "prometheus"} <= bootstrap.installed_packages()
    assert "jq" not in bootstrap.installed_packages()


def test_a_home_that_can_not_be_written_is_said_with_the_way_out(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nobody")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, 10**12))
    assert bootstrap.main() == 1
    answer = capsys.readouterr().err
    assert answer.count("\n") == 1
    assert "set XDG_CACHE_HOME to a folder of yours" in answer

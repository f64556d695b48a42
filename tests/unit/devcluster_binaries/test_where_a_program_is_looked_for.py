"""The user's folder, then KUBEBUILDER_ASSETS, then PATH, then the cache, then the download, then a build."""

from __future__ import annotations

import pytest

from devcluster.binaries import BinaryError, ensure


def test_nothing_at_hand_is_built_once_and_then_taken_from_the_cache(workshop):
    first = workshop.ensure()
    assert workshop.ensure() == first
    assert workshop.built == ["tool"]
    assert first.is_relative_to(workshop.root / "cache" / "devcluster" / "tool")
    assert first.parent.name.startswith("v1.4.2-")


def test_each_place_wins_over_the_ones_after_it(workshop, site, monkeypatch):
    built = workshop.ensure()
    workshop.publish(site, b"never asked for")
    assert workshop.ensure() == built
    on_path = workshop.place("path", "v1.4.0")
    assert workshop.ensure() == on_path
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(workshop.root / "assets"))
    assets = workshop.place("assets", "1.4.9")
    assert workshop.ensure() == assets
    monkeypatch.setenv("DEVCLUSTER_BIN_DIR", str(workshop.root / "mine"))
    mine = workshop.place("mine", "v1.4.2")
    assert workshop.ensure() == mine
    assert workshop.built == ["tool"]
    assert site.asked == []


@pytest.mark.parametrize("version", ["v1.3.9", "v2.4.2", "unknown"])
def test_a_copy_of_another_minor_version_is_passed_over_and_named(workshop, version):
    other = workshop.place("path", version)
    assert workshop.ensure() != other
    assert any(str(other) in line and "passed over" in line for line in workshop.said)


def test_a_copy_that_can_not_be_started_is_passed_over(workshop):
    broken = workshop.place("path", "v1.4.2")
    broken.write_text("#!/nowhere/interpreter\n")
    assert workshop.ensure() != broken
    assert workshop.built == ["tool"]


def test_a_folder_without_the_program_is_no_error(workshop, monkeypatch):
    monkeypatch.setenv("DEVCLUSTER_BIN_DIR", str(workshop.root / "nowhere"))
    workshop.ensure()
    assert workshop.built == ["tool"]


def test_an_unknown_program_is_refused_with_the_known_names():
    with pytest.raises(BinaryError, match=r"no program 'kubernetes'; it knows .*kubelet"):
        ensure("kubernetes")


def test_a_word_that_is_no_version_is_refused(workshop):
    with pytest.raises(BinaryError, match=r"'latest' is not a version; write it as in v1\."):
        workshop.ensure(kubernetes_version="latest")


def test_another_version_is_downloaded_but_never_built(workshop, site):
    workshop.use(site)
    with pytest.raises(BinaryError, match=r"tool v9\.9\.9 can't be had: .*404.* only v1\.4\.2 can be built"):
        workshop.ensure(kubernetes_version="v9.9.9")
    assert workshop.built == []


def test_what_is_passed_over_in_the_folder_named_for_us_is_always_told(workshop, monkeypatch):
    monkeypatch.setenv("DEVCLUSTER_BIN_DIR", str(workshop.root / "mine"))
    workshop.place("mine", "v1.3.0")
    workshop.place("path", "v1.3.0")
    said: list[str] = []
    ensure("tool", progress=said.append)
    assert [line for line in said if "passed over" in line] == [
        f"{workshop.root / 'mine' / 'tool'} (DEVCLUSTER_BIN_DIR) is v1.3.0, not v1.4.2: passed over"
    ]

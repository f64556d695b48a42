"""The official download, against a real HTTP server on loopback."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace

import pytest

from devcluster.binaries import BinaryError, catalog
from devcluster.binaries.catalog import Download

CONTENT = b"#!/bin/sh\necho 'official tool version v1.4.2'\n"


def test_a_download_with_the_published_checksum_is_kept(workshop, site):
    workshop.publish(site, CONTENT)
    path = workshop.ensure()
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o111
    assert workshop.built == []
    site.files.clear()
    assert workshop.ensure() == path


def test_a_wrong_checksum_is_told_and_the_program_is_built_instead(workshop, site):
    workshop.publish(site, CONTENT, checksum="0" * 64)
    assert workshop.ensure().read_bytes() != CONTENT
    assert workshop.built == ["tool"]
    assert any("was not used" in line and "building tool instead" in line for line in workshop.said)


def test_a_truncated_download_is_told_and_the_program_is_built_instead(workshop, site):
    workshop.publish(site, CONTENT)
    site.short["/v1.4.2/tool"] = 10
    assert workshop.ensure().read_bytes() != CONTENT
    assert workshop.built == ["tool"]
    assert any("broke off" in line for line in workshop.said)


def test_a_broken_download_of_a_version_that_can_not_be_built_is_one_sentence(workshop, site):
    workshop.publish(site, CONTENT)
    for name in ("tool", "tool.sha256"):
        site.files[f"/v1.5.0/{name}"] = site.files[f"/v1.4.2/{name}"]
    site.short["/v1.5.0/tool"] = 10
    with pytest.raises(
        BinaryError, match=r"tool v1\.5\.0 can't be had: the download of .* broke off.*DEVCLUSTER_BIN_DIR"
    ):
        workshop.ensure(kubernetes_version="v1.5.0")


@pytest.mark.parametrize("text", [b"", b"<html>not found</html>", b"1234", b"0" * 64 + b"  another-file"])
def test_without_a_published_checksum_nothing_is_downloaded(workshop, site, text):
    workshop.publish(site, CONTENT)
    site.files["/v1.4.2/tool.sha256"] = text
    workshop.ensure()
    assert workshop.built == ["tool"]
    assert "/v1.4.2/tool" not in site.asked


def test_a_list_of_checksums_names_the_file(workshop, site):
    workshop.publish(site, CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    site.files["/v1.4.2/tool.sha256"] = f"{'0' * 64}  other\n{digest} *tool\n".encode()
    assert workshop.ensure().read_bytes() == CONTENT


def test_a_program_is_taken_out_of_its_archive(workshop, site):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        entry = tarfile.TarInfo("tool-v1.4.2/tool")
        entry.size = len(CONTENT)
        tar.addfile(entry, io.BytesIO(CONTENT))
    workshop.publish(site, archive.getvalue())
    source = Download(site.url + "/{version}/tool", site.url + "/{version}/tool.sha256", member="tool-{version}/tool")
    catalog.PROGRAMS["tool"] = replace(workshop.program, download=source)
    assert workshop.ensure().read_bytes() == CONTENT
    assert workshop.built == []


def test_an_archive_without_the_program_is_built_instead(workshop, site):
    workshop.publish(site, CONTENT)
    source = Download(site.url + "/{version}/tool", site.url + "/{version}/tool.sha256", member="tool")
    catalog.PROGRAMS["tool"] = replace(workshop.program, download=source)
    workshop.ensure()
    assert workshop.built == ["tool"]


def test_a_site_that_does_not_answer_is_asked_once(workshop, site, monkeypatch):
    closed = Download("http://127.0.0.1:1/{version}/tool", "http://127.0.0.1:1/{version}/tool.sha256")
    catalog.PROGRAMS["tool"] = replace(workshop.program, download=closed)
    calls = []
    from devcluster.binaries import download

    connect = download.socket.create_connection
    monkeypatch.setattr(download.socket, "create_connection", lambda *a: calls.append(a) or connect(*a))
    path = workshop.ensure()
    path.unlink()
    workshop.ensure()
    assert workshop.built == ["tool", "tool"]
    assert len(calls) == 1


def test_downloads_can_be_switched_off(workshop, site, monkeypatch):
    workshop.publish(site, CONTENT)
    monkeypatch.setenv("DEVCLUSTER_DOWNLOADS", "off")
    workshop.ensure()
    assert workshop.built == ["tool"]
    assert site.asked == []

"""A cached program is used only while it is, byte for byte, what was put there."""

from __future__ import annotations

import json
import os

import pytest

from devcluster.binaries import BinaryError, cache, cli_main


def test_a_tampered_program_is_made_again(workshop):
    path = workshop.ensure()
    sound = path.read_bytes()
    before = path.stat()
    changed = sound.replace(b"built", b"evil!")
    path.write_bytes(changed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert workshop.ensure() == path
    assert path.read_bytes() == sound
    assert workshop.built == ["tool", "tool"]
    assert any("checksum differs" in line and "making it again" in line for line in workshop.said)


def test_a_record_edited_to_fit_the_tampered_program_is_noticed_too(workshop):
    path = workshop.ensure()
    path.write_bytes(b"#!/bin/sh\necho evil\n")
    record = path.with_name("record.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "sha256": cache.sha256_of(path)}))
    workshop.ensure()
    assert b"evil" not in path.read_bytes()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"seal": 1}', b"\xff\xfe"])
def test_a_damaged_record_means_making_it_again(workshop, content):
    path = workshop.ensure()
    path.with_name("record.json").write_bytes(content)
    assert workshop.ensure() == path
    assert workshop.built == ["tool", "tool"]


@pytest.mark.parametrize("lost", ["tool", "record.json"])
def test_half_an_entry_is_no_entry(workshop, lost):
    path = workshop.ensure()
    path.with_name(lost).unlink()
    assert workshop.ensure() == path
    assert workshop.built == ["tool", "tool"]


def test_a_program_that_others_may_write_to_is_not_trusted(workshop):
    path = workshop.ensure()
    path.chmod(0o757)
    workshop.ensure()
    assert workshop.built == ["tool", "tool"]
    assert path.stat().st_mode & 0o022 == 0


def test_a_link_in_place_of_the_program_is_not_followed(workshop):
    path = workshop.ensure()
    copy = workshop.root / "elsewhere"
    path.rename(copy)
    path.symlink_to(copy)
    workshop.ensure()
    assert workshop.built == ["tool", "tool"]
    assert not path.is_symlink()


def test_a_changed_go_module_means_building_again(workshop):
    workshop.ensure()
    (workshop.program.folder / "go.sum").write_text("another pin\n")
    workshop.ensure()
    assert workshop.built == ["tool", "tool"]


def test_leftovers_of_killed_work_are_removed(workshop):
    path = workshop.ensure()
    leftovers = [
        path.parent.parent / ".new-killed",
        workshop.root / "cache" / "devcluster" / "work" / "kubernetes-killed",
    ]
    for leftover in leftovers:
        leftover.mkdir(parents=True)
    path.write_bytes(b"tampered")
    workshop.ensure()
    assert not any(leftover.exists() for leftover in leftovers)


def test_too_little_disk_is_one_sentence(workshop):
    with pytest.raises(BinaryError, match=r"building tool needs 9{12} MB of disk under .*, and \d+ MB are free"):
        cache.demand_space(999_999_999_999, "building tool")


def test_a_cache_that_can_not_be_written_is_one_sentence(workshop, monkeypatch):
    blocked = workshop.root / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(BinaryError, match="can't be written"):
        workshop.ensure()


def test_verify_tells_sound_from_changed(workshop, capsys):
    path = workshop.ensure()
    assert cli_main(["--verify"]) == 0
    path.write_bytes(b"tampered")
    assert cli_main(["--verify"]) == 1
    assert "checksum differs" in capsys.readouterr().out

from __future__ import annotations

import gzip
import io
import json
import os
import random
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cleanrl_worker.tools import archive, manifest
from cleanrl_worker.tools.manifest import ArchiveError

MakeRun = Callable[..., Path]
DONE = ("run_started", "run_completed")


@pytest.fixture
def run(make_run: MakeRun) -> Path:
    return make_run(*DONE)


@pytest.fixture
def packed(run: Path, tmp_path: Path) -> Path:
    archive.pack(run, tmp_path / "run.tar.gz")
    return tmp_path / "run.tar.gz"


def contents(folder: Path) -> dict[str, Any]:
    """Everything in a folder, links by their target."""
    return {
        os.fsencode(path.relative_to(folder)).decode("latin-1"): str(path.readlink())
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode, int(path.stat().st_mtime))
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def test_what_comes_out_is_what_went_in(run: Path, packed: Path, tmp_path: Path) -> None:
    final, left_out = archive.extract(packed, tmp_path / "new")
    assert final == tmp_path / "new" / run.name
    expected = contents(run)
    assert left_out == [f"outside -> {expected.pop('outside')}"]
    assert contents(final) == expected
    assert archive.verify(packed, run) == []
    assert [path.name for path in (tmp_path / "new").iterdir()] == [run.name]


def test_the_same_folder_gives_the_same_bytes(run: Path, packed: Path, tmp_path: Path) -> None:
    archive.pack(run, tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == packed.read_bytes()


def test_any_tar_can_unpack_it_and_nothing_behind_a_link_is_in_it(packed: Path, tmp_path: Path) -> None:
    with tarfile.open(packed) as tar:
        names = tar.getnames()
        assert names[0] == "01RUN.manifest.json"
        assert "01RUN/config.json" in names
        assert tar.getmember("01RUN/outside").issym()
        listed = json.load(tar.extractfile("01RUN.manifest.json") or io.BytesIO())
    assert b"do not pack me" not in gzip.decompress(packed.read_bytes())
    assert listed["files"] == sum(entry["kind"] == "file" for entry in listed["entries"])


def test_sockets_and_pipes_are_left_out_and_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(run / "pipe")
    monkeypatch.chdir(run)  # the path of a socket has to be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
    packed = archive.pack(run, tmp_path / "a.tar.gz")
    assert packed.skipped == ("pipe", "sock")
    assert archive.verify(tmp_path / "a.tar.gz", run) == []


def test_every_difference_between_folder_and_archive_is_named(run: Path, packed: Path) -> None:
    (run / "config.json").write_text("{}")
    (run / "new").write_text("new")
    (run / "script.sh").unlink()
    (run / "latest").unlink()
    (run / "latest").symlink_to("videos")
    assert archive.verify(packed, run) == [
        "config.json changed after it was archived",
        "latest changed after it was archived",
        f"new is in {run} and not in the archive",
        f"script.sh is in the archive and not in {run}",
    ]


def test_a_damaged_archive_never_passes_and_never_leaves_anything(packed: Path, tmp_path: Path) -> None:
    whole = packed.read_bytes()
    chance = random.Random(5)
    tampered = tmp_path / "tampered.tar.gz"
    for _ in range(40):
        data = bytearray(whole)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data) - 2048) :]
        else:
            data[chance.randrange(20, len(data) - 2048)] ^= 1 << chance.randrange(8)
        tampered.write_bytes(data)
        assert archive.verify(tampered)
        with pytest.raises(ArchiveError):
            archive.extract(tampered, tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_overwritten(run: Path, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="is there already"):
        archive.pack(run, packed)
    (tmp_path / "new" / run.name).mkdir(parents=True)
    with pytest.raises(ArchiveError, match="is there already"):
        archive.extract(packed, tmp_path / "new")


def test_the_archive_cannot_lie_inside_its_own_folder(run: Path) -> None:
    with pytest.raises(ArchiveError, match="inside the folder"):
        archive.pack(run, run / "self.tar.gz")


def test_a_file_that_changes_meanwhile_stops_the_archive(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = manifest.scan

    def scan_then_change(*arguments: Any) -> Any:
        found = real(*arguments)
        (run / "config.json").write_text((run / "config.json").read_text().replace("ppo", "dqn"))
        return found

    monkeypatch.setattr(archive, "scan", scan_then_change)
    with pytest.raises(ArchiveError, match=r"config\.json changed while it was archived"):
        archive.pack(run, tmp_path / "a.tar.gz")
    assert [path.name for path in tmp_path.iterdir() if "tar.gz" in path.name] == []


def test_a_file_that_only_grows_is_archived_as_it_was(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = manifest.scan

    def scan_then_grow(*arguments: Any) -> Any:
        found = real(*arguments)
        with (run / "events.jsonl").open("a") as log:
            log.write("more\n")
        return found

    before = (run / "events.jsonl").read_bytes()
    monkeypatch.setattr(archive, "scan", scan_then_grow)
    archive.pack(run, tmp_path / "a.tar.gz")
    final, _ = archive.extract(tmp_path / "a.tar.gz", tmp_path / "new")
    assert (final / "events.jsonl").read_bytes() == before


# ---- archives made by an enemy


def forge(target: Path, entries: list[dict[str, Any]], members: list[tarfile.TarInfo], run: Any = "r") -> None:
    """An archive with this manifest and these members, whose files all hold `x`."""
    text = json.dumps({"version": 1, "run": run, "entries": entries}).encode()
    with tarfile.open(target, "w:gz") as tar:
        head = tarfile.TarInfo("r.manifest.json")
        head.size = len(text)
        tar.addfile(head, io.BytesIO(text))
        for member in members:
            if member.isreg():
                member.size = 1
            tar.addfile(member, io.BytesIO(b"x") if member.isreg() else None)


X = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def file_entry(path: Any, **more: Any) -> dict[str, Any]:
    return {"path": path, "kind": "file", "size": 1, "sha256": X, "mode": 0o644, "mtime": 0, **more}


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "path", ["../evil", "a/../../evil", "/tmp/evil", "", ".", "a//b", "a/", "./a", "nul\0", 7, None, ["a"]]
)
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, path: Any) -> None:
    forge(tmp_path / "evil.tar.gz", [file_entry(path)], [member(f"r/{path}".replace("\0", ""))])
    assert archive.verify(tmp_path / "evil.tar.gz")
    with pytest.raises(ArchiveError):
        archive.extract(tmp_path / "evil.tar.gz", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("run", ["..", "a/b", "/abs", "", None, 3])
def test_run_names_that_leave_the_folder_are_refused(tmp_path: Path, run: Any) -> None:
    forge(tmp_path / "evil.tar.gz", [], [], run=run)
    with pytest.raises(ArchiveError):
        archive.extract(tmp_path / "evil.tar.gz", tmp_path / "out")


@pytest.mark.parametrize(
    ("entries", "members"),
    [
        pytest.param([], [member("r/a")], id="a member that the manifest does not list"),
        pytest.param([file_entry("a")], [], id="an entry without a member"),
        pytest.param([file_entry("a")], [member("../a")], id="a member with another name"),
        pytest.param([file_entry("a")], [member("r/a", tarfile.LNKTYPE, "/etc/passwd")], id="a hard link as a file"),
        pytest.param([file_entry("a")], [member("r/a", tarfile.SYMTYPE, "/etc/passwd")], id="a link as a file"),
        pytest.param([file_entry("a")], [member("r/a", tarfile.CHRTYPE)], id="a device as a file"),
        pytest.param(
            [{"path": "a", "kind": "link", "target": "b"}],
            [member("r/a", tarfile.CHRTYPE, "b")],
            id="a device as a link",
        ),
        pytest.param(
            [{"path": "a", "kind": "link", "target": "b"}],
            [member("r/a", tarfile.LNKTYPE, "b")],
            id="a hard link as link",
        ),
        pytest.param([file_entry("a"), file_entry("a")], [member("r/a"), member("r/a")], id="the same path twice"),
        pytest.param([file_entry("a"), file_entry("a/b")], [member("r/a"), member("r/a/b")], id="a file as a folder"),
        pytest.param([file_entry("a", sha256="0" * 64)], [member("r/a")], id="another checksum"),
        pytest.param([file_entry("a", size=2)], [member("r/a")], id="another size"),
        pytest.param([file_entry("a", size=2**60)], [member("r/a")], id="more than any disk holds"),
        pytest.param([file_entry("a", kind="device")], [member("r/a")], id="an unknown kind"),
        pytest.param([file_entry("a", mode="rwx")], [member("r/a")], id="a mode that is no number"),
        pytest.param([file_entry("a", surprise=1)], [member("r/a")], id="an unknown key"),
        pytest.param(["a"], [member("r/a")], id="an entry that is no object"),
    ],
)
def test_archives_that_contradict_themselves_are_refused(
    tmp_path: Path, entries: list[Any], members: list[tarfile.TarInfo]
) -> None:
    forge(tmp_path / "evil.tar.gz", entries, members)
    with pytest.raises(ArchiveError):
        archive.extract(tmp_path / "evil.tar.gz", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    link = {"path": "a", "kind": "link", "target": str(tmp_path / "victim")}
    forge(
        tmp_path / "evil.tar.gz",
        [link, file_entry("a/b")],
        [member("r/a", tarfile.SYMTYPE, link["target"]), member("r/a/b")],
    )
    with pytest.raises(ArchiveError, match="which is no folder"):
        archive.extract(tmp_path / "evil.tar.gz", tmp_path / "out")
    assert list((tmp_path / "victim").iterdir()) == []


def test_links_cannot_leave_by_way_of_each_other(tmp_path: Path) -> None:
    forge(
        tmp_path / "evil.tar.gz",
        [{"path": "p/q/up", "kind": "link", "target": "../.."}, {"path": "out", "kind": "link", "target": "p/q/up/.."}],
        [member("r/p/q/up", tarfile.SYMTYPE, "../.."), member("r/out", tarfile.SYMTYPE, "p/q/up/..")],
    )
    final, left_out = archive.extract(tmp_path / "evil.tar.gz", tmp_path / "out")
    assert left_out == ["out -> p/q/up/.."]
    assert [path.name for path in final.iterdir()] == ["p"]


@pytest.mark.parametrize(("target", "kept"), [("../b", True), ("../../b", False), ("/b", False), ("b/../c", False)])
def test_links_are_restored_when_they_stay_inside(tmp_path: Path, target: str, kept: bool) -> None:
    forge(
        tmp_path / "a.tar.gz",
        [{"path": "d/l", "kind": "link", "target": target}],
        [member("r/d/l", tarfile.SYMTYPE, target)],
    )
    final, left_out = archive.extract(tmp_path / "a.tar.gz", tmp_path / "out")
    assert (final / "d" / "l").is_symlink() is kept
    assert bool(left_out) is not kept


def test_setuid_bits_do_not_come_out(tmp_path: Path) -> None:
    forge(tmp_path / "a.tar.gz", [file_entry("a", mode=0o4755)], [member("r/a")])
    final, _ = archive.extract(tmp_path / "a.tar.gz", tmp_path / "out")
    assert (final / "a").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "data",
    [b"", b"not gzip", gzip.compress(b"not tar"), gzip.compress(b"\0" * 10240)],
    ids=["empty", "not gzip", "not tar", "empty tar"],
)
def test_other_files_are_not_archives(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(data)
    assert len(archive.verify(tmp_path / "a.tar.gz")) == 1

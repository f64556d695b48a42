"""What may be asked of a cluster is checked before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from devcluster.cgroups import part_of_machine
from devcluster.errors import ClusterError
from devcluster.layout import Layout
from devcluster.spec import Options, Spec


@pytest.mark.parametrize("name", ["a", "demo", "pytest-api-123", "x" * 40])
def test_good_names_become_folders(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Layout.of(name).root == tmp_path / "devcluster" / name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a b", "x" * 41, "a\n"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="can't be a cluster's name"):
        Layout.of(name)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"gpus": 1}, "--node together with --gpus"),
        ({"netpol": True}, "--node together with --netpol"),
        ({"kwok_nodes": -1}, "can't be negative"),
        ({"port": 70000}, "is no port"),
    ],
)
def test_options_that_make_no_sense_are_refused(asked: dict[str, int], sentence: str) -> None:
    with pytest.raises(ClusterError, match=sentence):
        Options(**asked)  # type: ignore[arg-type]  # the values fit their fields


def test_a_saved_cluster_reads_back_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    layout = Layout.of("kept")
    layout.make()
    spec = Spec("kept", Options(node=True, gpus=2), {"api": 6443}, 7, {"etcd": "/x/etcd"}, ready=True)
    spec.save(layout)
    assert Spec.load(layout) == spec
    assert spec.address == "10.200.7.2"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "kept"}', '{"options": 3, "ports": {}, "network": null}'])
def test_a_broken_record_is_no_record(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    layout = Layout.of("kept")
    layout.make()
    layout.spec_file.write_text(text)
    assert Spec.load(layout) is None


def test_pods_weigh_as_much_as_processes_of_whoever_starts_the_node() -> None:
    assert part_of_machine(nice=0, cores=4) == 4
    assert part_of_machine(nice=-5, cores=2) == pytest.approx(2 * 3.05, rel=0.01)
    assert part_of_machine(nice=19, cores=1) < 0.02

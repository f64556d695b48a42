"""The images are valid archives, and the files lent to containers are mounted once each."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from pathlib import Path

import pytest

from devcluster import images


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    (folder / "pause").write_bytes(b"\x7fELF stand-in")
    images.write_archive(folder / "images.tar", folder / "pause")
    return folder / "images.tar"


def test_every_blob_is_what_its_name_says(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        blobs = [entry for entry in tar.getmembers() if entry.name.startswith("blobs/sha256/")]
        assert len(blobs) >= 8
        for entry in blobs:
            content = tar.extractfile(entry)
            assert content is not None
            assert hashlib.sha256(content.read()).hexdigest() == Path(entry.name).name


def test_the_index_names_all_images_and_none_runs_as_root(archive: Path) -> None:
    with tarfile.open(archive) as tar:

        def read(name: str) -> dict[str, object]:
            file = tar.extractfile(name)
            assert file is not None
            content: dict[str, object] = json.load(file)
            return content

        def blob(reference: dict[str, str]) -> dict[str, object]:
            return read(f"blobs/sha256/{reference['digest'].removeprefix('sha256:')}")

        names = set()
        for entry in read("index.json")["manifests"]:  # type: ignore[attr-defined]  # plain JSON
            names.add(entry["annotations"]["io.containerd.image.name"])
            configuration = blob(blob(entry)["config"])  # type: ignore[arg-type]  # plain JSON
            assert configuration["config"]["User"] == "65532:65532"  # type: ignore[index]  # plain JSON
    assert names == {images.PAUSE, images.BASE, images.WORKER, images.OPERATOR}


def test_lent_files_are_the_system_python_and_the_project_each_once() -> None:
    lent = images.lent_paths()
    assert Path("/usr") in lent
    for needed in (Path(sys.prefix), Path(sys.base_prefix), images.project_root()):
        assert any(needed.is_relative_to(path) for path in lent), needed
    for path in lent:
        assert not any(path.is_relative_to(other) for other in lent if other != path), path
    assert Path("/") not in lent


def test_lent_files_are_read_only() -> None:
    spec = images.runtime_spec({"mounts": [{"destination": "/proc"}]})
    assert spec["mounts"][0] == {"destination": "/proc"}
    for mount in spec["mounts"][1:]:
        assert "ro" in mount["options"]

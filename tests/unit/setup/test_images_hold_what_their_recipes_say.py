"""The images' recipes agree with the project, and an archive is read as a registry would see it."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import bootstrap
import images
import pytest

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An image of two layers; the second one replaces a file of the first."""
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as image:
        for name, content in (("one", b"old"), ("two", b"new" * 1000)):
            add(image, f"{name}.tar", layer({"usr/share/thing": content}))
        add(image, "manifest.json", json.dumps([{"Layers": ["one.tar", "two.tar"]}]).encode())
    return path


def layer(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tree:
        for name, content in files.items():
            add(tree, name, content)
    return stream.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def test_the_newest_layer_has_the_last_word(archive: Path) -> None:
    assert images.file_in(archive, "usr/share/thing") == b"new" * 1000
    with pytest.raises(images.Refused, match="holds no usr/share/other"):
        images.file_in(archive, "usr/share/other")


def test_sizes_are_those_of_the_layers(archive: Path) -> None:
    assert images.unpacked(archive) == 2 * 10240, "a small tar is padded to one record"
    assert 0 < images.compressed(archive) < 10240


@pytest.mark.parametrize("recipe", images.RECIPES.values())
def test_a_recipe_pins_what_it_uses_and_copies_what_is_there(recipe: str) -> None:
    text = (PROJECT / recipe).read_text()
    assert re.findall(r"uv==(\S+)", text) == [bootstrap.UV_VERSION]
    syncs = [line for line in text.splitlines() if "uv sync" in line]
    assert syncs
    assert all("--frozen" in line for line in syncs), "nothing is resolved while an image is built"
    for source in (word for line in re.findall(r"^COPY ([^-].*) \S+$", text, re.MULTILINE) for word in line.split()):
        assert (PROJECT / source).exists(), source
    assert re.search(r"^USER \d+:\d+$", text, re.MULTILINE)
    assert f"ARG VERSION={images.version()}" in text


def test_a_requirement_set_that_is_none_is_refused_by_its_name() -> None:
    assert images.requirement_sets("atari minigrid") == ["atari", "minigrid"]
    with pytest.raises(images.Refused, match=r"'atary'.*atari"):
        images.requirement_sets("atari atary")

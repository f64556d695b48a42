"""TensorBoard's static files are sent as they lie in its archive, and are what TensorBoard itself would send."""

from __future__ import annotations

import gzip
import io
import zipfile

import pytest
from tensorboard import assets  # type: ignore[attr-defined] # has no types

from cleanrl_worker import board


def archive(**members: tuple[int, bytes]) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, (method, content) in members.items():
            made.writestr(name, content, compress_type=method)
    return file


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 1000, b"y" * 0xFFFF, b"z" * (2 * 0xFFFF + 1)])
def test_a_member_becomes_a_gzip_file_with_the_same_content(method: int, content: bytes) -> None:
    file = archive(before=(method, b"something else"), it=(method, content), after=(method, b"and more"))
    with zipfile.ZipFile(file) as opened:
        assert gzip.decompress(board.gzipped(file, opened.getinfo("it"), opened)) == content


def test_every_page_is_the_one_that_tensorboard_has() -> None:
    with assets.get_default_assets_zip_provider()() as file, zipfile.ZipFile(file) as opened:
        assert len(opened.infolist()) > 50
        for info in opened.infolist():
            assert gzip.decompress(board.gzipped(file, info, opened)) == opened.read(info), info.filename

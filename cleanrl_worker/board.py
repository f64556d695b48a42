"""TensorBoard, ready sooner: `python -m cleanrl_worker.board`, with TensorBoard's own arguments.

A third of the CPU time of its start goes into static files: 15 MB are unpacked from its archive, packed again, and kept to be
sent. They are deflated there already, which is what browsers are sent, so here they are taken as they are.
"""

from __future__ import annotations

import functools
import struct
import zipfile
from typing import IO, Any

from tensorboard.main import run_main
from tensorboard.plugins.core.core_plugin import CorePlugin

_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LOCAL_HEADER = struct.Struct("<26xHH")
"""What precedes a file in an archive: of interest are the lengths of its name and of what else is said."""
_NEEDED = ("_assets_zip_provider", "_serve_asset", "_serve_index")


def pages(core: Any, usual: Any = CorePlugin.get_resource_apps) -> dict[str, Any]:
    """What answers to each path of a static file, of TensorBoard's plug-in for them."""
    provider, serve, serve_index = (getattr(core, name, None) for name in _NEEDED)
    if not (provider and serve and serve_index):  # another edition: in its own way
        return dict(usual(core))
    apps: dict[str, Any] = {}
    with provider() as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.filename == "index.html":
                apps["/"] = apps["/index.html"] = functools.partial(serve_index, archive.read(info))
            else:
                packed = gzipped(file, info, archive)
                apps[f"/{info.filename}"] = functools.partial(serve, info.filename, packed)
    return apps


def gzipped(file: IO[bytes], info: zipfile.ZipInfo, archive: zipfile.ZipFile) -> bytes:
    """A member of the archive in gzip's format."""
    if info.compress_type != zipfile.ZIP_DEFLATED:
        body = stored(archive.read(info))
    else:
        file.seek(info.header_offset)
        name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(name + extra, 1)
        body = file.read(info.compress_size)
    return _GZIP_HEADER + body + struct.pack("<II", info.CRC, info.file_size & 0xFFFFFFFF)


def stored(content: bytes) -> bytes:
    """Content as a deflate stream that saves nothing, and no time either."""
    parts = [content[at : at + 0xFFFF] for at in range(0, len(content), 0xFFFF)] or [b""]
    last = len(parts) - 1
    heads = (struct.pack("<BHH", number == last, len(part), len(part) ^ 0xFFFF) for number, part in enumerate(parts))
    return b"".join(head + part for head, part in zip(heads, parts, strict=True))


def main() -> None:
    """TensorBoard's own program; it takes no other class for its pages, only another method."""
    CorePlugin.get_resource_apps = pages
    run_main()


if __name__ == "__main__":
    main()

"""Container images that need no build: nearly empty, because the node lends its own files to every container.

containerd adds read-only mounts of this machine's /usr, Python and project to each container (`runtime_spec`), at their
own paths, so an image holds little more than the names of its user and its entry point. Pods whose image brings its
own files ask for the runtime class `image-only`, which adds nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from pathlib import Path
from typing import Any

PAUSE = "localhost/devcluster-pause:dev"
BASE = "localhost/devcluster-base:dev"
WORKER = "localhost/cleanrl-worker:dev"
OPERATOR = "localhost/cleanrl-operator:dev"
NON_ROOT = 65532

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/pki/tls",
    "/etc/ssl",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def project_root() -> Path:
    """The folder that holds this project's source; in an installation from a wheel, where the packages are."""
    return Path(__file__).resolve().parent.parent


def lent_paths() -> list[Path]:
    """What containers see of this machine. Links stay links, so both ends of each are there."""
    wanted = [Path(path) for path in _SYSTEM if Path(path).is_dir() and not Path(path).is_symlink()]
    wanted += [Path(path) for path in _SETTINGS if Path(path).exists()]
    wanted += _python_folders()
    wanted.append(project_root())
    kept: list[Path] = []
    for path in sorted(dict.fromkeys(wanted), key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def runtime_spec(default: dict[str, Any]) -> dict[str, Any]:
    """containerd's default container, with this machine's files lent to it."""
    lent = [
        {"destination": str(path), "type": "bind", "source": str(path), "options": ["rbind", "ro", "nosuid", "nodev"]}
        for path in lent_paths()
    ]
    return {**default, "mounts": [*default.get("mounts", []), *lent]}


def write_archive(path: Path, pause: Path) -> None:
    """All images in one OCI archive, to be imported at once."""
    virtual = Path(sys.prefix) / "bin"
    search = f"PATH={virtual}:/usr/local/bin:/usr/bin:/bin"
    blobs: dict[str, bytes] = {}
    root = _layer_of_links()
    images = [
        _image(blobs, PAUSE, _layer_of_program(pause), entrypoint=["/pause"], env=[]),
        _image(blobs, BASE, root, entrypoint=[], env=[search]),
        _image(blobs, WORKER, root, entrypoint=[str(virtual / "cleanrl-worker")], env=[search]),
        _image(blobs, OPERATOR, root, entrypoint=[str(virtual / "cleanrl-operator")], env=[search]),
    ]
    index = {"schemaVersion": 2, "manifests": images}
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(archive, "index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            _add(archive, f"blobs/sha256/{digest}", content)


def _python_folders() -> list[Path]:
    """The virtual environment, the Python behind it, and every stop of the chain of links between the two."""
    folders = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_prefix).resolve()]
    step = Path(sys.executable)
    while step.is_symlink():
        step = Path(os.path.normpath(step.parent / step.readlink()))
        folders.append(step.parent.parent)
    return [folder for folder in folders if len(folder.parts) > 2 or folder == Path("/usr")]


def _layer_of_links() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as layer:
        for folder, mode in (("etc", 0o755), ("tmp", 0o1777), ("var", 0o755), ("var/tmp", 0o1777), ("run", 0o755)):
            _add_folder(layer, folder, mode)
        for path in map(Path, _SYSTEM):
            if path.is_symlink():
                link = tarfile.TarInfo(path.name)
                link.type = tarfile.SYMTYPE
                link.linkname = str(path.readlink())
                layer.addfile(link)
        passwd = f"root:x:0:0::/:/bin/sh\nnonroot:x:{NON_ROOT}:{NON_ROOT}::/tmp:/bin/sh\n"
        _add(layer, "etc/passwd", passwd.encode())
        _add(layer, "etc/group", f"root:x:0:\nnonroot:x:{NON_ROOT}:\n".encode())
        _add(layer, "etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    return stream.getvalue()


def _layer_of_program(program: Path) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as layer:
        _add(layer, "pause", program.read_bytes(), mode=0o755)
    return stream.getvalue()


def _image(
    blobs: dict[str, bytes], name: str, layer: bytes, *, entrypoint: list[str], env: list[str]
) -> dict[str, Any]:
    """Put an image's blobs among the others and return its entry in the index."""

    def keep(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    machine = platform.machine()
    configuration = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"User": f"{NON_ROOT}:{NON_ROOT}", "Env": env, "Entrypoint": entrypoint, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": keep(json.dumps(configuration).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [keep(layer, "application/vnd.oci.image.layer.v1.tar")],
    }
    entry = keep(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    return {**entry, "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}}


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    archive.addfile(entry, io.BytesIO(content))


def _add_folder(archive: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE
    entry.mode = mode
    archive.addfile(entry)

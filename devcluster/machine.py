"""What nodes change on the machine outside their namespaces: a few kernel settings, a few empty folders.

The first node writes down how it found them; the last one puts them back. Debian packages stay installed.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from devcluster.layout import Layout, known_clusters, read_json, state_root, write_atomically
from devcluster.namespaces import PRIVATE
from devcluster.spec import Spec, choosing

SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""The kubelet sets these on every machine it starts on."""
_KERNEL = Path("/proc/sys")


def remember() -> None:
    """Write down how things are, unless a node that is still there did so before; make the folders."""
    with choosing():
        if read_json(_file()) is None:
            settings = {name: (_KERNEL / name).read_text().strip() for name in SETTINGS if (_KERNEL / name).exists()}
            missing = [str(path) for target in PRIVATE for path in _missing(Path(target))]
            write_atomically(_file(), json.dumps({"settings": settings, "folders": missing}))
        for target in PRIVATE:
            Path(target).mkdir(parents=True, exist_ok=True)


def put_back(leaving: str) -> None:
    """Undo it all when no other node is left."""
    with choosing():
        found = read_json(_file())
        others = [spec for name in known_clusters() if name != leaving and (spec := Spec.load(Layout.of(name)))]
        if found is None or any(spec.node for spec in others):
            return
        for name, value in found["settings"].items():
            with contextlib.suppress(OSError):  # a machine may forbid writing what nobody changed
                if (_KERNEL / name).read_text().strip() != value:
                    (_KERNEL / name).write_text(value)
        for folder in sorted(found["folders"], key=len, reverse=True):
            with contextlib.suppress(OSError):  # somebody else uses it now
                Path(folder).rmdir()
        _file().unlink()


def _missing(path: Path) -> list[Path]:
    return [each for each in (path, *path.parents) if not each.exists()]


def _file() -> Path:
    return state_root() / ".machine.json"

"""A container's mounts, parents first: what containerd calls in the place of runc, and what that does.

The files that the node lends come before a pod's volumes in a container's list of mounts. A volume over one of their parents,
such as an emptyDir at /tmp when the project lies in /tmp/project, would hide them.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any


def write_runc(path: Path) -> None:
    """A program that puts the mounts of a container in order and then is the runc on containerd's PATH."""
    python = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).resolve())])
    path.write_text(f'#!/bin/sh -e\ncase " $* " in *" create "*) {python} "$@" ;; esac\nexec runc "$@"\n')
    path.chmod(0o755)


def parents_first(mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same mounts, none before one of a folder above it; else as they were."""
    return sorted(mounts, key=lambda mount: len(Path(mount["destination"]).parts))


def main(arguments: list[str]) -> None:
    """Rewrite the bundle that `runc create --bundle FOLDER` names."""
    bundle = Path(arguments[arguments.index("--bundle") + 1] if "--bundle" in arguments else ".")
    file = bundle / "config.json"
    config = json.loads(file.read_text())
    config["mounts"] = parents_first(config.get("mounts") or [])
    file.write_text(json.dumps(config))


if __name__ == "__main__":
    main(sys.argv[1:])

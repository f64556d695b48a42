"""Where peers are installed: each in a folder of its own in the cache, by the project's uv."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))
from bootstrap import cache_folder, find_uv  # dev/ is no package


def peer_folder(name: str) -> Path:
    """The folder of a peer's packages for this Python."""
    return cache_folder() / f"peers-{name}-py{sys.version_info[0]}.{sys.version_info[1]}"


def uv(*arguments: str) -> None:
    """Run uv, quietly; what fails is on standard error."""
    subprocess.run([find_uv(), *arguments, "--quiet"], check=True)

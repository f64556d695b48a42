"""How the Pythons that a foreign script starts get the patches too.

`cleanrl_worker/site/` holds nothing but sitecustomize.py. With that folder first on PYTHONPATH every Python below runs
it at start; it does something only where `CLEANRL_SITE` is 1, and it hands on to the sitecustomize that it hides. The
folder is its own so that none of our modules can be taken for one of the script's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SITE_FLAG = "CLEANRL_SITE"


def site_directory() -> Path:
    return Path(__file__).resolve().parent.parent / "site"


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a foreign script: a copy with the folder first on PYTHONPATH and the flag set."""
    rest = environ.get("PYTHONPATH", "")
    path = str(site_directory()) + (os.pathsep + rest if rest else "")
    return {**environ, "PYTHONPATH": path, SITE_FLAG: "1"}

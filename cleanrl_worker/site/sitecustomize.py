"""Runs at the start of every Python below a foreign script: installs our patches, then the sitecustomize it hides."""

import importlib.machinery
import importlib.util
import os
import sys


def _install() -> None:
    if os.environ.get("CLEANRL_SITE") != "1":
        return
    try:
        from cleanrl_worker import compat

        compat.install(foreign=True)
    except Exception as error:  # noqa: BLE001 - a Python that starts matters more than the patches, but it must be said
        print(f"[cleanrl-worker] patches not installed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _run_hidden_sitecustomize() -> None:
    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - pathlib would cost every Python its import
    others = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_install()
_run_hidden_sitecustomize()

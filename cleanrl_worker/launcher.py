"""Starts one algorithm in this process: `python -m cleanrl_worker.launcher <target> [flags]`.

The target is a module with a `main`, `module:function`, a module that is a script, or `cleanrl.<name>`: a script of the
upstream checkout in `CLEANRL_UPSTREAM_DIR`, run as it is. It runs once; its exit code is this process's exit code, and
an exception ends with its traceback and 1.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from cleanrl_worker import link, processes, registry

SUPERVISOR_PID = "CLEANRL_SUPERVISOR_PID"
USAGE = "usage: python -m cleanrl_worker.launcher <module> [flags]"


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        raise SystemExit(USAGE)
    supervisor = os.environ.pop(SUPERVISOR_PID, "")
    if supervisor.isdigit():
        processes.die_with(int(supervisor))
    if sys.path and sys.path[0] in ("", str(Path.cwd())):  # `-m` put the run's folder first: nothing there is code
        del sys.path[0]
    target, *flags = arguments
    sys.argv = [target, *flags]
    if target.startswith("cleanrl."):
        return _run_upstream(target.removeprefix("cleanrl."))
    return _run_module(target)


def _run_module(target: str) -> int:
    module_name, _, function = target.partition(":")
    if not function and not _defines_main(module_name):
        runpy.run_module(module_name, run_name="__main__", alter_sys=True)
        return 0
    entry: Any = importlib.import_module(module_name)
    for part in (function or "main").split("."):
        entry = getattr(entry, part)
    return _exit_code(entry())


def _defines_main(module_name: str) -> bool:
    """Whether the module's source binds `main` at top level. Read, not imported: importing a script would run it."""
    spec = importlib.util.find_spec(module_name)
    if spec is None:
        raise SystemExit(f"there is no module {module_name}")
    source = getattr(spec.loader, "get_source", lambda _: None)(module_name)
    if source is None:  # compiled: it can only be imported
        return True
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name="main"):
                return True
            case ast.ImportFrom(names=names) if any((alias.asname or alias.name) == "main" for alias in names):
                return True
            case ast.Assign(targets=targets) if any(isinstance(t, ast.Name) and t.id == "main" for t in targets):
                return True
    return False


def _run_upstream(script: str) -> int:
    checkout = Path(os.environ.get(registry.UPSTREAM_DIR, ""))
    path = registry.upstream_script(checkout, script)
    if not script.isidentifier() or not path.is_file():
        raise SystemExit(f"there is no script {path}; {registry.UPSTREAM_DIR} must name an upstream checkout")
    os.environ.pop(link.ENV_FD, None)
    from cleanrl_worker import compat  # only foreign scripts pay for it

    compat.install()
    sys.path[:0] = [str(checkout), str(path.parent)]
    sys.argv[0] = str(path)
    runpy.run_path(str(path), run_name="__main__")
    return 0


def _exit_code(result: object) -> int:
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())

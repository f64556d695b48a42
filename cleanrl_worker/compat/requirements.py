"""What a foreign script needs that is not installed, found without running or importing it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "distutils": "setuptools",
    "huggingface_hub": "huggingface-hub",
    "multi_agent_ale_py": "multi-agent-ale-py",
    "pybullet_envs": "pybullet",
    "shimmy": "shimmy[dm-control]",
    "stable_baselines3": "stable-baselines3",
    "yaml": "pyyaml",
}
_NO_PACKAGE = dict.fromkeys(
    ("isaacgym", "isaacgymenvs"),
    "no package index has it for this Python (NVIDIA's Isaac Gym is a download for Python 3.6 to 3.8 with a GPU)",
)
_ANSWERED = {"gym": "gymnasium", "procgen": "envpool"}
"""Imports that a patch of ours answers, where the other module is installed."""


@dataclass(frozen=True)
class MissingModule:
    module: str
    script: str
    """The file that imports it."""
    command: str
    """What installs it, or why nothing does."""

    def __str__(self) -> str:
        return f"{self.script} imports {self.module}, which is not installed: {self.command}"


def foreign_requirements(script: str | Path, checkout: str | Path | None = None) -> list[MissingModule]:
    """The modules that the script cannot do without and this Python does not have, one entry each, by name.

    Imports that run unconditionally count, in the script and in the files of its checkout that it imports; one inside
    `try`, `if` or a function is the script's own business. A script that cannot be read or parsed has no requirements
    here: running it gives the better error. The checkout is the folder above the script's unless it is named.
    """
    path = Path(script).resolve()
    roots = [path.parent, Path(checkout).resolve() if checkout else path.parent.parent]
    missing: dict[str, MissingModule] = {}
    for source in local_sources(path, roots):
        for module in _imports(source):
            if _local_file(module, roots) is not None:
                continue
            top = module.partition(".")[0]
            here = _local_file(top, roots) or any(next((root / top).rglob("*.py"), None) for root in roots)
            if top not in missing and not here and not _available(top):
                needed = _ANSWERED.get(top, top)  # no longer to be had, or not for this Python
                distribution = _DISTRIBUTIONS.get(needed, needed)
                remedy = _NO_PACKAGE.get(top, f"python -m pip install {distribution}")
                missing[top] = MissingModule(top, source.name, remedy)
    return sorted(missing.values(), key=lambda item: item.module)


def local_sources(script: Path, roots: list[Path]) -> Iterator[Path]:
    """The script, and the files below the roots that it imports, directly or by others."""
    pending, seen = [script], set[Path]()
    while pending:
        source = pending.pop()
        if source not in seen:
            seen.add(source)
            yield source
            pending += [local for module in _imports(source) if (local := _local_file(module, roots)) is not None]


def _imports(source: Path) -> Iterator[str]:
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # a submodule, where it is one


def _local_file(module: str, roots: list[Path]) -> Path | None:
    relative = Path(*module.split("."))
    for root in roots:
        for candidate in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _available(top: str) -> bool:
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    try:
        return any(importlib.util.find_spec(name) is not None for name in (top, _ANSWERED.get(top, top)))
    except (ImportError, ValueError):
        return False

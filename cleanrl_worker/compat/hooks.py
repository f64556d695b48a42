"""Run a function right after a module was imported, without importing it.

A finder at the front of `sys.meta_path` lets the ordinary finders do their work and adds one step behind the loader's
`exec_module`. The loader itself stays what it is, so that reloading, resources and tracebacks are untouched.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Patch:
    name: str
    """What a person reads when it fails."""
    module: str
    apply: Callable[[ModuleType], None]


def say(message: str) -> None:
    """One line on stderr, which the supervisor keeps in the run's log. Foreign scripts configure no logging."""
    print(f"[cleanrl-worker] {message}", file=sys.stderr, flush=True)


def apply_when_imported(patch: Patch) -> None:
    """Apply now when the module is there already, else when it is imported."""
    module = sys.modules.get(patch.module)
    if module is not None:
        _apply(patch, module)
        return
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.patches.setdefault(patch.module, []).append(patch)


def _apply(patch: Patch, module: ModuleType) -> None:
    try:
        patch.apply(module)
    except Exception as error:  # noqa: BLE001 - a library changed under us: say so, and let the script run without it
        say(f"patch failed, the script goes on without it: {patch.name}: {type(error).__name__}: {error}")


class _PostImportFinder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.patches: dict[str, list[Patch]] = {}
        self._looking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.patches or getattr(self._looking, "now", False):
            return None
        self._looking.now = True
        try:
            spec = self._ordinary_spec(fullname, path, target)
        finally:
            self._looking.now = False
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            self._extend(spec.loader, fullname)
        return spec

    def _ordinary_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
                if spec is not None:
                    return spec
        return None

    def _extend(self, loader: importlib.abc.Loader, fullname: str) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for patch in self.patches.pop(fullname, ()):  # not before: who only asks for a spec imports nothing
                _apply(patch, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


_FINDER = _PostImportFinder()

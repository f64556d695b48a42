"""How a foreign script spells its flags, read from its text: `argparse` takes no other spelling, `tyro` takes any.

    p.add_argument("--n_envs", type=int)                  -> --n_envs=8, never --n-envs=8
    p.add_argument("--save-model", action="store_true")   -> --save-model, never --save-model=True

Nothing is run or imported. The files of its checkout that the script imports count with it. What is not found is spelt as
upstream does.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_MODULES = frozenset({"argparse", "tyro"})
_BARE = frozenset({"store_true", "store_false", "store_const", "append_const", "count"})
_BOTH_WAYS = "BooleanOptionalAction"


@dataclass(frozen=True)
class Option:
    """One `add_argument`."""

    spelling: str
    action: str = "store"

    def switch(self, on: bool) -> list[str]:
        """The words that turn it on or off. One that takes no value can only be left out."""
        if self.action in _BARE:
            return [self.spelling] if on else []
        if self.action == _BOTH_WAYS:
            return [self.spelling if on else f"--no-{self.spelling.removeprefix('--')}"]
        return [f"{self.spelling}={on}"]


def read(script: Path, checkout: Path) -> tuple[Mapping[str, Option] | None, bool]:
    """The options that the script tells argparse, by name with underscores, and whether tyro reads its flags.

    There are no options, not even an empty map of them, where it does not read its flags with argparse. A script that imports
    tyro as well uses argparse for something else. One that imports neither leaves it to another file.
    """
    from cleanrl_worker.compat.requirements import local_sources  # only foreign scripts pay for it

    own, *others = [_parsed(source) for source in local_sources(script, [script.parent, checkout])]
    said = _imported(own) or {module for tree in others for module in _imported(tree)}
    if said != {"argparse"}:
        return None, "tyro" in said
    options: dict[str, Option] = {}
    for tree in (own, *others):
        _collect(tree, options)
    return options, False


def _parsed(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # running it gives the better error
        return ast.Module([], [])


def _collect(tree: ast.Module, options: dict[str, Option]) -> None:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        action = next((_word(keyword.value) for keyword in node.keywords if keyword.arg == "action"), "store")
        for spelling in map(_word, node.args):
            if spelling.startswith("--"):
                options.setdefault(spelling.removeprefix("--").replace("-", "_"), Option(spelling, action))


def _imported(tree: ast.Module) -> set[str]:
    """Which of the two the script imports."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found & _MODULES


def _word(node: ast.expr) -> str:
    """A text, or the last part of a name such as `argparse.BooleanOptionalAction`."""
    match node:
        case ast.Constant(value=str(text)) | ast.Attribute(attr=text) | ast.Name(id=text):
            return text
    return ""

"""From an algorithm's name to what is started for it.

- a name of `DEFAULT_ALGO_REGISTRY` (`ppo`): one of this package's own algorithms;
- `plugin.<name>`: a module that another distribution registers under the entry point group `cleanrl_worker.algorithms`;
- `cleanrl.<name>`: the unmodified script `cleanrl/<name>.py` (or `cleanrl/<name>/<name>.py`) of an upstream checkout, named by
  `CLEANRL_UPSTREAM_DIR` or `extras.upstream_dir`.

Nothing is imported to resolve a name.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from cleanrl_protocol.algorithms import ALGORITHMS
from cleanrl_worker import script_options
from cleanrl_worker.plainfile import exists, is_file
from cleanrl_worker.script_options import Option

PLUGIN_GROUP = "cleanrl_worker.algorithms"
UPSTREAM_DIR = "CLEANRL_UPSTREAM_DIR"

DEFAULT_ALGO_REGISTRY: Mapping[str, str] = MappingProxyType(
    {name: f"cleanrl_worker.algorithms.{name}" for name in ALGORITHMS}
)
"""Name -> module of every algorithm of this package."""

_SCRIPT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLUGIN_NAME = re.compile(r"plugin\.[A-Za-z0-9_][A-Za-z0-9_.\-]*")


class UnknownAlgorithmError(ValueError):
    """A name that nothing can be started for. The message says what there is, or what is missing."""


@dataclass(frozen=True)
class Algorithm:
    """What the launcher starts.

    `target` is what it is told: a module, `module:function`, or `cleanrl.<script>`. `schema_name` is the entry of
    `schemas.json` that describes the flags; None when nobody knows them.
    """

    name: str
    kind: Literal["own", "plugin", "upstream"]
    target: str
    schema_name: str | None = None
    upstream_dir: Path | None = None
    options: Mapping[str, Option] | None = None
    """What it reads with argparse, which takes no other spelling; None for scripts that use something else."""
    tyro: bool = False
    """Whether it is a foreign script that reads its flags with tyro."""

    @property
    def foreign(self) -> bool:
        """True for a script that knows nothing of this package and never speaks to its supervisor."""
        return self.kind == "upstream"


def parse(name: str) -> Algorithm:
    """What a name means, whether or not it is installed here. Raises UnknownAlgorithmError with the closest names."""
    if _PLUGIN_NAME.fullmatch(name):
        return Algorithm(name, "plugin", target="")
    if name.startswith("cleanrl."):
        script = name.removeprefix("cleanrl.")
        if not _SCRIPT_NAME.fullmatch(script):
            raise UnknownAlgorithmError(f"{name!r} is not a script of an upstream checkout: write cleanrl.<name>")
        return Algorithm(name, "upstream", name, schema_name=script if script in DEFAULT_ALGO_REGISTRY else None)
    module = DEFAULT_ALGO_REGISTRY.get(name)
    if module is None:
        raise UnknownAlgorithmError(f"Algorithm {name!r} is not registered{_suggest(name, _known_names())}")
    return Algorithm(name, "own", module, schema_name=name)


def resolve(name: str, upstream_dir: str | None = None) -> Algorithm:
    """The algorithm of this name, ready to start. Raises UnknownAlgorithmError that says what is missing."""
    algorithm = parse(name)
    if algorithm.kind == "plugin":
        return replace(algorithm, target=_plugin_target(name))
    if algorithm.kind == "upstream":
        checkout = _checkout(name, upstream_dir)
        options, tyro = script_options.read(upstream_script(checkout, name), checkout)
        return replace(algorithm, upstream_dir=checkout, options=options, tyro=tyro)
    if importlib.util.find_spec(algorithm.target) is None:
        raise UnknownAlgorithmError(
            f"Algorithm {name!r} is registered, but this installation has no module {algorithm.target}; "
            "install a version of cleanrl-operator that brings it"
        )
    return algorithm


@cache
def plugins() -> dict[str, str]:
    """`plugin.<name>` -> entry point value, of every installed distribution. Read once: it is a look at all of them."""
    return {f"plugin.{point.name}": point.value for point in importlib.metadata.entry_points(group=PLUGIN_GROUP)}


def _plugin_target(name: str) -> str:
    installed = plugins()
    if name not in installed:
        known = ", ".join(sorted(installed)) or "none"
        raise UnknownAlgorithmError(
            f"No installed distribution registers {name!r} under the entry point group {PLUGIN_GROUP!r} "
            f"(registered: {known}){_suggest(name, installed)}"
        )
    target = installed[name].partition("[")[0].strip()
    module = target.partition(":")[0]
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a parent package is missing
        found = False
    if not found:
        raise UnknownAlgorithmError(
            f"{name!r} is registered as {target!r}, but the module {module!r} is not installed; "
            "install the plug-in's distribution again"
        )
    return target


def _checkout(name: str, folder: str | None) -> Path:
    if not folder:
        raise UnknownAlgorithmError(
            f"{name!r} runs from an upstream CleanRL checkout: name its folder in {UPSTREAM_DIR} or extras.upstream_dir"
        )
    checkout = Path(folder).absolute()
    if not exists(checkout / "cleanrl"):
        raise UnknownAlgorithmError(
            f"There is no CleanRL checkout at {checkout}: name the folder that holds cleanrl/ in {UPSTREAM_DIR} or "
            "extras.upstream_dir"
        )
    script = upstream_script(checkout, name)
    if not is_file(script):
        there = sorted(f"cleanrl.{path.stem}" for path in (checkout / "cleanrl").glob("*.py"))
        raise UnknownAlgorithmError(f"There is no cleanrl/{script.name} in {checkout}{_suggest(name, there)}")
    return checkout


def upstream_script(checkout: Path, name: str) -> Path:
    """Where the checkout has `cleanrl.<name>`: scripts with files of their own stand in a folder of their name."""
    plain = name.removeprefix("cleanrl.")
    script, in_folder = (checkout / "cleanrl" / path for path in (f"{plain}.py", f"{plain}/{plain}.py"))
    return in_folder if is_file(in_folder) and not is_file(script) else script


def _known_names() -> list[str]:
    return [*DEFAULT_ALGO_REGISTRY, *plugins()]


def _suggest(name: str, known: Iterable[str]) -> str:
    """Names that look alike; else those of the family that was meant, as `sac` for `sac_continuous_action`."""
    there, lower = list(known), name.lower()
    close = difflib.get_close_matches(lower, there, n=3) or [each for each in there if each.startswith(f"{lower}_")][:3]
    return f"; did you mean {' or '.join(close)}?" if close else ""

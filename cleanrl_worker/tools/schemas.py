"""`schemas.json`: the flags of every algorithm, read from its `Args` without importing it.

    python -m cleanrl_worker.tools.schemas           # write schemas.json
    python -m cleanrl_worker.tools.schemas --check   # exit 1 when it no longer fits the algorithms

The worker checks flags, the dry run and forms against that file, so none of them waits for torch. A default that can't
be worked out from the source is an error here rather than a guess there.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from cleanrl_worker import requirement_sets

PACKAGE = Path(__file__).resolve().parents[1]
SCHEMA_FILE = PACKAGE / "schemas.json"
COMMAND = "python -m cleanrl_worker.tools.schemas"

_FILLED_AT_RUNTIME = frozenset(
    {
        "aux_batch_rollouts",
        "batch_size",
        "local_batch_size",
        "local_minibatch_size",
        "minibatch_size",
        "num_envs",
        "num_iterations",
        "num_phases",
        "world_size",
    }
)
"""Fields that some algorithms compute from others. They declare them with the default 0; where the default is a real
number (`batch_size` of dqn) the field is a flag like any other."""


class SchemaError(ValueError):
    """An `Args` that can't be described. The message names file, line and field."""


@cache
def load_schemas() -> dict[str, Any]:
    """The contents of `schemas.json`, read once. Shared by all callers: do not change it."""
    try:
        schemas: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SchemaError(f"{SCHEMA_FILE} is missing; write it with: {COMMAND}") from None
    except ValueError as error:
        raise SchemaError(f"{SCHEMA_FILE} is not JSON ({error}); write it again with: {COMMAND}") from None
    return schemas


def generate(package: Path = PACKAGE) -> dict[str, Any]:
    """Describe every algorithm in `<package>/algorithms/`. Files whose name begins with `_` are not algorithms."""
    sources = _Sources(package)
    algorithms = {}
    for path in sorted((package / "algorithms").glob("[!_]*.py")):
        algorithms[path.stem] = _describe(sources.module(path), f"{package.name}.algorithms.{path.stem}")
    return {"algorithms": algorithms, "generated_by": COMMAND, "schema_version": 1}


def render(schemas: dict[str, Any]) -> str:
    return json.dumps(schemas, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def drift(package: Path = PACKAGE) -> list[str]:
    """One line for each algorithm whose entry in `schemas.json` no longer fits its source; empty when all fit."""
    path = package / SCHEMA_FILE.name
    try:
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"algorithms": {}}
    except ValueError as error:
        return [f"{path.name} is not JSON: {error}"]
    fresh = generate(package)
    before, after = stored.get("algorithms", {}), fresh["algorithms"]
    lines = [f"{name}: has no entry" for name in sorted(after.keys() - before.keys())]
    lines += [f"{name}: has an entry and no source" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            lines.append(f"{name}: {_difference(before[name], after[name])}")
    if not lines and stored != fresh:
        lines.append("the header differs")
    return lines


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    old, new = ({item["name"]: item for item in entry["fields"]} for entry in (before, after))
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if changed:
        return f"fields differ: {', '.join(changed)}"
    keys = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
    return f"differs in {', '.join(keys)}"


# ---- reading the source ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Field:
    name: str
    type: str
    default: Any
    help: str
    optional: bool
    choices: tuple[Any, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        entry = {
            "name": self.name,
            "type": self.type,
            "default": self.default,
            "help": self.help,
            "optional": self.optional,
            "runtime_only": self.name in _FILLED_AT_RUNTIME and self.default == 0,
        }
        return entry | ({"choices": list(self.choices)} if self.choices else {})


@dataclass
class _Module:
    """A parsed file: what its top level defines and imports."""

    path: Path
    sources: _Sources
    tree: ast.Module
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name -> (module, name in it); the second is empty for a plain `import`."""
    constants: dict[str, ast.expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.tree.body:
            match node:
                case ast.ClassDef():
                    self.classes[node.name] = node
                case ast.ImportFrom(module=module, names=names, level=level):
                    origin = self.sources.absolute(self.path, module or "", level)
                    self.imports.update({alias.asname or alias.name: (origin, alias.name) for alias in names})
                case ast.Import(names=names):
                    self.imports.update({alias.asname or alias.name: (alias.name, "") for alias in names})
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.constants[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self.constants[name] = value

    def fail(self, node: ast.AST, problem: str) -> SchemaError:
        return SchemaError(f"{self.path}:{getattr(node, 'lineno', 1)}: {problem}")


class _Sources:
    """The package's files, parsed when they are first needed."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self._modules: dict[Path, _Module] = {}

    def module(self, path: Path) -> _Module:
        if path not in self._modules:
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            self._modules[path] = _Module(path, self, tree)
        return self._modules[path]

    def absolute(self, importer: Path, module: str, level: int) -> str:
        """The full name of what `importer` calls `module` with this many leading dots."""
        if level == 0:
            return module
        here = importer.parent.relative_to(self.package.parent).parts
        return ".".join([*here[: len(here) - level + 1], *([module] if module else [])])

    def find(self, name: str) -> _Module | None:
        """The module of this full name when it is one of the package's own."""
        base = self.package.parent.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_relative_to(self.package) and path.is_file():
                return self.module(path)
        return None


def _describe(module: _Module, name: str) -> dict[str, Any]:
    if "Args" not in module.classes and "Args" not in module.imports:
        raise module.fail(module.tree, "an algorithm needs a dataclass called Args")
    fields = _fields_of(module, ast.Name("Args"), algorithm=module.path.stem)
    defaults = {item.name: item.default for item in fields.values()}
    env_id = defaults.get("env_id")
    docstring = ast.get_docstring(module.tree) or ""
    return {
        "module": name,
        "summary": docstring.strip().partition("\n")[0],
        "env_id": env_id,
        "total_timesteps": defaults.get("total_timesteps"),
        "action_spaces": _action_spaces(module),
        "requirements": requirement_sets.for_run(module.path.stem, env_id or ""),
        "fields": [item.as_dict() for item in fields.values()],
    }


_SPACE_CHECKS = {"require_continuous_actions": "continuous", "require_discrete_actions": "discrete"}


def _action_spaces(module: _Module) -> list[str] | None:
    """The kinds of actions that the algorithm takes; None when its source does not say.

    It says so with a constant `ACTION_SPACES`, else by the check that it imports, else by the algorithm that it extends.
    """
    constant = module.constants.get("ACTION_SPACES")
    if constant is not None:
        return list(_value(module, constant, module.path.stem))
    spaces = {_SPACE_CHECKS[imported] for _, imported in module.imports.values() if imported in _SPACE_CHECKS}
    if spaces:
        return sorted(spaces)
    for origin, imported in module.imports.values():
        extended = module.sources.find(f"{origin}.{imported}") or module.sources.find(origin)
        if extended is not None and extended.path.parent == module.path.parent and extended is not module:
            return _action_spaces(extended)
    return None


def _fields_of(module: _Module, reference: ast.expr, algorithm: str) -> dict[str, _Field]:
    """The fields of the dataclass that `reference` names in `module`: bases first, overrides in their old place."""
    owner, node = _find_class(module, reference)
    fields: dict[str, _Field] = {}
    for base in reversed(node.bases):  # dataclasses collect fields in reverse order of the method resolution order
        fields.update(_fields_of(owner, base, algorithm))
    body = node.body
    for index, item in enumerate(body):
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)) or _is_class_variable(item):
            continue
        following = body[index + 1] if index + 1 < len(body) else None
        described = _field(owner, item, item.target.id, _docstring(following), algorithm)
        inherited = fields.get(described.name)
        if inherited is not None and not described.help:
            described = replace(described, help=inherited.help)
        fields[described.name] = described
    return fields


def _find_class(module: _Module, reference: ast.expr) -> tuple[_Module, ast.ClassDef]:
    match reference:
        case ast.Name(id=name) if name in module.classes:
            return module, module.classes[name]
        case ast.Name(id=name) if name in module.imports:
            origin, imported = module.imports[name]
        case ast.Attribute(value=ast.Name(id=name), attr=imported) if name in module.imports:
            package, submodule = module.imports[name]
            origin = f"{package}.{submodule}" if submodule else package
        case _:
            raise module.fail(reference, f"can't tell which class {ast.unparse(reference)} is")
    source = module.sources.find(origin)
    if source is None:
        raise module.fail(reference, f"{ast.unparse(reference)} comes from {origin}, outside of the package")
    return _find_class(source, ast.Name(imported))


def _field(module: _Module, item: ast.AnnAssign, name: str, help_text: str, algorithm: str) -> _Field:
    kind, optional, choices = _type(module, item.annotation)
    if item.value is None:
        raise module.fail(item, f"field {name} has no default; give it one, so that the algorithm starts without flags")
    default = _value(module, item.value, algorithm)
    if kind == "float" and type(default) is int:
        default = float(default)
    return _Field(name, kind, default, help_text, optional or default is None, choices)


def _docstring(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def _is_class_variable(item: ast.AnnAssign) -> bool:
    return ast.unparse(item.annotation).removeprefix("typing.").startswith("ClassVar")


def _type(module: _Module, node: ast.expr) -> tuple[str, bool, tuple[Any, ...]]:
    """(type name, may be None, allowed values) of an annotation."""
    match node:
        case ast.Constant(value=str(text)):
            return _type(module, ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
            kind, _, choices = _type(module, left)
            return kind, True, choices
        case ast.BinOp(left=ast.Constant(value=None), op=ast.BitOr(), right=right):
            kind, _, choices = _type(module, right)
            return kind, True, choices
        case ast.Subscript(value=outer, slice=inner):
            return _subscript_type(module, ast.unparse(outer).rpartition(".")[2], inner)
    name = ast.unparse(node).rpartition(".")[2]
    if name in {"bool", "int", "float", "str"}:
        return name, False, ()
    if name == "Path":
        return "str", False, ()
    if name in module.constants:  # an alias such as `Network = Literal["separate", "shared"]`
        return _type(module, module.constants[name])
    if name in module.imports:
        origin, imported = module.imports[name]
        source = module.sources.find(origin)
        if source is not None and imported in source.constants:
            return _type(source, source.constants[imported])
    raise module.fail(node, f"no flag can have the type {ast.unparse(node)}")


def _subscript_type(module: _Module, outer: str, inner: ast.expr) -> tuple[str, bool, tuple[Any, ...]]:
    first = inner.elts[0] if isinstance(inner, ast.Tuple) else inner
    if outer == "Optional":
        kind, _, choices = _type(module, inner)
        return kind, True, choices
    if outer in {"Annotated", "Suppress", "Fixed", "Positional"}:
        return _type(module, first)
    if outer in {"list", "List", "tuple", "Tuple", "Sequence"}:
        return f"list[{_type(module, first)[0]}]", False, ()
    if outer == "Literal":
        values = ast.literal_eval(inner)
        choices = values if isinstance(values, tuple) else (values,)
        named = tuple(choice for choice in choices if choice is not None)
        return type(named[0]).__name__, None in choices, named
    raise module.fail(inner, f"no flag can have the type {outer}[{ast.unparse(inner)}]")


def _value(module: _Module, node: ast.expr, algorithm: str) -> Any:
    """What the expression of a default stands for: literals, arithmetic, constants of the package, `field(...)`."""
    match node:
        case ast.BinOp(left=left, op=operator, right=right):
            a, b = _value(module, left, algorithm), _value(module, right, algorithm)
            calculated = _calculate(operator, a, b)
            if calculated is not None:
                return calculated
        case ast.Name(id=name) if name in module.constants:
            return _value(module, module.constants[name], algorithm)
        case ast.Name(id=name) if name in module.imports:
            origin, imported = module.imports[name]
            source = module.sources.find(origin)
            if source is not None and imported in source.constants:
                return _value(source, source.constants[imported], algorithm)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            return _called_value(module, node, ast.unparse(function), arguments, keywords, algorithm)
    if "__file__" in ast.unparse(node):  # the file's own name without `.py`, in whatever way it is spelled
        return algorithm
    try:
        return _plain(ast.literal_eval(node))
    except ValueError:
        raise module.fail(node, f"can't work out the default {ast.unparse(node)}") from None


def _called_value(
    module: _Module,
    node: ast.Call,
    function: str,
    arguments: list[ast.expr],
    keywords: list[ast.keyword],
    algorithm: str,
) -> Any:
    given = {keyword.arg: keyword.value for keyword in keywords}
    if function.rpartition(".")[2] == "field":
        if "default" in given:
            return _value(module, given["default"], algorithm)
        match given.get("default_factory"):
            case ast.Lambda(body=body):
                return _value(module, body, algorithm)
            case ast.Name(id="list" | "tuple"):
                return []
    if function in {"int", "float"} and len(arguments) == 1:
        number = _value(module, arguments[0], algorithm)
        return int(number) if function == "int" else float(number)
    if "__file__" in ast.unparse(node):
        return algorithm
    raise module.fail(node, f"can't work out the default {ast.unparse(node)}")


def _calculate(operator: ast.operator, a: Any, b: Any) -> Any:
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return None
    match operator:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div():
            return a / b
        case ast.FloorDiv():
            return a // b
        case ast.Pow():
            return a**b
    return None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | set | frozenset) else value


# ---- command line ------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None, package: Path = PACKAGE) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write schemas.json from the algorithms' Args.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when schemas.json is out of date")
    options = parser.parse_args(argv)
    try:
        if options.check:
            lines = drift(package)
            for line in lines:
                print(line, file=sys.stderr)
            if lines:
                print(f"{SCHEMA_FILE.name} is out of date; write it again with: {COMMAND}", file=sys.stderr)
            return 1 if lines else 0
        schemas = generate(package)
    except (SchemaError, SyntaxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    target = package / SCHEMA_FILE.name
    target.write_text(render(schemas), encoding="utf-8")
    print(f"{target}: {len(schemas['algorithms'])} algorithms")
    return 0


if __name__ == "__main__":
    sys.exit(main())

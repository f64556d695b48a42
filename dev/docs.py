"""`make docs`: the reference pages, from the models. `--check` fails when a page is not what it would write.

docs/reference/cleanrlrun.md       every field of the resource, out of crds/
docs/reference/algorithms/*.md     every algorithm's flags, out of cleanrl_worker/schemas.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parent.parent
CRD = PROJECT / "crds" / "mosaic.dev_cleanrlruns.yaml"
SCHEMAS = PROJECT / "cleanrl_worker" / "schemas.json"
REFERENCE = PROJECT / "docs" / "reference"

FAMILIES = {
    "base": "gymnasium's classic control and toy text",
    "atari": "Atari (`BreakoutNoFrameskip-v4`, `ALE/Breakout-v5`)",
    "procgen": "Procgen (`starpilot` and the other 15)",
    "mujoco": "MuJoCo (`Hopper-v4`, `HalfCheetah-v5`)",
    "envpool": "envpool",
    "jax": "JAX on the CPU or a GPU",
    "pettingzoo": "PettingZoo's two-player Atari",
    "minigrid": "MiniGrid and BabyAI",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is out of date")
    arguments = parser.parse_args()
    pages = dict(all_pages())
    folder = REFERENCE / "algorithms"
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    left = [path for path in folder.glob("*.md") if path not in pages]
    if arguments.check:
        for path in (*stale, *left):
            print(f"{path.relative_to(PROJECT)} is out of date: run `make docs`.", file=sys.stderr)
        return 1 if stale or left else 0
    folder.mkdir(parents=True, exist_ok=True)
    for path in left:
        path.unlink()
    for path in stale:
        path.write_text(pages[path])
    print(f"{len(stale)} of {len(pages)} pages written.")
    return 0


def all_pages() -> Iterator[tuple[Path, str]]:
    """Every generated page with its text."""
    yield REFERENCE / "cleanrlrun.md", resource_page(yaml.safe_load(CRD.read_text()))
    algorithms = json.loads(SCHEMAS.read_text())["algorithms"]
    for name, schema in sorted(algorithms.items()):
        yield REFERENCE / "algorithms" / f"{name}.md", algorithm_page(name, schema)
    yield REFERENCE / "algorithms" / "README.md", algorithms_index(algorithms)


# ---------------------------------------------------------------- the resource


def resource_page(crd: dict[str, Any]) -> str:
    version = crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    lines = [
        "# CleanRLRun",
        "",
        (
            f"`{crd['spec']['group']}/{version['name']}`, kind `{crd['spec']['names']['kind']}`, short name "
            f"`{crd['spec']['names']['shortNames'][0]}`. `kubectl explain cleanrlrun.spec` shows the same texts."
        ),
    ]
    for part in ("spec", "status"):
        lines += ["", f"## {part}", "", "| field | type | default | meaning |", "|---|---|---|---|"]
        lines += [row for path, field in walk(schema[part], part) for row in field_row(path, field)]
        rules = [(path, rule) for path, field in walk(schema[part], part, own=True) for rule in rules_of(field)]
        if rules:
            lines += ["", f"What is refused in `{part}` when it is applied, beyond types and bounds:", ""]
            lines += [f"- `{path}`: {cell(rule['message'])}" for path, rule in rules if "message" in rule]
    return "\n".join(lines) + "\n"


def walk(schema: dict[str, Any], path: str, *, own: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below (and with `own` also the schema itself) with its path, in the order of the file."""
    if own:
        yield path, schema
    for name, field in schema.get("properties", {}).items():
        inner = f"{path}.{name}"
        if not own:
            yield inner, field
        yield from walk(field, inner, own=own)
        if field.get("type") == "array":
            yield from walk(field["items"], f"{inner}[]", own=own)


def rules_of(field: dict[str, Any]) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = field.get("x-kubernetes-validations", [])
    return rules


def field_row(path: str, field: dict[str, Any]) -> Iterator[str]:
    shown = f"`{path.partition('.')[2]}`"
    default = field.get("default")
    given = "" if default is None or isinstance(default, dict | list) else f"`{json.dumps(default)}`"
    yield f"| {shown} | {type_of(field)} | {given} | {cell(field.get('description', ''))} |"


def type_of(field: dict[str, Any]) -> str:
    if len(field.get("enum", [])) > 12:
        return "one of the [algorithms](algorithms/README.md)"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {type_of(field['items'])}"
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None or high is not None:
        bounds = [f"at least {low:,}" if low is not None else "", f"at most {high:,}" if high is not None else ""]
        return f"{kind}, {', '.join(bound for bound in bounds if bound)}"
    return str(kind)


def cell(text: str) -> str:
    """Text that fits into a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


# ---------------------------------------------------------------- algorithms


def algorithm_page(name: str, schema: dict[str, Any]) -> str:
    lines = [f"# {name}", "", schema["summary"], ""]
    lines += [
        f"- default environment: `{schema['env_id']}`",
        f"- suggested timesteps: {schema['total_timesteps']:,}",
        f"- actions: {', '.join(schema['action_spaces']) or 'any'}",
        (
            f"- requirement sets: {', '.join(f'`{each}`' for each in schema['requirements'])} "
            f"({'; '.join(FAMILIES[each] for each in schema['requirements'] if each in FAMILIES)})"
        ),
        "",
        "Flags are given as `algoParams` of a run, with dashes or underscores, as `extras.algo_params` of a worker's",
        f"configuration, or on the command line of `python -m cleanrl_worker.algorithms.{name}`.",
        "",
        "```yaml",
        f"spec: {{algo: {name}, envId: {schema['env_id']}, totalTimesteps: {schema['total_timesteps']}}}",
        "```",
        "",
        "| flag | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for field in schema["fields"]:
        if field["runtime_only"]:
            continue
        flag = field["name"].replace("_", "-")
        default = "" if field["default"] is None else f"`{field['default']}`"
        lines.append(f"| `--{flag}` | {cell(field['type'])} | {default} | {cell(field['help'])} |")
    computed = [field["name"].replace("_", "-") for field in schema["fields"] if field["runtime_only"]]
    if computed:
        lines += ["", f"Computed at run time: {', '.join(f'`--{flag}`' for flag in computed)}."]
    return "\n".join(lines) + "\n"


def algorithms_index(algorithms: dict[str, Any]) -> str:
    lines = [
        "# Algorithms",
        "",
        (
            "Names, flags, defaults and scalar tags are those of CleanRL; the code is our own. "
            "[Coverage](../../coverage.md) says which were launched where, and how fast."
        ),
        "",
        "| algorithm | environment | steps | actions | requirement sets |",
        "|---|---|---|---|---|",
    ]
    for name, schema in sorted(algorithms.items()):
        lines.append(
            f"| [{name}]({name}.md) | `{schema['env_id']}` | {schema['total_timesteps']:,} | "
            f"{', '.join(schema['action_spaces'])} | {', '.join(schema['requirements'])} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

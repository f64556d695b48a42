"""The CRD, generated from the models: `python -m cleanrl_operator.api.crd` writes it, `--check` fails on drift.

Kubernetes wants a structural schema: no references, no unions with null, a type everywhere. pydantic's JSON schema is
turned into one by inlining, and the CEL rules of each model are put beside the fields they guard. Immutability is
generated here too, from the list of what may change.
"""

from __future__ import annotations

import argparse
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from cleanrl_operator.api import GROUP, KIND, PLURAL, VERSION
from cleanrl_operator.api.model import Model, Rule
from cleanrl_operator.api.spec import MUTABLE, MUTABLE_WHILE_SUSPENDED, FreeForm, Spec
from cleanrl_operator.api.status import Status

COLUMNS = (
    ("State", "string", ".status.fsmState", "Where the run is in its life.", 0),
    ("Outcome", "string", ".status.outcome", "How it ended.", 0),
    ("Algo", "string", ".spec.algo", "The algorithm.", 0),
    ("Env", "string", ".spec.envId", "The environment.", 0),
    ("Progress", "string", ".status.progress.percent", "Percent of what was asked for.", 0),
    ("Return", "string", ".status.progress.episodicReturn", "Smoothed return of finished episodes.", 0),
    ("SPS", "string", ".status.progress.stepsPerSecond", "Steps per second.", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Since when it exists.", 0),
    ("Reason", "string", ".status.reason", "Why it is in this state.", 1),
    ("Attempt", "integer", ".status.attempt", "How many pods it has had.", 1),
    ("Node", "string", ".status.nodeName", "Where it runs.", 1),
)

NAME_RULE = Rule(
    "size(self.metadata.name) <= 63",
    "the name becomes a label: keep it to 63 characters",
)

KEPT = {
    "type",
    "description",
    "enum",
    "pattern",
    "format",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "nullable",
}


def build() -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    spec = structural(Spec)
    fix(spec, Spec)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "cleanrl-operator"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["crr"],
                "categories": ["all", "cleanrl"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        # The API server drops a priority of 0, and GitOps tools would see a difference for ever.
                        {"name": name, "type": kind, "jsonPath": path, "description": text}
                        | ({"priority": priority} if priority else {})
                        for name, kind, path, text, priority in COLUMNS
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "A reinforcement-learning run: one policy, trained or judged in a pod.",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": structural(Status),
                            },
                            "x-kubernetes-validations": [NAME_RULE.schema()],
                        }
                    },
                }
            ],
        },
    }


def structural(model: type[Model]) -> dict[str, Any]:
    """A model as a structural schema, rules included."""
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    if model.__doc__:
        schema["description"] = " ".join(model.__doc__.split())
    raw = model.model_json_schema(by_alias=True, mode="validation")
    definitions = raw.get("$defs", {})
    required = []
    for name, field in model.model_fields.items():
        alias = field.alias or name
        nested = _nested_model(field.annotation)
        if nested is not None:
            entry = structural(nested)
        else:
            entry = _plain(raw["properties"][alias], definitions)
            item = _nested_model(_item(field.annotation))
            if item is not None:
                entry["items"] = structural(item)
        if field.description:
            entry["description"] = field.description
        extra = field.json_schema_extra
        if isinstance(extra, dict):
            entry.update(extra)
            if entry.get("x-kubernetes-int-or-string"):
                entry.pop("type", None)
        if field.is_required():
            required.append(alias)
        elif model is not Status and not issubclass(model, FreeForm) and (default := _default(field)) is not None:
            entry["default"] = default
        schema["properties"][alias] = entry
    if required:
        schema["required"] = required
    if model.rules:
        schema["x-kubernetes-validations"] = [rule.schema() for rule in model.rules]
    if not schema["properties"]:
        del schema["properties"]
    return schema | model.schema_extra


def fix(schema: dict[str, Any], model: type[Model]) -> None:
    """Add the rules of the immutable fields.

    Rules lie on the field where they can, because that costs the API server least: a rule on the object looks up each field
    that it names among all of them, and rules are judged at every write, of a status too. A rule on an optional field is
    skipped when the field comes or goes, which is the object's to notice.
    """
    on_object = schema["x-kubernetes-validations"]
    for name, field in model.model_fields.items():
        alias = field.alias or name
        if alias in MUTABLE:
            continue
        entry = schema["properties"][alias]
        always = field.is_required() or "default" in entry
        if alias in MUTABLE_WHILE_SUSPENDED:
            message = f"{alias} can change only while the run is suspended: set suspend to true first"
            there, same = f"has(self.{alias}) == has(oldSelf.{alias})", f"self.{alias} == oldSelf.{alias}"
            unchanged = same if always else f"({there} && (!has(self.{alias}) || {same}))"
            on_object.append(Rule(f"oldSelf.suspend || {unchanged}", message, f".{alias}").schema())
            continue
        message = f"{alias} is fixed when the run is created: create another run to change it"
        nested = _nested_model(field.annotation)
        if nested is not None and issubclass(nested, FreeForm):  # has no type in CEL: rules can't lie on it
            on_object.append(Rule(f"dyn(self).{alias} == dyn(oldSelf).{alias}", message, f".{alias}").schema())
            continue
        entry.setdefault("x-kubernetes-validations", []).append(Rule("self == oldSelf", message).schema())
        if not always:
            on_object.append(Rule(f"has(self.{alias}) == has(oldSelf.{alias})", message, f".{alias}").schema())


def _plain(raw: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A field that is no model of ours: references inlined, null unions dropped, unknown keywords left out."""
    if "$ref" in raw:
        raw = {**definitions[raw["$ref"].rsplit("/", 1)[-1]], **{k: v for k, v in raw.items() if k != "$ref"}}
    if "allOf" in raw and len(raw["allOf"]) == 1:
        raw = {**raw, **_plain(raw["allOf"][0], definitions)}
    if "anyOf" in raw:
        variants = [variant for variant in raw["anyOf"] if variant.get("type") != "null"]
        raw = {**raw, **_plain(variants[0], definitions)}
    schema = {key: value for key, value in raw.items() if key in KEPT and value is not None}
    schema.pop("default", None)
    schema.pop("description", None)
    if schema.get("format") == "date-time":
        schema["type"] = "string"
    if schema.get("type") == "integer":
        schema["format"] = "int64"
    if schema.get("type") == "number":
        schema["format"] = "double"
    if schema.get("type") == "array" and "items" in raw:
        schema["items"] = _plain(raw["items"], definitions)
    if schema.get("type") == "object" and isinstance(raw.get("additionalProperties"), dict):
        schema["additionalProperties"] = _plain(raw["additionalProperties"], definitions)
    return schema


def _nested_model(annotation: Any) -> type[Model] | None:
    """The model in `X` or `X | None`, if it is one of ours."""
    candidates = getattr(annotation, "__args__", (annotation,)) if _is_union(annotation) else (annotation,)
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, Model):
            return candidate
    return None


def _item(annotation: Any) -> Any:
    """The element type in `list[X]` or `list[X] | None`."""
    candidates = getattr(annotation, "__args__", ()) if _is_union(annotation) else (annotation,)
    for candidate in candidates:
        if getattr(candidate, "__origin__", None) is list:
            return candidate.__args__[0]
    return None


def _is_union(annotation: Any) -> bool:
    return type(annotation).__name__ in {"UnionType", "_UnionGenericAlias", "Union"}


def _default(field: Any) -> Any:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Model):
        return value.dump()
    return value.value if isinstance(value, Enum) else value


def render() -> str:
    """The CRD as YAML, the same bytes for the same models."""
    return "# Generated by `make crds` from operator/cleanrl_operator/api: do not edit.\n" + yaml.safe_dump(
        build(), sort_keys=False, width=120, allow_unicode=True
    )


def main() -> int:
    """Write the CRD, or check that the committed one is current."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the file differs from the models")
    parser.add_argument("--output", type=Path, default=Path("crds") / f"{GROUP}_{PLURAL}.yaml")
    arguments = parser.parse_args()
    text = render()
    if arguments.check:
        current = arguments.output.read_text() if arguments.output.exists() else ""
        if current != text:
            sys.stderr.write(f"{arguments.output} differs from the models: run `make crds`\n")
            return 1
        return 0
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What spec and status models share: camelCase names, frozen values, and CEL rules that lie beside the fields they guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Quantity = Annotated[
    str, Field(min_length=1, max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?([KEPTGM]i|[EPTGMkm]|[eE][0-9]+)?$")
]
"""An amount as Kubernetes writes it. There is no K and no ki: a kilobyte is k, a kibibyte Ki."""
ANYTHING: dict[str, Any] = {"additionalProperties": {"x-kubernetes-preserve-unknown-fields": True}}
"""The schema of a map of any content. Not `preserve-unknown-fields` on the map itself: where two of those are compared, a key
that is in one and another that is in the other are passed over, and a map whose keys were renamed counts as unchanged."""


@dataclass(frozen=True)
class Rule:
    """One CEL rule of the schema. The message is what a person reads at `kubectl apply`: it says what to write instead."""

    expression: str
    message: str
    field_path: str | None = None

    def schema(self) -> dict[str, str]:
        """The rule as an entry of `x-kubernetes-validations`."""
        entry = {"rule": self.expression, "message": self.message}
        if self.field_path is not None:
            entry["fieldPath"] = self.field_path
        return entry


class Model(BaseModel):
    """A value of the resource. Unknown fields are ignored: the API server has pruned them, or a newer CRD knows them."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", use_enum_values=True
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """CEL rules on this object as a whole."""

    schema_extra: ClassVar[dict[str, Any]] = {}
    """Further schema keys of this object."""

    def dump(self) -> dict[str, Any]:
        """The value as JSON with the API's names, without what is unset."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")

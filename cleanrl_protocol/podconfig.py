"""The config that travels to a pod in an annotation of its own: one text, with a digest that the worker checks.

The first line is the sha256 of the rest, the rest is canonical JSON. A pod reads it from a downward API volume; what
was cut short or edited on the way is refused with a sentence. Secrets never travel like this: pods get them by
reference.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

MAX_BYTES = 128 * 1024
"""Kubernetes allows 256 KiB for all annotations of an object together."""
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
TARGET = r"^([A-Za-z0-9._\-]+|\[[0-9a-fA-F:]+\]):\d{1,5}$"
"""An address of a gateway."""
_SECRET_KEYS = frozenset({"wandb_api_key"})


class BadPodConfig(ValueError):
    """A config that can't be used, with the reason. The text is safe to show."""


class PodConfig(BaseModel):
    """What one attempt of one run needs to know. Field names travel in camel case."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    version: Literal[1] = 1
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    attempt: Annotated[int, Field(ge=1, lt=2**31)] = 1
    worker_config: dict[str, Any] = {}
    """The worker's own config, as `--config` takes it."""
    gateway_target: Annotated[str, Field(max_length=300, pattern=TARGET)] | None = None
    gateway_ca: Annotated[list[str], Field(max_length=4)] = []
    """PEM certificates of the gateway's authority: the current one and, around a rotation, the next."""

    @field_validator("gateway_ca")
    @classmethod
    def _pem(cls, certificates: list[str]) -> list[str]:
        for certificate in certificates:
            text = certificate.strip()
            if not text.startswith("-----BEGIN CERTIFICATE-----") or not text.endswith("-----END CERTIFICATE-----"):
                raise ValueError("has to be a list of PEM certificates")
        return certificates

    @field_validator("worker_config")
    @classmethod
    def _without_secrets(cls, config: dict[str, Any]) -> dict[str, Any]:
        if (name := _secret_in(config)) is not None:
            raise ValueError(f"{name} does not travel in a config; give the pod a Secret instead")
        return config

    def ca_bundle(self) -> str:
        """All certificates as one PEM text; empty when there are none."""
        return "".join(f"{certificate.strip()}\n" for certificate in self.gateway_ca)


def make(**fields: Any) -> PodConfig:
    """A config of these fields. Raises BadPodConfig."""
    try:
        return PodConfig(**fields)
    except ValidationError as error:
        raise BadPodConfig(f"the run's config can't be used: {_faults(error)}") from None


def encode(config: PodConfig) -> str:
    """The annotation's value. Raises BadPodConfig when it is too large."""
    body = json.dumps(
        config.model_dump(by_alias=True, exclude_none=True), separators=(",", ":"), sort_keys=True, ensure_ascii=True
    )
    text = f"sha256:{hashlib.sha256(body.encode()).hexdigest()}\n{body}"
    if len(text) > MAX_BYTES:
        raise BadPodConfig(f"the run's config has {len(text)} bytes; {MAX_BYTES} is the most that fits into a pod")
    return text


def digest_of(text: str) -> str | None:
    """The digest that an annotation's value claims, without a check; None when it has none."""
    match = _DIGEST.match(text)
    return match[1] if match else None


def decode(text: str) -> PodConfig:
    """Read an annotation's value and check it. Raises BadPodConfig."""
    if len(text) > MAX_BYTES:
        raise BadPodConfig(f"the config is longer than {MAX_BYTES} bytes")
    head, separator, body = text.partition("\n")
    match = _DIGEST.fullmatch(head.strip())
    if match is None or not separator:
        raise BadPodConfig("the config does not begin with its digest")
    if hashlib.sha256(body.encode(errors="replace")).hexdigest() != match[1]:
        raise BadPodConfig("the config was changed or cut short on its way: its digest does not match")
    try:
        return PodConfig.model_validate(json.loads(body))
    except ValidationError as error:
        raise BadPodConfig(f"the config is not one of ours: {_faults(error)}") from None
    except (ValueError, RecursionError):
        raise BadPodConfig("the config is not JSON") from None


def _faults(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:10])


def _secret_in(value: Any) -> str | None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if str(key).lower() in _SECRET_KEYS and item:
                return str(key)
            if (name := _secret_in(item)) is not None:
                return name
    elif isinstance(value, list):
        return next((name for item in value if (name := _secret_in(item)) is not None), None)
    return None

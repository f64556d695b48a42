"""What an installation decides: images, the gateway's address, defaults. Read once from the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cleanrl_protocol import podconfig

ENV_PREFIX = "CLEANRL_OPERATOR_"
IN_EVERY_IMAGE = frozenset({"base"})
"""Requirement sets without which an image could not train at all."""


@dataclass(frozen=True)
class Settings:
    """One installation's choices; each has a sane default for a local cluster."""

    worker_image: str = "localhost/cleanrl-worker:dev"
    """The image of a run that names none and whose requirement sets have no image of their own."""
    image_pull_policy: str = "IfNotPresent"
    images: Mapping[str, str] = field(default_factory=dict)
    """Images by the requirement sets that they hold, joined by `+`, for example `atari+envpool`."""
    wheel_cache_claim: str = ""
    """A claim of this name in the run's namespace holds wheels of requirement sets; empty when there is none."""
    package_index: str = ""
    """Where wheels of requirement sets come from that no claim holds; empty for none."""
    gateway_target: str = ""
    """Where workers register, host:port; empty runs them without a session."""
    gateway_port: int = 50055
    """Where the gateway listens."""
    namespace: str = "cleanrl-system"
    """Where the operator keeps what is its own: Lease and Secret. The pod's own namespace when it runs in one."""
    namespaces: tuple[str, ...] = ()
    """Where runs are looked after; empty for all namespaces, which takes cluster-wide rights."""
    pod_name: str = ""
    """The operator's own pod, which gets a label while it leads; empty outside of a cluster."""
    lease_name: str = "cleanrl-operator"
    lease_seconds: int = 15
    health_port: int = 8080
    watch_check_seconds: int = 60
    """How often the watches are compared with what the API server has."""
    log_level: str = "info"
    gateway_ca: tuple[str, ...] = ()
    """The gateway's authorities as PEM, the current one first. Set by the operator itself."""
    operator_class: str = ""
    """Only runs of this class are handled; empty handles runs that name none."""
    default_claim_size: str = "5Gi"
    user_id: int = 65532
    """The user and group that workers run as."""
    grace_seconds: int = 120
    """A worker's time to checkpoint after SIGTERM."""
    metrics_port: int = 9464
    tensorboard_port: int = 6006
    tensorboard_always: bool = True
    """Whether `serve: always` is honoured, which takes the right to create Deployments and Services."""
    tensorboard_base_path: str = "/tb"
    """TensorBoards that are served by a Service are below this path, then namespace and run."""
    tensorboard_route: str = ""
    """How they are reached from outside: `Ingress`, `HTTPRoute`, or empty for not at all."""
    tensorboard_host: str = ""
    """The host of that route."""
    tensorboard_scheme: str = "https"
    """The scheme of their addresses outside."""
    tensorboard_ingress_class: str = ""
    tensorboard_gateway: str = ""
    """The Gateway of an HTTPRoute, as `namespace/name`."""
    metrics_auth: bool = False
    """Whether /metrics asks for a token whose owner may `get` the path /metrics. It is served over TLS then."""
    secure_metrics_port: int = 8443
    """Where it is served then, instead of on the health port."""
    metrics_host: str = "localhost"
    """The name for which its certificate is made: that of the metrics' Service."""
    shared_memory: str = "1Gi"
    service_account: str = "default"

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> Settings:
        """Take what the environment sets; unknown names under the prefix are an error, so that no typing slip is silent."""
        known = {f"{ENV_PREFIX}{name.upper()}": name for name in cls.__dataclass_fields__}
        values: dict[str, object] = {
            name: environment[key]
            for key, name in (("POD_NAME", "pod_name"), ("POD_NAMESPACE", "namespace"))
            if environment.get(key)
        }
        for key, value in environment.items():
            if not key.startswith(ENV_PREFIX):
                continue
            if key not in known:
                raise ValueError(f"{key} is no setting of the operator; there are {', '.join(sorted(known))}")
            name = known[key]
            default = cls.__dataclass_fields__[name].default
            if isinstance(default, bool):
                if value not in ("true", "false"):
                    raise ValueError(f"{key} has to be true or false, not {value!r}")
                values[name] = value == "true"
            elif isinstance(default, int):
                if not value.isdigit():
                    raise ValueError(f"{key} has to be a number, not {value!r}")
                values[name] = int(value)
            elif isinstance(default, tuple):
                values[name] = tuple(part.strip() for part in value.split(",") if part.strip())
            elif name == "images":
                values[name] = dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair)
            else:
                values[name] = value
        target = str(values.get("gateway_target") or "")
        if target and not re.search(podconfig.TARGET, target):  # else each run would be told that its own config is bad
            raise ValueError(f"{ENV_PREFIX}GATEWAY_TARGET has to be a host and a port, as host:8443, not {target!r}")
        return cls(**values)  # type: ignore[arg-type]  # the names are the class's own

    @classmethod
    def names(cls) -> list[str]:
        """Every variable with its default, for people who ask what there is."""
        values = {name: getattr(cls(), name) for name in cls.__dataclass_fields__}
        told = {name: str(value).lower() if isinstance(value, bool) else value or "" for name, value in values.items()}
        return [f"{ENV_PREFIX}{name.upper()}={text}" for name, text in told.items()]

    def image_for(self, asked: str | None, requirements: Iterable[str]) -> str:
        """The worker image: the run's own, else the smallest that holds its requirement sets, else the default."""
        return asked or self._variant(requirements) or self.worker_image

    def to_install(self, asked: str | None, requirements: Iterable[str]) -> tuple[str, ...]:
        """The requirement sets that have to be installed before training: none into an image that was asked for, or where
        nothing is configured to install from. What is missing then is the worker's own pre-flight to say."""
        wanted = tuple(sorted(frozenset(requirements) - IN_EVERY_IMAGE))
        from_somewhere = bool(self.wheel_cache_claim or self.package_index)
        return wanted if from_somewhere and not asked and self._variant(wanted) is None else ()

    def _variant(self, requirements: Iterable[str]) -> str | None:
        """The image of the table with the fewest sets beyond these; None when these need none, or none has them all."""
        wanted = frozenset(requirements) - IN_EVERY_IMAGE
        table = [(frozenset(sets.split("+")) - IN_EVERY_IMAGE, image) for sets, image in self.images.items()]
        fitting = [(len(sets), sorted(sets), image) for sets, image in table if wanted and wanted <= sets]
        return min(fitting)[2] if fitting else None

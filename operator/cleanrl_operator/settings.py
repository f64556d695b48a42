"""What an installation decides: images, the gateway's address, defaults. Read once from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ENV_PREFIX = "CLEANRL_OPERATOR_"


@dataclass(frozen=True)
class Settings:
    """One installation's choices; each has a sane default for a local cluster."""

    worker_image: str = "localhost/cleanrl-worker:dev"
    """The image of a run that names none and whose requirement sets have no image of their own."""
    image_pull_policy: str = "IfNotPresent"
    images: Mapping[str, str] = field(default_factory=dict)
    """Images by requirement sets, sorted and joined by `+`, for example `atari+envpool`."""
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
            if isinstance(default, int):
                if not value.isdigit():
                    raise ValueError(f"{key} has to be a number, not {value!r}")
                values[name] = int(value)
            elif isinstance(default, tuple):
                values[name] = tuple(part.strip() for part in value.split(",") if part.strip())
            elif name == "images":
                values[name] = dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair)
            else:
                values[name] = value
        return cls(**values)  # type: ignore[arg-type]  # the names are the class's own

    def image_for(self, asked: str | None, requirements: tuple[str, ...]) -> str:
        """The worker image: the run's own, else the one built for its requirement sets, else the default."""
        if asked:
            return asked
        return self.images.get("+".join(sorted(requirements)), self.worker_image)

"""What was asked of a cluster, and the addresses and ports chosen for it."""

from __future__ import annotations

import ipaddress
import json
import random
import socket
import subprocess
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from devcluster.errors import ClusterError
from devcluster.layout import Layout, exclusive, known_clusters, read_json, state_root, write_atomically

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_API = "10.96.0.1"
SERVICE_DNS = "10.96.0.10"
DOMAIN = "cluster.local"
ISSUER = f"https://kubernetes.default.svc.{DOMAIN}"

_PORTS = range(20000, 30000)
"""Below the kernel's range for outgoing connections and below the range for NodePorts: nobody takes these by chance."""
_WELL_KNOWN = {
    "api": 6443,
    "etcd": 2379,
    "etcd-peer": 2380,
    "controller-manager": 10257,
    "scheduler": 10259,
    "kwok": 10247,
}
"""A cluster with a node has a network of its own, where every port is free."""


@dataclass(frozen=True)
class Options:
    """What a person may ask for."""

    node: bool = False
    gpus: int = 0
    kwok_nodes: int = 0
    fault_proxy: bool = False
    netpol: bool = False
    audit_log: bool = False
    port: int = 0
    """Port of the API server; 0 takes a free one."""
    kubernetes_version: str = ""
    """Another Kubernetes than the pinned one, as in v1.35.1; empty for the pinned one."""

    def __post_init__(self) -> None:
        if self.gpus and not self.node:
            raise ClusterError("GPUs are put on the node: ask for --node together with --gpus.")
        if self.netpol and not self.node:
            raise ClusterError("Network policies are enforced on the node: ask for --node together with --netpol.")
        if self.gpus < 0 or self.kwok_nodes < 0:
            raise ClusterError("A number of GPUs or nodes can't be negative.")
        if not 0 <= self.port <= 65535:
            raise ClusterError(f"{self.port} is no port: use 1 to 65535, or 0 for any free one.")


@dataclass(frozen=True)
class Spec:
    """One cluster as it stands in its folder."""

    name: str
    options: Options
    ports: dict[str, int]
    network: int | None
    """Number of the node's private network; None without a node."""
    programs: dict[str, str]
    """Files of the programs it is made of."""
    ready: bool = False
    """Whether the first `up` came to its end: a cluster that never did holds nothing worth keeping."""
    owner: dict[str, Any] | None = None
    """The process on whose behalf a test cluster lives."""

    @property
    def node(self) -> bool:
        """Whether there is a real node."""
        return self.options.node

    @property
    def node_name(self) -> str:
        """The name of the real node."""
        return f"devcluster-{self.name}"

    @property
    def address(self) -> str:
        """Where the components listen, as seen from this machine."""
        return "127.0.0.1" if self.network is None else f"10.200.{self.network}.2"

    @property
    def gateway(self) -> str:
        """This machine as pods of a node see it."""
        return "127.0.0.1" if self.network is None else f"10.200.{self.network}.1"

    @property
    def pod_range(self) -> str:
        """Addresses of the node's pods."""
        return f"10.201.{self.network or 0}.0/24"

    @property
    def link(self) -> str:
        """The host's end of the cable to the node."""
        return f"devcluster{self.network}"

    def save(self, layout: Layout) -> None:
        """Write it down, in one step."""
        write_atomically(layout.spec_file, json.dumps(asdict(self), indent=2))

    @classmethod
    def load(cls, layout: Layout) -> Spec | None:
        """What stands in a cluster's folder; None when that is nothing, or not readable."""
        stored = read_json(layout.spec_file)
        if stored is None:
            return None
        try:
            known = {field.name for field in fields(Options)}
            options = Options(**{key: value for key, value in stored["options"].items() if key in known})
            return cls(
                name=layout.name,
                options=options,
                ports={str(key): int(value) for key, value in stored["ports"].items()},
                network=stored["network"],
                programs={str(key): str(value) for key, value in stored["programs"].items()},
                ready=bool(stored["ready"]),
                owner=stored.get("owner"),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def choose(name: str, options: Options, programs: dict[str, Path], owner: dict[str, Any] | None = None) -> Spec:
    """A cluster's ports and network, free now and claimed by no other cluster; saved before any other may choose."""
    layout = Layout.of(name)
    with choosing():
        others = [spec for other in known_clusters() if other != name and (spec := Spec.load(Layout.of(other)))]
        if options.node:
            ports = dict(_WELL_KNOWN)
            network: int | None = _free_network(spec.network for spec in others)
        else:
            taken = {port for spec in others for port in spec.ports.values()}
            ports = dict(zip(_WELL_KNOWN, _free_ports(len(_WELL_KNOWN), taken), strict=True))
            network = None
        if options.port:
            ports["api"] = options.port
        if options.fault_proxy:
            taken = {port for spec in others for port in spec.ports.values()} | set(ports.values())
            ports["fault-proxy"], ports["fault-proxy-control"] = _free_ports(2, taken)
        files = {program: str(path) for program, path in programs.items()}
        spec = Spec(name, options, ports, network, files, owner=owner)
        layout.make()
        spec.save(layout)
    return spec


def port_taken(address: str, port: int) -> bool:
    """Whether somebody listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return True
    return False


def _free_ports(count: int, taken: set[int]) -> list[int]:
    candidates = (port for port in random.sample(_PORTS, len(_PORTS)) if port not in taken)
    found = []
    for port in candidates:
        if not port_taken("127.0.0.1", port):
            found.append(port)
            if len(found) == count:
                return found
    raise ClusterError(f"No free port is left between {_PORTS.start} and {_PORTS.stop}.")


def _free_network(taken: Iterable[int | None]) -> int:
    used = set(taken)
    routes = _routed_networks()
    for number in range(256):
        wanted = [ipaddress.ip_network(f"10.{second}.{number}.0/24") for second in (200, 201)]
        if number not in used and not any(route.overlaps(each) for route in routes for each in wanted):
            return number
    raise ClusterError(
        "Every network from 10.200.0.0/24 to 10.200.255.0/24 is in use on this machine: take a cluster down first."
    )


def _routed_networks() -> list[ipaddress.IPv4Network]:
    output = subprocess.run(["ip", "-4", "route", "show", "table", "all"], capture_output=True, text=True, check=False)
    networks = []
    for line in output.stdout.splitlines():
        for word in line.split()[:2]:
            try:
                network = ipaddress.ip_network(word, strict=False)
            except ValueError:
                continue
            if isinstance(network, ipaddress.IPv4Network) and network.prefixlen > 0:
                networks.append(network)
    return networks


def choosing() -> AbstractContextManager[None]:
    """What clusters share on this machine is looked at and changed by one of them at a time."""
    return exclusive(state_root() / ".choosing", wait=True, keep=lambda: False)

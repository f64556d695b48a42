"""What a component is, and how its configuration reaches it."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from devcluster.api import Api
from devcluster.layout import Layout, write_atomically
from devcluster.spec import Spec


class Stage(IntEnum):
    """Components of one stage start together; the next stage waits until all of them answer."""

    BASE = 0
    API = 1
    REST = 2


@dataclass(frozen=True)
class Component:
    """One long-running program of a cluster."""

    name: str
    argv: list[str]
    stage: Stage
    healthy: Callable[[], bool]
    port: int | None = None
    inside: bool = True
    """Whether it runs in the node's namespaces, when there is a node."""
    patience: float = 60
    """Seconds it may take to answer after its start."""
    env: dict[str, str] = field(default_factory=dict)


def api_client(layout: Layout, spec: Spec, port: int | None = None, *, user: str = "admin", patience: float = 0) -> Api:
    """A user's client, straight to the API server (or to another component that trusts the same CA)."""
    pki = layout.pki
    certificate, key = pki / f"{user}.crt", pki / f"{user}.key"
    return Api(spec.address, port or spec.ports["api"], pki / "ca.crt", certificate, key, patience)


def write_kubeconfig(path: Path, layout: Layout, user: str, server: str) -> None:
    """Access to the API server as `user`, self-contained. It is JSON, which every reader of YAML takes."""

    def data(file_name: str) -> str:
        return base64.b64encode((layout.pki / file_name).read_bytes()).decode()

    name = f"devcluster-{layout.name}"
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
        "users": [
            {
                "name": f"{name}-{user}",
                "user": {
                    "client-certificate-data": data(f"{user}.crt"),
                    "client-key-data": data(f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": f"{name}-{user}"}}],
    }
    write_atomically(path, json.dumps(document, indent=2))


def page_answers(url: str) -> bool:
    """Whether a component's plain health page says yes."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=3) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False

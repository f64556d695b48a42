"""Components that a cluster has on request: pretended nodes, volumes, network policies, the fault proxy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from devcluster import agent, faultproxy, kwok
from devcluster.components import Component, Stage, page_answers
from devcluster.images import project_root
from devcluster.layout import Layout
from devcluster.netpol import PROGRAM as NETPOL
from devcluster.netpol import NetworkPolicies
from devcluster.spec import Options, Spec


def programs(options: Options) -> list[str]:
    """Names of the programs that the extras need."""
    return [*(["kwok"] if options.kwok_nodes else []), *([NETPOL] if options.netpol else [])]


def prepare(layout: Layout) -> None:
    """Write the configuration files of the extras."""
    (layout.config / "kwok.yaml").write_text(kwok.configuration())


def components(layout: Layout, spec: Spec, enter: Sequence[str]) -> list[Component]:
    """The extras that were asked for."""
    wanted = []
    if spec.node or spec.options.kwok_nodes:
        wanted.append(_agent(layout))
    if spec.options.kwok_nodes:
        wanted.append(_kwok(layout, spec))
    if spec.options.netpol:
        wanted.append(_netpol(layout, spec, enter))
    if spec.options.fault_proxy:
        wanted.append(_fault_proxy(layout, spec))
    return wanted


def policies(layout: Layout, spec: Spec, enter: Sequence[str]) -> NetworkPolicies:
    """Enforcement on this cluster's node."""
    return NetworkPolicies(layout.config / "netpol.kubeconfig", spec.node_name, spec.pod_range, prefix=enter)


def fault_proxy_url(spec: Spec) -> str:
    """Where callers reach the API server through the fault proxy."""
    return f"https://127.0.0.1:{spec.ports['fault-proxy']}"


def _own(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """A program of this package, wherever the package was imported from."""
    return [sys.executable, "-m", module, *arguments], {"PYTHONPATH": str(project_root()), "PYTHONUNBUFFERED": "1"}


def _agent(layout: Layout) -> Component:
    argv, env = _own("devcluster.agent", layout.name)
    state = {"XDG_STATE_HOME": str(layout.root.parent.parent)}
    return Component("agent", argv, Stage.REST, lambda: agent.beats(layout), env={**env, **state})


def _kwok(layout: Layout, spec: Spec) -> Component:
    port = spec.ports["kwok"]
    return Component(
        "kwok",
        [
            spec.programs["kwok"],
            f"--kubeconfig={layout.config / 'kwok.kubeconfig'}",
            f"--config={layout.config / 'kwok.yaml'}",
            f"--manage-nodes-with-annotation-selector={kwok.SELECTOR}",
            f"--server-address={spec.address}:{port}",
            f"--node-ip={spec.address}",
            "--node-lease-duration-seconds=40",
        ],
        Stage.REST,
        lambda: page_answers(f"http://{spec.address}:{port}/healthz"),
        port=port,
        env={"HOME": str(layout.root)},
    )


def _netpol(layout: Layout, spec: Spec, enter: Sequence[str]) -> Component:
    enforced = policies(layout, spec, enter)
    return Component("netpol", enforced.argv(Path(spec.programs[NETPOL])), Stage.REST, enforced.listening)


def _fault_proxy(layout: Layout, spec: Spec) -> Component:
    pki, port = layout.pki, spec.ports["fault-proxy"]
    argv = faultproxy.command(
        listen=f"127.0.0.1:{port}",
        upstream=f"https://{spec.address}:{spec.ports['api']}",
        certificate=pki / "apiserver.crt",
        key=pki / "apiserver.key",
        upstream_ca=pki / "ca.crt",
        control_port=spec.ports["fault-proxy-control"],
        client_ca=pki / "ca.crt",
        front_certificate=pki / "front-proxy.crt",
        front_key=pki / "front-proxy.key",
    )
    control = faultproxy.FaultProxy(fault_proxy_url(spec), spec.ports["fault-proxy-control"])
    env = {"PYTHONPATH": str(project_root()), "PYTHONUNBUFFERED": "1"}
    return Component("fault-proxy", argv, Stage.REST, lambda: _serves(control), port=port, inside=False, env=env)


def _serves(control: faultproxy.FaultProxy) -> bool:
    try:
        control.rules()
    except (OSError, faultproxy.FaultProxyError):
        return False
    return True

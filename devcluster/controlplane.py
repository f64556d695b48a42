"""etcd, the API server, the controller manager and the scheduler: their certificates, flags and health."""

from __future__ import annotations

import json

from devcluster.api import Api
from devcluster.certificates import Authority, write_token_key
from devcluster.components import Component, Stage, api_client, write_kubeconfig
from devcluster.layout import Layout
from devcluster.spec import DOMAIN, ISSUER, SERVICE_API, SERVICE_RANGE, Spec

USERS: dict[str, tuple[str, list[str]]] = {
    "admin": ("devcluster-admin", ["system:masters"]),
    "controller-manager": ("system:kube-controller-manager", []),
    "scheduler": ("system:kube-scheduler", []),
    "proxy": ("system:kube-proxy", []),
    "coredns": ("devcluster-dns", ["system:masters"]),
    "kwok": ("devcluster-kwok", ["system:masters"]),
    "netpol": ("devcluster-netpol", ["system:masters"]),
    "agent": ("devcluster-agent", ["system:masters"]),
}
"""Certificate files of the API server's clients: their user name and groups."""
FRONT_PROXY = "devcluster-front-proxy"
"""Whose word the API server takes for who is calling: the fault proxy speaks for its callers."""
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def prepare(layout: Layout, spec: Spec) -> None:
    """Make every certificate and configuration file of the control plane."""
    pki = layout.pki
    authority = Authority.create(pki, "ca")
    for file_name, (user, groups) in USERS.items():
        authority.issue(pki, file_name, user, groups=groups)
    hosts = ["localhost", "127.0.0.1", spec.address, spec.gateway]
    services = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}"]
    authority.issue(pki, "apiserver", "kube-apiserver", hosts=[*dict.fromkeys(hosts), *services, SERVICE_API])
    authority.issue(pki, "loopback", "devcluster-component", hosts=list(dict.fromkeys(hosts)))
    authority.issue(pki, "apiserver-kubelet", "kube-apiserver-kubelet-client", groups=["system:masters"])
    store = Authority.create(pki, "etcd-ca")
    store.issue(pki, "etcd", "etcd", hosts=list(dict.fromkeys(hosts)))
    store.issue(pki, "etcd-client", "kube-apiserver")
    write_token_key(pki)
    if spec.node:
        node = f"system:node:{spec.node_name}"
        authority.issue(pki, "kubelet", node, groups=["system:nodes"], hosts=[spec.node_name, spec.address])
    front = Authority.create(pki, "front-proxy-ca")
    front.issue(pki, "front-proxy", FRONT_PROXY)

    server = f"https://{spec.address}:{spec.ports['api']}"
    for user in [*USERS, *(["kubelet"] if spec.node else [])]:
        write_kubeconfig(layout.config / f"{user}.kubeconfig", layout, user, server)
    audit = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
    (layout.config / "audit-policy.json").write_text(json.dumps(audit))


def components(layout: Layout, spec: Spec) -> list[Component]:
    """The four programs, in the order in which they start."""
    return [
        _etcd(layout, spec, spec.programs["etcd"]),
        _api_server(layout, spec, spec.programs["kube-apiserver"]),
        _controller_manager(layout, spec, spec.programs["kube-controller-manager"]),
        _scheduler(layout, spec, spec.programs["kube-scheduler"]),
    ]


def _etcd(layout: Layout, spec: Spec, program: str) -> Component:
    pki, port = layout.pki, spec.ports["etcd"]
    client = f"https://{spec.address}:{port}"
    peer = f"http://127.0.0.1:{spec.ports['etcd-peer']}"
    health = Api(spec.address, port, pki / "etcd-ca.crt", pki / "etcd-client.crt", pki / "etcd-client.key")
    return Component(
        "etcd",
        [
            program,
            f"--name={spec.name}",
            f"--data-dir={layout.etcd}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={spec.name}={peer}",
            "--client-cert-auth",
            f"--trusted-ca-file={pki / 'etcd-ca.crt'}",
            f"--cert-file={pki / 'etcd.crt'}",
            f"--key-file={pki / 'etcd.key'}",
            "--unsafe-no-fsync",  # nothing here is worth waiting for the disk at every write
            "--auto-compaction-retention=5m",
            "--log-level=warn",
        ],
        Stage.BASE,
        lambda: health.answers("/health"),
        port=port,
    )


def _api_server(layout: Layout, spec: Spec, program: str) -> Component:
    pki, port = layout.pki, spec.ports["api"]
    client = api_client(layout, spec)
    argv = [
        program,
        f"--bind-address={spec.address}",
        f"--secure-port={port}",
        f"--etcd-servers=https://{spec.address}:{spec.ports['etcd']}",
        f"--etcd-cafile={pki / 'etcd-ca.crt'}",
        f"--etcd-certfile={pki / 'etcd-client.crt'}",
        f"--etcd-keyfile={pki / 'etcd-client.key'}",
        "--authorization-mode=Node,RBAC",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={pki / 'apiserver-kubelet.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--profiling=false",
        "--shutdown-delay-duration=0s",
    ]
    if spec.node:
        argv.append(f"--advertise-address={spec.address}")
    else:
        # No pod will ever follow the `kubernetes` Service, and a loopback address would be refused as its endpoint.
        argv.append("--endpoint-reconciler-type=none")
    if spec.options.audit_log:
        argv += [
            f"--audit-policy-file={layout.config / 'audit-policy.json'}",
            f"--audit-log-path={layout.audit_log}",
            "--audit-log-maxsize=100",
            "--audit-log-maxbackup=1",
        ]
    return Component(
        "kube-apiserver",
        argv,
        Stage.API,
        lambda: client.answers("/readyz"),
        port=port,
        patience=120,
    )


def _controller_manager(layout: Layout, spec: Spec, program: str) -> Component:
    pki, port = layout.pki, spec.ports["controller-manager"]
    health = api_client(layout, spec, port)
    return Component(
        "kube-controller-manager",
        [
            program,
            *_served(layout, spec, "controller-manager", port),
            f"--service-account-private-key-file={pki / 'service-accounts.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--cluster-signing-cert-file={pki / 'ca.crt'}",
            f"--cluster-signing-key-file={pki / 'ca.key'}",
            "--use-service-account-credentials=true",
            # The default of 20 requests a second throttles everything that controllers do for the tests.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ],
        Stage.REST,
        lambda: health.answers("/healthz"),
        port=port,
    )


def _scheduler(layout: Layout, spec: Spec, program: str) -> Component:
    port = spec.ports["scheduler"]
    health = api_client(layout, spec, port)
    return Component(
        "kube-scheduler",
        [
            program,
            *_served(layout, spec, "scheduler", port),
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ],
        Stage.REST,
        lambda: health.answers("/healthz"),
        port=port,
    )


def _served(layout: Layout, spec: Spec, user: str, port: int) -> list[str]:
    """The flags that controller manager and scheduler share."""
    kubeconfig = layout.config / f"{user}.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={spec.address}",
        f"--secure-port={port}",
        f"--tls-cert-file={layout.pki / 'loopback.crt'}",
        f"--tls-private-key-file={layout.pki / 'loopback.key'}",
        "--leader-elect=false",
        "--profiling=false",
    ]

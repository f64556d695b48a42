"""containerd, kubelet, kube-proxy and cluster DNS: their configuration, flags and health."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devcluster import cgroups, images, mountorder
from devcluster.components import Component, Stage, api_client, page_answers
from devcluster.dns import Dns
from devcluster.errors import ClusterError
from devcluster.layout import Layout
from devcluster.namespaces import run
from devcluster.spec import DOMAIN, SERVICE_DNS, Spec

BINARIES = ("kubelet", "kube-proxy", "coredns", "pause")
CNI_FOLDERS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
KUBELET_PORT = 10250
PROXY_PORT = 10256
DNS_READY_PORT = 8181


def prepare(layout: Layout, spec: Spec) -> None:
    """Write every configuration file of the node."""
    layout.volumes.mkdir(exist_ok=True)
    for name in ("containerd", "pod-logs", "plugins"):
        (layout.root / name).mkdir(exist_ok=True)
    default = json.loads(run(["ctr", "oci", "spec"]))
    _write_json(layout.config / "runtime-spec.json", images.runtime_spec(default))
    mountorder.write_runc(layout.config / "runc")
    (layout.config / "containerd.toml").write_text(_containerd_config(layout))
    network = layout.config / "cni"
    network.mkdir(exist_ok=True)
    _write_json(network / "10-devcluster.conflist", _network(layout, spec))
    _write_json(layout.config / "kubelet.json", _kubelet_config(layout, spec))
    _write_json(layout.config / "proxy.json", _proxy_config(layout, spec))
    (layout.config / "Corefile").write_text(_dns(layout, spec).corefile())
    images.write_archive(layout.config / "images.tar", Path(spec.programs["pause"]))


def components(layout: Layout, spec: Spec) -> list[Component]:
    """The node's programs; containerd first, because images are loaded before the kubelet asks for them."""
    kubelet = api_client(layout, spec, KUBELET_PORT)
    return [
        Component(
            "containerd",
            ["containerd", "--config", str(layout.config / "containerd.toml")],
            Stage.BASE,
            lambda: _listens(runtime_socket(layout)),
        ),
        Component(
            "kubelet",
            [
                spec.programs["kubelet"],
                f"--config={layout.config / 'kubelet.json'}",
                f"--kubeconfig={layout.config / 'kubelet.kubeconfig'}",
                f"--cert-dir={layout.pki}",
                f"--hostname-override={spec.node_name}",
                f"--node-ip={spec.address}",
            ],
            Stage.REST,
            lambda: kubelet.answers("/healthz"),
            port=KUBELET_PORT,
        ),
        Component(
            "kube-proxy",
            [spec.programs["kube-proxy"], f"--config={layout.config / 'proxy.json'}"],
            Stage.REST,
            lambda: page_answers(f"http://{spec.address}:{PROXY_PORT}/livez"),
            port=PROXY_PORT,
        ),
        Component(
            "coredns",
            _dns(layout, spec).argv(Path(spec.programs["coredns"]), layout.config / "Corefile"),
            Stage.REST,
            lambda: page_answers(f"http://{spec.address}:{DNS_READY_PORT}/ready"),
            port=53,
        ),
    ]


def runtime_socket(layout: Layout) -> Path:
    """Where containerd listens."""
    return layout.run / "containerd.sock"


def load_images(layout: Layout, enter: Sequence[str], archive: Path) -> list[str]:
    """Import an archive into containerd; the names of its images."""
    if not archive.is_file():
        raise ClusterError(f"There is no image archive {archive}.")
    ctr = [*enter, "ctr", f"--address={runtime_socket(layout)}", "--namespace=k8s.io", "images", "import"]
    output = run([*ctr, str(archive.absolute())])
    return [line.split()[1] for line in output.splitlines() if line.startswith("unpacking ")]


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _containerd_config(layout: Layout) -> str:
    """TOML strings are JSON strings, as far as paths go."""
    text = json.dumps
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    folder = next((path for path in CNI_FOLDERS if (path / "ptp").exists()), CNI_FOLDERS[0])
    return f"""\
version = 2
root = {text(str(layout.root / "containerd"))}
state = {text(str(layout.run / "containerd"))}

[grpc]
  address = {text(str(runtime_socket(layout)))}

[{cri}]
  sandbox_image = {text(images.PAUSE)}
  # A machine that may not lower OOM scores fails every pod sandbox otherwise.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [{cri}.cni]
    bin_dir = {text(str(folder))}
    conf_dir = {text(str(layout.config / "cni"))}
  [{cri}.containerd]
    snapshotter = {text(_snapshotter(layout))}
    default_runtime_name = "lending"
    [{cri}.containerd.runtimes.lending]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = {text(str(layout.config / "runtime-spec.json"))}
      [{cri}.containerd.runtimes.lending.options]
        BinaryName = {text(str(layout.config / "runc"))}
        Root = {text(str(layout.run / "runc"))}
    [{cri}.containerd.runtimes.image-only]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.image-only.options]
        Root = {text(str(layout.run / "runc"))}
"""


def _snapshotter(layout: Layout) -> str:
    """Overlays, unless the folder lies on one already (in a container): those do not stack."""
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(layout.root)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return "native" if kind == "overlayfs" else "overlayfs"


def _network(layout: Layout, spec: Spec) -> dict[str, Any]:
    return {
        "cniVersion": "0.4.0",
        "name": f"devcluster-{spec.name}",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(layout.run / "addresses"),
                    "ranges": [[{"subnet": spec.pod_range}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _kubelet_config(layout: Layout, spec: Spec) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": spec.address,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{runtime_socket(layout)}",
        "clusterDNS": [SERVICE_DNS],
        "clusterDomain": DOMAIN,
        "resolvConf": "/etc/resolv.conf",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.group_name(spec.name)}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # The disk is the developer's own: how full it is must not evict pods or remove images.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "podLogsDir": str(layout.root / "pod-logs"),
        "volumePluginDir": str(layout.root / "plugins"),
        "serializeImagePulls": False,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "maxPods": 200,
    }


def _proxy_config(layout: Layout, spec: Spec) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": spec.pod_range,
        "hostnameOverride": spec.node_name,
        "healthzBindAddress": f"{spec.address}:{PROXY_PORT}",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        "iptables": {"localhostNodePorts": False, "minSyncPeriod": "100ms"},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "clientConnection": {"kubeconfig": str(layout.config / "proxy.kubeconfig"), "qps": 100, "burst": 200},
    }


def _dns(layout: Layout, spec: Spec) -> Dns:
    return Dns(layout.config / "coredns.kubeconfig", [spec.address], f"{spec.address}:{DNS_READY_PORT}")


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2))

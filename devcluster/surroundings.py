"""What a cluster needs from the machine, checked before anything is made; missing Debian packages are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from devcluster import cgroups, netpol
from devcluster.errors import ClusterError
from devcluster.layout import state_root
from devcluster.node import CNI_FOLDERS
from devcluster.progress import run_step
from devcluster.spec import Options

MEGABYTES_CONTROL_PLANE = 300
MEGABYTES_NODE = 1500
TOOLS = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
}
"""Programs of the node that come from Debian packages."""
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")


def check(options: Options) -> None:
    """Raise ClusterError with one sentence when the cluster can't live here."""
    if sys.platform != "linux":
        raise ClusterError(
            "devcluster runs on Linux only: on this system use kind or another cluster, and point KUBECONFIG to it."
        )
    _check_disk(MEGABYTES_NODE if options.node else MEGABYTES_CONTROL_PLANE)
    if options.node:
        if reason := why_no_node():
            raise ClusterError(reason)
        install_missing()
    if options.netpol and (reason := netpol.supported()):
        raise ClusterError(f"{reason}.")


def why_no_node() -> str | None:
    """Why this machine can't carry a node, in one sentence with the remedies; None when it can."""
    instead = "leave --node out, or use your own cluster through KUBECONFIG"
    if os.geteuid() != 0:
        return f"A node needs root (namespaces, mounts, control groups): run the command as root, {instead}."
    probe = ["unshare", "--mount", "--net", "--propagation", "private", "true"]
    try:
        answer = subprocess.run(probe, capture_output=True, text=True, check=False)
        refusal = answer.stderr.strip() if answer.returncode else ""
    except OSError as error:
        refusal = f"unshare: {error.strerror}"
    if refusal:
        return (
            f"A node needs namespaces of its own, and this machine refuses them ({refusal}): in a container, start it "
            f"privileged; or {instead}."
        )
    if not cgroups.writable():
        return f"A node needs writable control groups: in a container, start it privileged; or {instead}."
    return None


def search_path() -> str:
    """PATH with the folders of system programs, which many shells leave out."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])


def missing_packages() -> list[str]:
    """Debian packages whose programs are not on this machine."""
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool, path=search_path()) is None]
    if not any((folder / "ptp").exists() for folder in CNI_FOLDERS):
        missing.append("containernetworking-plugins")
    return sorted(set(missing))


def _check_disk(megabytes: int) -> None:
    folder = state_root()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free // 2**20
    if free < megabytes:
        raise ClusterError(
            f"Only {free} MB are free under {folder}, and the cluster asks for {megabytes} MB: make room, or point "
            "XDG_STATE_HOME to a larger disk."
        )


def install_missing() -> None:
    """Install the Debian packages whose programs a node needs. Raises ClusterError with the remedy when that can't be done."""
    missing = missing_packages()
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(
            f"A node needs {', '.join(missing)} (so named in Debian), and there is no apt-get here to install them: "
            "install them with your system's package manager."
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=120"]  # somebody else may be installing
    run_step("reading the package lists", [*apt, "update"], typical_seconds=15, env=env)  # old ones name what is gone
    run_step(
        f"installing {' '.join(missing)}",
        [*apt, "install", "--no-install-recommends", *missing],
        typical_seconds=40,
        env=env,
        remedy=f"run `apt-get update && apt-get install {' '.join(missing)}` by hand to see why",
    )
    if still := missing_packages():
        raise ClusterError(f"The packages {', '.join(still)} were installed, but their programs are not on PATH.")

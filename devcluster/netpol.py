"""NetworkPolicy, enforced: the first packet of each connection is judged by a process, in the words of the cluster's policies.

iptables hands new connections of pods to a netfilter queue; `kube-network-policies` reads that queue and lets a packet
pass or not. Packets of a connection that was let in pass freely, and so does what the node's own root sends, because the
kubelet's probes must reach a pod under any policy. A policy judges connections between pods, and from pods to the
outside. What a pod sends to the node itself (the API server and cluster DNS run there) never leaves the node and is not
judged. While the process is down, new connections of pods fail: a policy that silently stopped working would be worse.

The rules and the process must be in the same network namespace: that of the node.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import ClusterError

PROGRAM = "kube-network-policies"
_CHAIN = "DEVCLUSTER-NETPOL"
_TABLE = "devcluster-netpol"
"""The program also tries nftables' own queue expression where the kernel has it, in a table of this name."""
_TOOLS = ("iptables", "nft", "unshare")


def supported() -> str | None:
    """Why NetworkPolicy can't be enforced on this machine, or None when it can. Tried in a namespace of its own."""
    if os.geteuid() != 0:
        return "NetworkPolicy can't be enforced without root; run as root, or use a cluster whose network enforces it"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"NetworkPolicy can't be enforced without {tool}; install the packages iptables, nftables and util-linux"
    probe = [
        "unshare",
        "--net",
        "iptables",
        "-w",
        "-t",
        "mangle",
        "-A",
        "POSTROUTING",
        "-j",
        "NFQUEUE",
        "--queue-num",
        "1",
    ]
    answer = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if answer.returncode != 0 or not Path("/proc/net/netfilter/nfnetlink_queue").exists():
        return (
            "NetworkPolicy can't be enforced: this kernel has no netfilter queue for iptables "
            f"({answer.stderr.strip() or 'nfnetlink_queue is missing'})"
        )
    return None


@dataclass(frozen=True)
class NetworkPolicies:
    """Enforcement for one node. `prefix` is the command that enters the node's network namespace."""

    kubeconfig: Path
    """Access to the API server that may list and watch pods, namespaces and network policies, and write events."""
    node: str
    pod_range: str
    """Addresses of the node's pods, such as 10.244.0.0/24."""
    queue: int = 100
    prefix: Sequence[str] = ()

    def argv(self, program: Path) -> list[str]:
        """The command of the process that judges."""
        return [
            str(program), "--kubeconfig", str(self.kubeconfig), "--node", self.node,
            "--queue", str(self.queue), "--table", _TABLE,
        ]  # fmt: skip

    def listening(self) -> bool:
        """Whether the process reads the queue by now."""
        answer = self._run("cat", "/proc/net/netfilter/nfnetlink_queue")
        return any(line.split()[:1] == [str(self.queue)] for line in answer.stdout.splitlines())

    def divert(self) -> None:
        """Hand new connections of pods to the queue. May be called again."""
        self.restore()
        queue = ("-j", "NFQUEUE", "--queue-num", str(self.queue))
        for arguments in (
            ("-N", _CHAIN),
            ("-A", _CHAIN, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "RETURN"),
            ("-A", _CHAIN, "-m", "owner", "--uid-owner", "0", "-j", "RETURN"),
            ("-A", _CHAIN, "-s", self.pod_range, *queue),
            ("-A", _CHAIN, "-d", self.pod_range, *queue),
            ("-A", "POSTROUTING", "-j", _CHAIN),
        ):
            answer = self._iptables(*arguments)
            if answer.returncode != 0:
                self.restore()
                raise ClusterError(f"NetworkPolicy can't be enforced: iptables says {answer.stderr.strip()!r}.")

    def restore(self) -> None:
        """Take back every rule of ours; what is not there any more needs nothing. Call it after the process has ended."""
        for arguments in (("-D", "POSTROUTING", "-j", _CHAIN), ("-F", _CHAIN), ("-X", _CHAIN)):
            self._iptables(*arguments)
        self._run("nft", "delete", "table", "inet", _TABLE)

    def _iptables(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run("iptables", "-w", "-t", "mangle", *arguments)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

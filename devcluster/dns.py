"""Cluster DNS: CoreDNS as a process beside the kubelet, with a configuration made for one cluster.

Names of the cluster are answered from what the API server says now, without a cache: a test that makes a Service and
asks for it at once must not be told what was true before. All other names go to the machine's own resolvers, or are
refused at once when there is none, so that nobody waits for a time-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "coredns"
DOMAIN = "cluster.local"
_RECORD_SECONDS = 5
_FOREIGN_CACHE_SECONDS = 30


@dataclass(frozen=True)
class Dns:
    """Cluster DNS for one cluster."""

    kubeconfig: Path
    """Access to the API server that may list and watch services, endpoint slices, namespaces and pods."""
    addresses: Sequence[str]
    """Addresses to listen on; the kubelet's clusterDNS must lead to one of them."""
    ready_address: str
    """HOST:PORT where `/ready` answers 200 once every name of the cluster is known."""
    port: int = 53
    forward_to: Sequence[str] = ()
    """Resolvers for names outside the cluster: addresses, or the path of a resolv.conf."""

    def corefile(self) -> str:
        """The configuration file's text."""
        listen = " ".join(self.addresses)
        blocks = [
            f"{DOMAIN}:{self.port} in-addr.arpa:{self.port} ip6.arpa:{self.port} {{",
            f"    bind {listen}",
            "    errors",
            f"    ready {self.ready_address}",
            "    loadbalance",
            f"    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{",
            f'        kubeconfig "{self.kubeconfig}"',
            "        pods insecure",
            f"        ttl {_RECORD_SECONDS}",
            "    }",
            "}",
        ]
        if self.forward_to:
            blocks += [
                f".:{self.port} {{",
                f"    bind {listen}",
                "    errors",
                f"    cache {_FOREIGN_CACHE_SECONDS}",
                f"    forward . {' '.join(self.forward_to)}",
                "}",
            ]
        return "\n".join(blocks) + "\n"

    def argv(self, program: Path, corefile: Path) -> list[str]:
        """The command that serves it; `corefile` holds the text of corefile()."""
        return [str(program), "-conf", str(corefile), "-quiet"]


def usable_resolvers(resolv_conf: Path = Path("/etc/resolv.conf")) -> list[str]:
    """The machine's resolvers that can be reached from a network namespace of its own: none on loopback."""
    try:
        lines = resolv_conf.read_text().splitlines()
    except OSError:
        return []
    servers = [line.split()[1] for line in lines if line.startswith("nameserver") and len(line.split()) > 1]
    return [server for server in servers if not server.startswith("127.") and server != "::1"]

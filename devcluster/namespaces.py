"""The node's own mount and network namespaces, and the cable between them and this machine.

Everything that a node mounts, and every link, route and packet filter rule that it makes, lives in there. The kernel
takes it all away with the last process inside, so that nothing is left behind even by parts that were killed.

A process that does nothing holds the namespaces. The cable is a pair of virtual Ethernet devices: this machine has
10.200.<n>.1, the node 10.200.<n>.2, and pods have addresses in 10.201.<n>.0/24, which this machine can reach too.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from devcluster.components import Component, Stage
from devcluster.errors import ClusterError
from devcluster.layout import Layout
from devcluster.processes import Identity
from devcluster.spec import Spec

HOLDER = "namespaces"
PRIVATE = ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")
"""Folders whose names containerd, CNI and the kubelet do not let us choose, or which must be short because sockets are
made in them: the node sees its own in their place."""


def holder() -> Component:
    """The process that keeps the namespaces."""
    argv = ["unshare", "--mount", "--net", "--propagation", "private", "--", "sleep", "infinity"]
    return Component(HOLDER, argv, Stage.BASE, lambda: True, inside=False)


def enter(process: Identity) -> list[str]:
    """The command that runs another command inside."""
    return ["nsenter", f"--target={process.pid}", "--mount", "--net", "--"]


def furnish(layout: Layout, spec: Spec, process: Identity) -> None:
    """Mounts and network inside; safe to repeat."""
    _wait_until_apart(process)
    layout.run.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = ["mount --make-rshared /", "ip link set lo up"]
    for target in PRIVATE:
        own = layout.root / "private" / target.strip("/").replace("/", "-")
        own.mkdir(parents=True, exist_ok=True)
        lines.append(f"mountpoint -q {target} || mount --bind {shlex.quote(str(own))} {target}")
    _inside(process, lines)
    if not Path(f"/sys/class/net/{spec.link}").exists():
        run(["ip", "link", "add", spec.link, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid)])
        _inside(
            process,
            [
                f"ip address add {spec.address}/30 dev eth0",
                "ip link set eth0 up",
                f"ip route add default via {spec.gateway}",
                "sysctl -q -w net.ipv4.ip_forward=1 || echo 1 > /proc/sys/net/ipv4/ip_forward",
            ],
        )
        run(["ip", "address", "add", f"{spec.gateway}/30", "dev", spec.link])
        run(["ip", "link", "set", spec.link, "up"])
    run(["ip", "route", "replace", spec.pod_range, "via", spec.address, "dev", spec.link])


def cut(spec: Spec) -> None:
    """Remove the cable, should the kernel not have done so yet."""
    if Path(f"/sys/class/net/{spec.link}").exists():
        subprocess.run(["ip", "link", "delete", spec.link], capture_output=True, check=False)


def run(command: Sequence[str]) -> str:
    """Run a command of the machine; its failure is a ClusterError with its own words."""
    try:
        answer = subprocess.run(list(command), capture_output=True, text=True, check=False)
    except OSError as error:
        raise ClusterError(f"{command[0]} can't be started: {error.strerror}.") from error
    if answer.returncode != 0:
        words = (answer.stderr or answer.stdout).strip().splitlines()
        raise ClusterError(f"`{shlex.join(command)}` failed: {words[-1] if words else f'exit {answer.returncode}'}")
    return answer.stdout


def _inside(process: Identity, lines: Sequence[str]) -> None:
    run([*enter(process), "sh", "-ec", "\n".join(lines)])


def _wait_until_apart(process: Identity) -> None:
    """The holder's pid exists a moment before its namespaces do."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            apart = all(
                Path(f"/proc/{process.pid}/ns/{kind}").readlink() != Path(f"/proc/self/ns/{kind}").readlink()
                for kind in ("mnt", "net")
            )
        except OSError:
            apart = False
        if apart and Path(f"/proc/{process.pid}/comm").read_text().strip() == "sleep":
            return
        if not process.alive():
            break
        time.sleep(0.02)
    raise ClusterError("The process that holds the node's namespaces ended: run the command again.")

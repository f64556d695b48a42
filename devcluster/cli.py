"""The `devcluster` command."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from devcluster import binaries
from devcluster.api import ApiError
from devcluster.cluster import Cluster
from devcluster.errors import ClusterError
from devcluster.layout import known_clusters
from devcluster.progress import StepFailed, nobody_reads
from devcluster.spec import Options

DEFAULT_NAME = "default"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; every failure is one sentence on standard error and a non-zero exit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        nobody_reads()
        code = 0
    except (ClusterError, ApiError, StepFailed, binaries.BinaryError) as error:
        sys.stderr.write(f"devcluster: {error}\n")
        code = 1
    except OSError as error:
        sys.stderr.write(f"devcluster: {error.strerror}: {error.filename or 'no file named'}\n")
        code = 1
    except KeyboardInterrupt:
        sys.stderr.write("devcluster: interrupted\n")
        code = 130
    return code


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["binaries"]:
        return binaries.cli_main(arguments[1:])
    parsed = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    return int(parsed.run(parsed))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """A request to end takes the same way out as Ctrl-C: through the code that cleans up."""
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="devcluster", description="A real Kubernetes on this machine, for development and tests."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start a cluster, or what of it has died")
    up.add_argument(
        "--node", action="store_true", help="add a real node: kubelet, containerd, network, DNS (needs root)"
    )
    up.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="pretend that the node has N GPUs (nvidia.com/gpu)"
    )
    up.add_argument("--kwok-nodes", type=int, default=0, metavar="N", help="add N pretended nodes, run by kwok")
    up.add_argument(
        "--fault-proxy", action="store_true", help="put a proxy that can inject faults before the API server"
    )
    up.add_argument("--netpol", action="store_true", help="enforce NetworkPolicy on the node")
    up.add_argument("--audit-log", action="store_true", help="log every request to the API server")
    up.add_argument("--port", type=int, default=0, help="port of the API server (default: a free one)")
    up.add_argument("--kubernetes-version", default="", metavar="V", help="another Kubernetes than the pinned one")
    up.add_argument("--reuse", action="store_true", help="a cluster that is up already is fine")
    up.set_defaults(run=_up)

    down = commands.add_parser("down", help="end a cluster and remove every trace of it")
    down.add_argument("--all", action="store_true", help="every cluster of this user")
    down.set_defaults(run=_down)

    status = commands.add_parser("status", help="show the components, their memory and their health")
    status.set_defaults(run=_status)

    kubeconfig = commands.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig")
    kubeconfig.add_argument("--faulty", action="store_true", help="the one that goes through the fault proxy")
    kubeconfig.set_defaults(run=_kubeconfig)

    load = commands.add_parser("load-image", help="give the node an image from an OCI or Docker archive")
    load.add_argument("archive", type=Path)
    load.set_defaults(run=_load_image)

    commands.add_parser("binaries", help="the programs a cluster is made of (see `devcluster binaries --help`)")
    for command in (up, down, status, kubeconfig, load):
        command.add_argument("--name", default=DEFAULT_NAME, help=f"the cluster's name (default: {DEFAULT_NAME})")
    return parser


def _up(arguments: argparse.Namespace) -> int:
    options = Options(
        node=arguments.node,
        gpus=arguments.gpus,
        kwok_nodes=arguments.kwok_nodes,
        fault_proxy=arguments.fault_proxy,
        netpol=arguments.netpol,
        audit_log=arguments.audit_log,
        port=arguments.port,
        kubernetes_version=arguments.kubernetes_version,
    )
    cluster = Cluster(arguments.name, options)
    cluster.up(reuse=arguments.reuse)
    if any(name.lower() == "https_proxy" and value for name, value in os.environ.items()) and options.node:
        sys.stderr.write(f"HTTPS_PROXY is set: add {cluster.spec.address} to NO_PROXY, or clients go the wrong way.\n")
    sys.stdout.write(
        f"Cluster {cluster.name!r} is up. Use it with\n  export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}\n"
    )
    if options.fault_proxy:
        faulty = shlex.quote(str(cluster.faulty_kubeconfig))
        sys.stdout.write(f"or, through the fault proxy, with\n  export KUBECONFIG={faulty}\n")
    return 0


def _down(arguments: argparse.Namespace) -> int:
    for name in known_clusters() if arguments.all else [arguments.name]:
        Cluster(name).down()
        sys.stdout.write(f"Cluster {name!r} is down.\n")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    cluster = Cluster(arguments.name)
    lines = cluster.status()
    rows = [("COMPONENT", "PID", "MEMORY", "PORT", "HEALTH")]
    rows += [
        (line.name, str(line.pid or "-"), f"{line.memory / 2**20:.0f} MB", str(line.port or "-"), line.health)
        for line in lines
    ]
    rows.append(("total", "", f"{sum(line.memory for line in lines) / 2**20:.0f} MB", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
    return 0 if all(line.health == "healthy" for line in lines) else 1


def _kubeconfig(arguments: argparse.Namespace) -> int:
    cluster = Cluster(arguments.name)
    if arguments.faulty:
        _ = cluster.faults  # says so when there is no fault proxy
    _ = cluster.spec  # says so when there is no such cluster
    sys.stdout.write(f"{cluster.faulty_kubeconfig if arguments.faulty else cluster.kubeconfig}\n")
    return 0


def _load_image(arguments: argparse.Namespace) -> int:
    Cluster(arguments.name).load_image(arguments.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One fault proxy, until SIGTERM. When it serves, it prints a line of JSON with its ports and its seed."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import signal
import ssl
import sys
from pathlib import Path

from devcluster.faultproxy.server import Files, Proxy


def main() -> int:
    """Run the proxy; the exit code is 1 when it could not start."""
    parser = argparse.ArgumentParser(prog="python -m devcluster.faultproxy", description=__doc__)
    parser.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="where callers connect; port 0 takes a free one"
    )
    parser.add_argument("--upstream", required=True, metavar="URL", help="the API server")
    parser.add_argument("--ca", required=True, type=Path, help="certificate authority of the API server")
    parser.add_argument("--cert", required=True, type=Path, help="certificate that callers see")
    parser.add_argument("--key", required=True, type=Path, help="its key")
    parser.add_argument(
        "--control-port", required=True, type=int, help="port on loopback that takes rules; 0 takes a free one"
    )
    parser.add_argument("--seed", type=int, help="repeats the chances of an earlier proxy")
    parser.add_argument("--client-ca", type=Path, help="authority whose client certificates are believed")
    parser.add_argument("--front-cert", type=Path, help="certificate that the API server takes for its front proxy")
    parser.add_argument("--front-key", type=Path, help="its key")
    parser.add_argument(
        "--until-stdin-closes", action="store_true", help="end together with whoever holds standard input"
    )
    arguments = parser.parse_args()
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isdigit():
        parser.error("--listen takes HOST:PORT")
    if (arguments.front_cert is None) != (arguments.front_key is None):
        parser.error("--front-cert and --front-key go together")
    files = Files(
        arguments.cert, arguments.key, arguments.ca, arguments.client_ca, arguments.front_cert, arguments.front_key
    )
    seed = arguments.seed if arguments.seed is not None else secrets.randbits(32)
    try:
        asyncio.run(_serve(Proxy(arguments.upstream, files, seed), host, int(port), seed, arguments))
    except (OSError, ssl.SSLError) as error:
        sys.stderr.write(f"the fault proxy can't serve on {arguments.listen}: {error}\n")
        return 1
    return 0


async def _serve(proxy: Proxy, host: str, port: int, seed: int, arguments: argparse.Namespace) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if arguments.until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), ended.set)  # nobody writes there: it becomes readable when it closes
    async with proxy.serving(host, port, arguments.control_port) as (served, controlled):
        ready = {"host": host, "port": served, "control_port": controlled, "seed": seed}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    sys.exit(main())

"""A fault proxy in a process of its own, in front of an HTTPS server that does what the test tells it."""

from __future__ import annotations

import http.client
import http.server
import json
import queue
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from devcluster.certificates import Authority
from devcluster.faultproxy import FaultProxy


@dataclass
class Upstream:
    """The server behind the proxy: what it was asked, and the events of its watches."""

    url: str = ""
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    watches: dict[str, queue.Queue[Any]] = field(default_factory=dict)
    """What to send next to the watchers of a path; None ends the watch."""
    watching: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released each time a watch has begun."""
    left: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released each time a watch has ended because the other side went away."""

    def events(self, path: str) -> queue.Queue[Any]:
        """The events of one path."""
        return self.watches.setdefault(path.partition("?")[0], queue.Queue())

    def handler(upstream) -> type[http.server.BaseHTTPRequestHandler]:  # noqa: N805 - the handler has the `self`
        """The request handler over this object."""

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                upstream.seen.append(
                    (
                        self.command,
                        self.path,
                        {name.lower(): ", ".join(self.headers.get_all(name)) for name in self.headers},
                    )
                )
                if "watch=true" in self.path:
                    self.stream()
                    return
                answer = json.dumps({"kind": "Echo", "method": self.command, "body": body.decode()}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - names of the standard library

            def stream(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                upstream.watching.release()
                try:
                    while (event := upstream.events(self.path).get()) is not None:
                        line = json.dumps(event).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                except OSError:
                    upstream.left.release()
                    self.close_connection = True
                    return
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    authority = Authority.create(folder, "ca")
    authority.issue(folder, "server", "server", hosts=["127.0.0.1"])
    authority.issue(folder, "front", "front-proxy")
    authority.issue(folder, "jane", "jane", groups=["team-a", "team-b"])
    return folder


@pytest.fixture(scope="session")
def server(pki: Path) -> Iterator[Upstream]:
    server_side = Upstream()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), server_side.handler())
    server.daemon_threads = True
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pki / "server.crt", pki / "server.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server_side.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server_side
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def upstream(server: Upstream) -> Iterator[Upstream]:
    """The server, with nothing asked and nothing to tell yet."""
    server.seen.clear()
    server.watches = {}
    yield server
    for events in server.watches.values():
        events.put(None)


@pytest.fixture(scope="session")
def running_proxy(server: Upstream, pki: Path) -> Iterator[FaultProxy]:
    with FaultProxy.start(
        upstream=server.url,
        certificate=pki / "server.crt",
        key=pki / "server.key",
        upstream_ca=pki / "ca.crt",
        client_ca=pki / "ca.crt",
        front_certificate=pki / "front.crt",
        front_key=pki / "front.key",
        seed=5,
    ) as running:
        yield running


@pytest.fixture
def proxy(running_proxy: FaultProxy, upstream: Upstream) -> FaultProxy:
    """The proxy, with no rule in force and a server behind it that knows of nothing yet."""
    assert running_proxy.rules() == []
    return running_proxy


@dataclass
class Caller:
    """A plain HTTPS client: each call is a connection of its own, so a cut is seen as a cut."""

    host: str
    tls: ssl.SSLContext

    def open(self, method: str, path: str, body: str = "", **headers: str) -> http.client.HTTPResponse:
        """Send a request and return the answer, of which only the head was read."""
        connection = http.client.HTTPSConnection(self.host, context=self.tls, timeout=20)
        connection.request(
            method, path, body or None, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        return connection.getresponse()

    def __call__(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, Any]:
        """Send a request and return status and object."""
        with self.open(method, path, body, **headers) as answer:
            return answer.status, json.loads(answer.read())


@pytest.fixture
def caller(proxy: FaultProxy, pki: Path) -> Caller:
    return Caller(proxy.url.removeprefix("https://"), ssl.create_default_context(cafile=str(pki / "ca.crt")))


@pytest.fixture
def jane(proxy: FaultProxy, pki: Path) -> Caller:
    """A caller with a client certificate."""
    tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    tls.load_cert_chain(pki / "jane.crt", pki / "jane.key")
    return Caller(proxy.url.removeprefix("https://"), tls)

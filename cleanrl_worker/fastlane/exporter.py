"""One HTTP port for a run: `/metrics`, `/healthz`, the pictures `/frame.png` and `/stream`, and `/`, a page that shows them.

    exporter = Exporter(run_id, "::", 9090, state=lambda: RunState(...))
    exporter.start()
    ...
    exporter.close()

Runs in threads of the supervisor and imports neither torch nor numpy. Metrics and health are for the cluster;
pictures show what a tenant trains, so they are answered only to callers on the loopback interface (`kubectl
port-forward` is one) unless `expose_frames` is set. Callers are strangers: GET and HEAD only, requests of a bounded size
that have to be over within a bounded time, bounds on connections and on how many a second (see `gate`), and one on streams.
Each connection has its own thread, so a slow caller delays nobody else. Training is another process, but shares its CPU with
this one: callers who come at once get the same page, and refused ones cost little.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import io
import ipaddress
import logging
import math
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from cleanrl_worker.fastlane import metrics
from cleanrl_worker.fastlane.collector import RunCollector, RunState
from cleanrl_worker.fastlane.gate import Gate
from cleanrl_worker.fastlane.ring import Frame, RingReader

__all__ = ["Exporter", "RunState"]

log = logging.getLogger(__name__)

EVERYWHERE = "::"
"""The host that stands for all addresses of this machine, of whatever family."""
MAX_STREAMS = 4
PAGE_SECONDS = 0.5
"""For so long a page of metrics is the same for all who ask."""
MAX_REQUEST_BYTES = 16 * 1024
RECEIVE_BYTES = 64 * 1024
REQUEST_SECONDS = 15.0
"""How long a request may take from connect to the last byte, however busy the caller keeps it. Streams may go on."""
SOCKET_TIMEOUT = 10.0
STREAM_INTERVAL = 0.1
_BOUNDARY = "frame"
_NO_FAREWELL = struct.pack("ii", 1, 0)
"""For SO_LINGER: forget the connection at once."""
PAGE_POLICY = (
    "default-src 'none'; img-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "frame-ancestors 'none'"
)


class Exporter:
    """Serves one run. `start` binds and returns; a taken port is an OSError there, and nothing is left behind."""

    def __init__(
        self,
        run_id: str,
        host: str,
        port: int,
        state: Callable[[], RunState],
        *,
        expose_frames: bool = False,
    ) -> None:
        """`port` 0 takes any free one (see `port` after `start`). `state` is called per request, from other threads."""
        self.port = port
        self._host = host
        self.state = state
        self.expose_frames = expose_frames
        self.frames = FrameSource(run_id)
        self.streams = threading.BoundedSemaphore(MAX_STREAMS)
        self.closing = threading.Event()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(RunCollector(state, lambda: metrics.read(run_id)))
        self._pages: dict[str, tuple[float, bytes]] = {}
        self._pages_lock = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._server = _Server(self._host, self.port, self)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="exporter", daemon=True)
        self._thread.start()

    def page(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the form that a caller asks for, and that form's name."""
        encoder, content_type = choose_encoder(accept)
        with self._pages_lock:
            made, page = self._pages.get(content_type, (-math.inf, b""))
            if time.monotonic() - made > PAGE_SECONDS:
                page = encoder(self.registry)
                self._pages[content_type] = time.monotonic(), page
            return page, content_type

    def close(self) -> None:
        """Stop listening and end the streams. Safe to call twice, and before `start`."""
        self.closing.set()
        if self._server is not None and self._thread is not None:
            self._thread.join()
            self._server.server_close()
            self._server = None
        self.frames.close()


class FrameSource:
    """The newest frame of a run, encoded. Follows the ring when it appears, is replaced, or goes away.

    Callers share one encoding per frame and format, so ten viewers cost as much as one.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._lock = threading.Lock()
        self._reader: RingReader | None = None
        self._encoded: dict[str, tuple[int, bytes]] = {}

    def encoded(self, image_format: str) -> tuple[int, bytes] | None:
        """The newest frame's number and its bytes as "PNG" or "JPEG"; None when there is no frame."""
        with self._lock:
            frame = self._latest()
            if frame is None:
                return None
            cached = self._encoded.get(image_format)
            if cached is None or cached[0] != frame.number:
                cached = self._encoded[image_format] = (frame.number, _encode(frame, image_format))
            return cached

    def close(self) -> None:
        with self._lock:
            self._detach()

    def _latest(self) -> Frame | None:
        try:
            if self._reader is not None and not self._reader.is_current():
                self._detach()
            if self._reader is None:
                self._reader = RingReader(self._run_id)
            frame = self._reader.latest_frame()
        except OSError:  # no ring yet, or frames are off
            return None
        if (
            frame is None
            or len(frame.data) != frame.width * frame.height * frame.channels
            or frame.channels not in (3, 4)
        ):
            return None
        return frame

    def _detach(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._encoded.clear()


def _encode(frame: Frame, image_format: str) -> bytes:
    from PIL import Image  # only callers of frames pay for it

    image = Image.frombuffer("RGB" if frame.channels == 3 else "RGBA", (frame.width, frame.height), frame.data)
    out = io.BytesIO()
    if image_format == "PNG":
        image.save(out, "PNG", compress_level=1)
    else:
        image.convert("RGB").save(out, "JPEG", quality=80)
    return out.getvalue()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, host: str, port: int, exporter: Exporter) -> None:
        self.exporter = exporter
        self._gate = Gate()
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        """The time by which each connection has to be over."""
        if host == EVERYWHERE and not socket.has_dualstack_ipv6():
            host = "0.0.0.0"  # noqa: S104 - as asked for, by a kernel that knows no other
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the reverse name lookup that the standard server makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. The kernel would keep megabytes that nobody reads, for each of them, on the pod's account.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def serve_forever(self, poll_interval: float = 0.2) -> None:
        """Until the exporter closes. The standard loop spends ten times as much on a connection that is refused."""
        self.socket.settimeout(poll_interval)
        looked = time.monotonic()
        while not self.exporter.closing.is_set():
            if time.monotonic() - looked >= poll_interval:
                looked = time.monotonic()
                self._hang_up_on_the_late(looked)
            try:
                request, address = self.socket.accept()
            except TimeoutError:
                continue
            except OSError as error:  # the caller has left already, or there are no descriptors to be had
                log.debug("exporter: a connection was lost: %s", error)
                self.exporter.closing.wait(0.05)
                continue
            if self._gate.admit(address[0]):
                self._serve(request, address)
                continue
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_FAREWELL)
            request.close()
            if rest := self._gate.rest():
                self.exporter.closing.wait(rest)

    def _serve(self, request: socket.socket, address: Any) -> None:
        with self._lock:
            self._deadlines[request] = time.monotonic() + REQUEST_SECONDS
        try:
            self.process_request(request, address)
        except RuntimeError:  # no thread to be had
            self._forget(request, address)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request, client_address)

    def _hang_up_on_the_late(self, now: float) -> None:
        with self._lock:
            late = [request for request, deadline in self._deadlines.items() if now > deadline]
        for request in late:
            with contextlib.suppress(OSError):  # it has just ended by itself
                request.shutdown(socket.SHUT_RDWR)

    def may_go_on(self, request: socket.socket) -> None:
        """This connection is a stream: it ends with its viewer, not with the time of a request."""
        with self._lock:
            if request in self._deadlines:
                self._deadlines[request] = math.inf

    def _forget(self, request: socket.socket, address: Any) -> None:
        with self._lock:
            self._deadlines.pop(request, None)
        self._gate.leave(address[0])

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """A caller that hangs up or stalls is its own affair; anything else is a fault of ours and goes to the log."""
        expected = isinstance(sys.exception(), ConnectionError | TimeoutError)
        log.log(logging.DEBUG if expected else logging.WARNING, "exporter: a request failed", exc_info=True)


class _Bounded(io.RawIOBase):
    """What a caller says, up to a bound: the standard server would take megabytes of headers."""

    def __init__(self, raw: io.RawIOBase, left: int) -> None:
        self._raw = raw
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._left <= 0:
            raise ConnectionAbortedError("the request is too large")
        count = self._raw.readinto(memoryview(buffer)[: self._left])
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "cleanrl-worker"
    sys_version = ""
    timeout = SOCKET_TIMEOUT

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        plain: Any = self.connection.makefile("rb", buffering=0)
        self.rfile = io.BufferedReader(_Bounded(plain, MAX_REQUEST_BYTES))

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._healthz()
        elif path in ("/", "/frame.png", "/stream"):
            if not self._may_see_frames():
                self._answer(HTTPStatus.FORBIDDEN, b"frames are served on the loopback interface only\n")
            elif path == "/":
                page = importlib.resources.files(__package__).joinpath("page.html").read_bytes()
                self._answer(HTTPStatus.OK, page, "text/html; charset=utf-8", PAGE_POLICY)
            elif path == "/frame.png":
                self._frame()
            else:
                self._stream()
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"known paths: / /metrics /healthz /frame.png /stream\n")

    do_HEAD = do_GET  # noqa: N815 - the base class looks for this name

    def _metrics(self) -> None:
        page, content_type = self.server.exporter.page(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, page, content_type)

    def _healthz(self) -> None:
        state = self.server.exporter.state()
        status = HTTPStatus.OK if state.healthy else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, state.health_message.encode() + b"\n")

    def _frame(self) -> None:
        newest = self.server.exporter.frames.encoded("PNG")
        if newest is None:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"no frame: none yet, or frames are off for this run\n")
        else:
            self._answer(HTTPStatus.OK, newest[1], "image/png")

    def _stream(self) -> None:
        exporter = self.server.exporter
        if not exporter.streams.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"at most {MAX_STREAMS} streams at a time\n".encode())
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={_BOUNDARY}")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command == "HEAD":
                return
            self.server.may_go_on(self.connection)
            # A small send buffer keeps a slow viewer on fresh frames instead of a backlog.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
            self._send_frames(exporter)
        finally:
            exporter.streams.release()

    def _send_frames(self, exporter: Exporter) -> None:
        shown: int | None = None
        checked = time.monotonic()
        while not exporter.closing.wait(STREAM_INTERVAL):
            newest = exporter.frames.encoded("JPEG")
            if newest is not None and newest[0] != shown:
                shown, jpeg = newest
                part = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                self.wfile.write(part.encode() + jpeg + b"\r\n")
                checked = time.monotonic()
            elif time.monotonic() - checked > 1.0:
                checked = time.monotonic()
                if self._viewer_left():
                    return

    def _viewer_left(self) -> bool:
        """With no new frame there is no write that would fail: ask the socket whether the viewer hung up."""
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1)
        except BlockingIOError:
            return False
        finally:
            self.connection.settimeout(self.timeout)

    def _may_see_frames(self) -> bool:
        if self.server.exporter.expose_frames:
            return True
        ours, theirs = self.connection.getsockname()[0], self.client_address[0]
        # The name in the Host header shuts out web pages that point a host name of theirs at this machine.
        return _is_loopback(ours) and _is_loopback(theirs) and _is_local_name(self.headers.get("Host", ""))

    def _answer(
        self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8", policy: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        log.debug("exporter: %s " + format, self.client_address[0], *args)


def _is_loopback(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def _is_local_name(host_header: str) -> bool:
    """True for localhost and loopback addresses, with or without a port, and for a caller that names no host."""
    host = host_header.strip()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name in ("", "localhost") or _is_loopback(name)

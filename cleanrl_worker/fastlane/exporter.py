"""One HTTP port for a run: `/metrics`, `/healthz`, and the pictures `/frame.png` and `/stream`.

    exporter = Exporter(run_id, "0.0.0.0", 9090, state=lambda: RunState(...))
    exporter.start()
    ...
    exporter.close()

Runs in threads of the supervisor and imports neither torch nor numpy. Metrics and health are for the cluster;
pictures show what a tenant trains, so they are answered only to callers on the loopback interface (`kubectl
port-forward` is one) unless `expose_frames` is set. Callers are strangers: GET and HEAD only, short requests, a socket
timeout, a bound on open connections and a smaller one on streams. Each connection has its own thread, so a slow caller
delays nobody else.
"""

from __future__ import annotations

import io
import ipaddress
import logging
import socket
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
from cleanrl_worker.fastlane.ring import Frame, RingReader

__all__ = ["Exporter", "RunState"]

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
MAX_STREAMS = 4
SOCKET_TIMEOUT = 10.0
STREAM_INTERVAL = 0.1
_BOUNDARY = "frame"


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
        self._server: _Server | None = None

    def start(self) -> None:
        self._server = _Server(self._host, self.port, self)
        self.port = self._server.server_address[1]
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="exporter", daemon=True
        ).start()

    def close(self) -> None:
        """Stop listening and end the streams. Safe to call twice, and before `start`."""
        self.closing.set()
        if self._server is not None:
            self._server.shutdown()
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
    request_queue_size = 64

    def __init__(self, host: str, port: int, exporter: Exporter) -> None:
        self.exporter = exporter
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without the reverse name lookup that the standard server makes."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """A caller that hangs up or stalls is its own affair; anything else is a fault of ours and goes to the log."""
        expected = isinstance(sys.exception(), ConnectionError | TimeoutError)
        log.log(logging.DEBUG if expected else logging.WARNING, "exporter: a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "cleanrl-worker"
    sys_version = ""
    timeout = SOCKET_TIMEOUT

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._healthz()
        elif path in ("/frame.png", "/stream"):
            if not self._may_see_frames():
                self._answer(HTTPStatus.FORBIDDEN, b"frames are served on the loopback interface only\n")
            elif path == "/frame.png":
                self._frame()
            else:
                self._stream()
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"known paths: /metrics /healthz /frame.png /stream\n")

    do_HEAD = do_GET  # noqa: N815 - the base class looks for this name

    def _metrics(self) -> None:
        encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
        self._answer(HTTPStatus.OK, encoder(self.server.exporter.registry), content_type)

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

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
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

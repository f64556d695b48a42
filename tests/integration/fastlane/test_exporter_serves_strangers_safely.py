from __future__ import annotations

import contextlib
import http.client
import importlib.resources
import io
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cleanrl_worker.fastlane import exporter as exporter_module
from cleanrl_worker.fastlane import gate
from cleanrl_worker.fastlane.collector import run_metrics
from cleanrl_worker.fastlane.exporter import Exporter, RunState
from cleanrl_worker.fastlane.metrics import Snapshot
from cleanrl_worker.fastlane.publisher import Publisher
from cleanrl_worker.fastlane.settings import FastLaneSettings


def hung_up(connection: socket.socket) -> bool:
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


class Harness:
    def __init__(self, run_id: str) -> None:
        self.state = RunState(info={"run_id": run_id}, step=5, total_steps=10)
        self.publisher = Publisher(FastLaneSettings(run_id, True, "single", 0, 1, 1, 0.0, 256))
        self.exporter = Exporter(run_id, "::", 0, lambda: self.state)
        self.exporter.start()

    def get(self, path: str, host: str = "127.0.0.1", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://{host}:{self.exporter.port}{path}", headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@pytest.fixture
def harness(run_id: str, shm: Path) -> Iterator[Harness]:
    made = Harness(run_id)
    yield made
    made.exporter.close()
    made.publisher.close()


def own_address() -> str:
    """An address of this machine that is not loopback; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has only a loopback interface")
        return str(probe.getsockname()[0])


def test_metrics_come_from_the_run(harness: Harness) -> None:
    harness.publisher.step(7, 1.5)
    harness.publisher.episode(3.0, 4)
    harness.publisher.close()
    status, page = harness.get("/metrics")
    assert status == 200
    for line in (
        b"cleanrl_worker_env_steps_total 5.0",
        b"cleanrl_worker_rolling_return 3.0",
        b"cleanrl_worker_progress_ratio 0.5",
    ):
        assert line in page


def test_health_follows_the_supervisor(harness: Harness) -> None:
    assert harness.get("/healthz") == (200, b"ok\n")
    harness.state = RunState(healthy=False, health_message="no step for 700 s")
    assert harness.get("/healthz") == (503, b"no step for 700 s\n")


def test_frame_is_a_png_of_the_newest_frame(harness: Harness) -> None:
    assert harness.get("/frame.png")[0] == 503
    for value, shape in ((10, (6, 8, 3)), (20, (6, 8, 3)), (30, (12, 4, 3))):  # the last one replaces the ring
        harness.publisher.frame(np.full(shape, value, np.uint8))
        status, body = harness.get("/frame.png")
        assert status == 200
        picture = Image.open(io.BytesIO(body))
        assert picture.size == (shape[1], shape[0])
        assert picture.getpixel((0, 0)) == (value, value, value)


def test_stream_sends_each_new_frame(harness: Harness) -> None:
    harness.publisher.frame(np.full((8, 8, 3), 40, np.uint8))
    connection = http.client.HTTPConnection("127.0.0.1", harness.exporter.port, timeout=10)
    connection.request("GET", "/stream")
    answer = connection.getresponse()
    assert answer.getheader("Content-Type") == "multipart/x-mixed-replace; boundary=frame"
    for value in (40, 200):
        head = answer.readline() + answer.readline() + answer.readline() + answer.readline()
        assert head.startswith(b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: ")
        length = int(head.split(b"Content-Length: ")[1])
        picture = Image.open(io.BytesIO(answer.read(length)))
        assert abs(picture.getpixel((4, 4))[0] - value) < 5  # type: ignore[index]
        answer.readline()
        harness.publisher.frame(np.full((8, 8, 3), 200, np.uint8))
    connection.close()


def test_frames_are_for_loopback_only_metrics_are_not(harness: Harness) -> None:
    harness.publisher.frame(np.zeros((4, 4, 3), np.uint8))
    address = own_address()
    assert harness.get("/metrics", address)[0] == 200
    assert harness.get("/healthz", address)[0] == 200
    assert harness.get("/frame.png", address)[0] == 403
    assert harness.get("/stream", address)[0] == 403
    assert harness.get("/frame.png")[0] == 200


def test_a_web_page_with_a_name_of_its_own_sees_no_frames(harness: Harness) -> None:
    harness.publisher.frame(np.zeros((4, 4, 3), np.uint8))
    assert harness.get("/frame.png", headers={"Host": "evil.example:80"})[0] == 403
    assert harness.get("/frame.png", headers={"Host": "localhost:1"})[0] == 200


def test_addresses_of_both_families_are_served_alike(harness: Harness) -> None:
    harness.publisher.frame(np.zeros((8, 8, 3), dtype=np.uint8))
    try:
        socket.create_connection(("::1", harness.exporter.port), timeout=10).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    for host in ("127.0.0.1", "[::1]"):
        assert harness.get("/metrics", host)[0] == 200, "the kubelet of a cluster of either kind sees the worker alive"
        assert harness.get("/frame.png", host)[0] == 200, "and so does who forwards a port"


def test_a_kernel_without_the_newer_family_is_no_reason_not_to_serve(
    run_id: str, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    exporter = Exporter(run_id, "::", 0, RunState)
    exporter.start()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/healthz", timeout=10) as answer:
            assert answer.status == 200
    finally:
        exporter.close()


def test_frames_can_be_exposed_on_purpose(run_id: str, shm: Path) -> None:
    publisher = Publisher(FastLaneSettings(run_id, True, "single", 0, 1, 1, 0.0, 256))
    publisher.frame(np.zeros((4, 4, 3), np.uint8))
    exporter = Exporter(run_id, "0.0.0.0", 0, RunState, expose_frames=True)
    exporter.start()
    try:
        with urllib.request.urlopen(f"http://{own_address()}:{exporter.port}/frame.png", timeout=10) as answer:
            assert answer.status == 200
    finally:
        exporter.close()
        publisher.close()


def test_streams_are_bounded_and_leave_room_for_scrapes(harness: Harness) -> None:
    harness.publisher.frame(np.zeros((4, 4, 3), np.uint8))
    viewers = []
    for _ in range(exporter_module.MAX_STREAMS):
        viewer = http.client.HTTPConnection("127.0.0.1", harness.exporter.port, timeout=10)
        viewer.request("GET", "/stream")
        assert viewer.getresponse().readline() == b"--frame\r\n"
        viewers.append(viewer)
    assert harness.get("/stream")[0] == 503
    assert harness.get("/metrics")[0] == 200
    for viewer in viewers:
        viewer.close()


def test_silent_callers_take_no_more_than_their_share(harness: Harness) -> None:
    """More connections than allowed, none of which says a word: the surplus is closed, and the port keeps answering."""
    silent = [socket.create_connection(("127.0.0.1", harness.exporter.port)) for _ in range(gate.MAX_CONNECTIONS + 8)]
    assert all(hung_up(connection) for connection in silent[-8:])
    for connection in silent:
        connection.close()
    deadline = time.monotonic() + 30
    while (
        time.monotonic() < deadline
    ):  # the freed places come back as the threads notice, and the caller's turns in time
        try:
            if harness.get("/metrics")[0] == 200:
                return
        except (OSError, http.client.HTTPException):
            time.sleep(0.2)
    pytest.fail("the exporter never recovered")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\n\r\n",
        b"\0\xff\xfe\r\n\r\n",
    ],
)
def test_malformed_requests_are_refused(harness: Harness, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", harness.exporter.port), timeout=10) as connection:
        try:
            connection.sendall(request_bytes)
            answer = connection.recv(64)
        except ConnectionError:  # refused before it was read to the end
            answer = b""
        assert b" 200 " not in answer
    assert harness.get("/healthz")[0] == 200


def test_a_taken_port_is_an_error_at_start(harness: Harness) -> None:
    second = Exporter("other", "0.0.0.0", harness.exporter.port, RunState)
    with pytest.raises(OSError, match="in use"):
        second.start()
    second.close()


def test_close_frees_the_port_and_may_be_repeated(harness: Harness) -> None:
    harness.exporter.close()
    harness.exporter.close()
    with pytest.raises(OSError, match="refused"):
        harness.get("/healthz")


def test_the_exporter_imports_neither_torch_nor_numpy() -> None:
    import subprocess
    import sys

    program = "import sys, cleanrl_worker.fastlane.exporter; print({'torch', 'numpy', 'gymnasium'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


def test_the_page_shows_the_run_and_asks_nobody_else(harness: Harness) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", harness.exporter.port, timeout=10)
    connection.request("GET", "/")
    answer = connection.getresponse()
    page = answer.read().decode()
    assert answer.status == 200
    assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
    assert '"/stream?"' in page
    assert "http" not in page.replace("httpd", ""), "nothing is fetched from elsewhere"
    assert harness.get("/", own_address())[0] == 403, "what shows frames is for loopback, as frames are"


def test_the_page_names_figures_that_exist() -> None:
    page = importlib.resources.files("cleanrl_worker.fastlane").joinpath("page.html").read_text()
    state = RunState(info={"run_id": "r"}, step=1, total_steps=2, checkpoint_at=0.0)
    snapshot = Snapshot(1, 1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    known = {sample.name for family in run_metrics(state, snapshot, 0.0) for sample in family.samples}
    assert set(re.findall(r"cleanrl_worker_\w+", page)) <= known


def test_one_caller_leaves_room_for_others(harness: Harness) -> None:
    greedy = [socket.create_connection(("127.0.0.1", harness.exporter.port)) for _ in range(gate.MAX_CONNECTIONS * 2)]
    try:
        assert hung_up(greedy[gate.MAX_PER_CALLER])
        assert harness.get("/metrics", own_address())[0] == 200
    finally:
        for connection in greedy:
            connection.close()


def test_threads_are_bounded_however_many_call(harness: Harness) -> None:
    import threading

    before = threading.active_count()
    callers = []
    for _ in range(1000):
        try:
            callers.append(socket.create_connection(("127.0.0.1", harness.exporter.port), timeout=1))
        except OSError:  # the queue is full: refused by the kernel
            continue
    assert threading.active_count() - before <= gate.MAX_PER_CALLER
    for caller in callers:
        caller.close()


def test_a_caller_who_asks_without_end_is_answered_a_few_times_a_second_and_others_as_ever(harness: Harness) -> None:
    answered = refused = 0
    for _ in range(200):
        try:
            answered += harness.get("/healthz")[0] == 200
        except (OSError, http.client.HTTPException):
            refused += 1
    assert answered >= gate.BURST - 1
    assert refused > answered, "it was served as often as it liked"
    assert harness.get("/metrics", own_address())[0] == 200


def test_those_who_come_at_once_get_one_page(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "PAGE_SECONDS", 60.0)
    before = harness.get("/metrics")
    harness.state = RunState(step=6, total_steps=10)
    assert harness.get("/metrics") == before
    monkeypatch.setattr(exporter_module, "PAGE_SECONDS", -1.0)
    assert harness.get("/metrics") != before


def test_what_nobody_reads_does_not_pile_up_in_the_kernel(harness: Harness) -> None:
    taken = []
    for _ in range(gate.MAX_PER_CALLER + 4):  # more than are served: some wait, some are refused
        connection = socket.create_connection(("127.0.0.1", harness.exporter.port), timeout=10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while sent < 10_000_000:
                sent += connection.send(b"x" * 65_536)
        taken.append(sent)
        connection.close()
    assert max(taken) < 1_000_000, taken


def test_headers_without_end_are_cut_off(harness: Harness) -> None:
    with socket.create_connection(("127.0.0.1", harness.exporter.port), timeout=10) as connection:
        sent = 0
        answer = b""
        try:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
            for number in range(90):  # fewer than the standard server's own bound, each below its limit
                connection.sendall(b"X-%d: " % number + b"a" * 60_000 + b"\r\n")
                sent += 60_000
            connection.sendall(b"\r\n")
            answer = connection.recv(64)
        except ConnectionError:
            pass
    assert b" 200 " not in answer
    assert harness.get("/healthz")[0] == 200


def test_a_caller_that_drips_bytes_is_hung_up_on(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time for the socket's timeout; the request as a whole does not."""
    monkeypatch.setattr(exporter_module, "REQUEST_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", harness.exporter.port), timeout=30) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert connection.recv(1) == b"", "it was answered or kept"
    assert harness.get("/healthz")[0] == 200


def test_a_stream_may_go_on_beyond_a_requests_time(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "REQUEST_SECONDS", 0.0)
    harness.publisher.frame(np.full((8, 8, 3), 40, np.uint8))
    server = harness.exporter._server
    assert server is not None
    with monkeypatch.context() as calm:  # the request itself must get through first
        calm.setattr(exporter_module, "REQUEST_SECONDS", 60.0)
        connection = http.client.HTTPConnection("127.0.0.1", harness.exporter.port, timeout=10)
        connection.request("GET", "/stream")
        answer = connection.getresponse()
        assert answer.readline() == b"--frame\r\n"
    assert list(server._deadlines.values()) == [float("inf")]
    connection.close()

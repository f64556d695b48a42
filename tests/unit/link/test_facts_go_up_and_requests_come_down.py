"""The line between supervisor and algorithm carries whole messages both ways and never blocks or fails training."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cleanrl_worker.link import ENV_FD, MAX_LINE, ChildLink, read_lines


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    return ours, theirs


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "did not happen within ten seconds"
        time.sleep(0.005)


def test_facts_arrive_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    supervisor, child = pair
    link = ChildLink(child)
    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(lambda: list(read_lines(supervisor)))
        for step in range(1000):
            link.emit("scalars", step=step, values={"charts/SPS": 1.5})
        link.close()
        received = reading.result(10)
    assert [message["step"] for message in received] == list(range(1000))
    assert received[0] == {"kind": "scalars", "step": 0, "values": {"charts/SPS": 1.5}}


def test_what_was_flushed_is_out_whatever_becomes_of_the_process(pair: tuple[socket.socket, socket.socket]) -> None:
    supervisor, child = pair
    link = ChildLink(child)
    link.emit("finished", step=5)
    link.flush()
    supervisor.setblocking(False)
    assert json.loads(supervisor.recv(MAX_LINE))["kind"] == "finished"
    ChildLink(None).flush()


def test_requests_wait_until_the_loop_looks(pair: tuple[socket.socket, socket.socket]) -> None:
    supervisor, child = pair
    link = ChildLink(child)
    assert not link.requests
    supervisor.sendall(b'{"cmd":"pau')
    supervisor.sendall(b'se"}\n{"cmd":"stop"}\n')
    eventually(lambda: len(link.requests) == 2)
    assert [link.requests.popleft()["cmd"] for _ in range(2)] == ["pause", "stop"]
    link.close()


def test_a_supervisor_that_is_gone_costs_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    supervisor, child = pair
    link = ChildLink(child)
    supervisor.close()
    eventually(lambda: not link.connected)
    link.emit("scalars", step=1)
    link.close()


def test_a_supervisor_that_does_not_read_does_not_stop_training(pair: tuple[socket.socket, socket.socket]) -> None:
    _, child = pair
    link = ChildLink(child)
    for _ in range(2000):
        link.emit("note", message="x" * 1000)
    link.close(timeout=0.05)


def test_without_a_supervisor_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_FD, raising=False)
    link = ChildLink.from_env()
    link.emit("hello")
    assert not link.connected
    assert not link.requests
    link.close()


def test_the_descriptor_is_not_handed_to_grandchildren(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, child = pair
    monkeypatch.setenv(ENV_FD, str(child.detach()))
    link = ChildLink.from_env()
    assert ENV_FD not in os.environ
    link.emit("hello", pid=1)
    link.close()
    assert list(read_lines(supervisor)) == [{"kind": "hello", "pid": 1}]


def test_noise_on_the_line_is_skipped_and_a_flood_ends_it(pair: tuple[socket.socket, socket.socket]) -> None:
    supervisor, child = pair
    child.sendall(b'not json\n[1,2]\n"text"\n' + json.dumps({"kind": "note"}).encode() + b"\n")
    messages = read_lines(supervisor)
    assert next(messages) == {"kind": "note"}
    child.sendall(b"y" * (MAX_LINE + 1))
    child.shutdown(socket.SHUT_WR)
    assert list(messages) == []

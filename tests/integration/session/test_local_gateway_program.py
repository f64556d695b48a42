"""The gateway that people start by hand: prints what it hears, obeys what it is told."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cleanrl_worker.session import Desired

RUN = "01JD0000000000000000000000"
PATIENCE = 30.0


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "cleanrl_protocol.localgateway", "--port", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_it_shows_events_and_passes_commands_on(
    program: subprocess.Popen[str], start_worker: Callable[..., Any]
) -> None:
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    match = re.search(r"listening on (\S+)", program.stderr.readline())
    assert match is not None
    wishes: queue.Queue[Desired] = queue.Queue()
    worker = start_worker(match[1], on_desired=wishes.put)
    assert wishes.get(timeout=PATIENCE) == Desired()
    program.stdin.write("what\n")
    program.stdin.flush()
    assert "commands: pause" in program.stderr.readline()
    for command, expected in (
        ("pause", Desired(1, pause=True)),
        (f"resume {RUN}", Desired(2)),
        ("checkpoint", Desired(3, checkpoint_request=True)),
        ("stop", Desired(4, stop=True, stop_reason="cancel")),
    ):
        program.stdin.write(f"{command}\n")
        program.stdin.flush()
        assert wishes.get(timeout=PATIENCE) == expected
    worker.emit("run_cancelled", step=3)
    assert worker.session.close(PATIENCE)
    assert json.loads(program.stdout.readline()) == {
        "event": "run_cancelled",
        "number": 1,
        "payload": {"step": 3},
        "run_id": RUN,
    }


def test_a_taken_port_is_a_sentence(program: subprocess.Popen[str]) -> None:
    assert program.stderr is not None
    port = program.stderr.readline().rpartition(":")[2].strip()
    second = subprocess.run(
        [sys.executable, "-m", "cleanrl_protocol.localgateway", "--port", port], capture_output=True, text=True
    )
    assert second.returncode == 1
    assert "choose another with --port" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_gateway_killed_outright_is_waited_for(
    program: subprocess.Popen[str], start_worker: Callable[..., Any]
) -> None:
    assert program.stderr is not None
    assert program.stdout is not None
    port = program.stderr.readline().rpartition(":")[2].strip()
    worker = start_worker(f"127.0.0.1:{port}")
    for _ in range(3):
        worker.emit("heartbeat")
    for _ in range(3):
        program.stdout.readline()
    program.kill()
    program.wait()
    worker.emit("run_completed")
    with subprocess.Popen(
        [sys.executable, "-m", "cleanrl_protocol.localgateway", "--port", port],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as successor:
        assert worker.session.close(PATIENCE)
        assert successor.stdout is not None
        numbers = [json.loads(successor.stdout.readline())["number"] for _ in range(4)]
        successor.kill()
    assert numbers == [1, 2, 3, 4], "the successor knew nothing and was told everything"

"""Pause, checkpoint, stop and fencing from a real gateway reach the algorithm; without a gateway the run goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from cleanrl_protocol.localgateway import Faults, LocalGateway

Start = Callable[..., Any]
LONG = {"steps": 100_000, "step_seconds": 0.01}


@pytest.fixture
def gateway() -> Iterator[LocalGateway]:
    running = LocalGateway().start()
    yield running
    running.stop()


@pytest.fixture
def attended(start: Start, gateway: LocalGateway) -> Callable[..., Any]:
    def begin(run_id: str, *flags: str, **options: Any) -> Any:
        target = f"127.0.0.1:{gateway.port}"
        return start("--grpc", "--grpc-target", target, "--run-id", run_id, *flags, **options)

    return begin


def test_the_gateway_hears_all_of_it(attended: Start, gateway: LocalGateway) -> None:
    run = attended("heard", steps=20, step_seconds=0.01)
    assert run.wait() == 0, run.stderr
    known = gateway.runs["heard"]
    assert known.names[0] == "run_started"
    assert known.names[-1] == "run_completed"
    assert known.numbers[-1] == run.last()["seq"]
    request = known.registrations[0]
    assert (request.algo, request.env_id) == ("plugin.standin", "Nowhere-v0")
    assert request.supports_pause
    assert '"worker_type":"cleanrl"' in request.capabilities_json


@pytest.mark.parametrize(("said", "heard"), [(3, 3), ("4", 4), (True, 1), (-1, 1), (2**40, 1), ("1.0.0", 1), (None, 1)])
def test_whatever_version_a_form_has_the_worker_registers(
    attended: Start, gateway: LocalGateway, said: Any, heard: int
) -> None:
    run = attended("versioned", "--extras", json.dumps({"schema_version": said}))
    assert run.wait() == 0, run.stderr
    assert gateway.runs["versioned"].registrations[0].schema_version == heard


def test_pause_keeps_the_process_and_resume_goes_on(attended: Start, gateway: LocalGateway) -> None:
    run = attended("paused", **LONG)
    run.until(lambda: "scalars" in run.names())
    gateway.want("paused", pause=True)
    run.until(lambda: "run_paused" in run.names())
    paused = next(event for event in run.events() if event["event"] == "run_paused")
    assert paused["payload"]["checkpoint"]
    gateway.want("paused", pause=False)
    run.until(lambda: "run_resumed" in run.names())
    at = len(run.events())
    run.until(lambda: "scalars" in run.names()[at:])


def test_a_checkpoint_on_request(attended: Start, gateway: LocalGateway) -> None:
    run = attended("asked", **LONG)
    run.until(lambda: "scalars" in run.names())
    gateway.want("asked", checkpoint_request=1)
    run.until(lambda: "checkpoint_saved" in run.names())


def test_each_request_for_a_checkpoint_is_heard(attended: Start, gateway: LocalGateway) -> None:
    run = attended("asked-again", **LONG)
    run.until(lambda: "scalars" in run.names())
    for number in (1, 2, 3):
        gateway.want("asked-again", checkpoint_request=number)
        run.until(lambda number=number: run.names().count("checkpoint_saved") == number)


def test_figures_come_when_they_are_asked_for(attended: Start, gateway: LocalGateway) -> None:
    run = attended("paced", env={"CLEANRL_SCALARS_SECONDS": "3600"}, **LONG)
    run.until(lambda: "paced" in gateway.runs and "scalars" in gateway.runs["paced"].names)
    gateway.pace("paced", 0.5)
    run.until(lambda: gateway.runs["paced"].names.count("scalars") >= 4)
    gateway.pace("paced", 0.0)
    run.until(lambda: run.process.poll() is None and "heartbeat" in run.names())


@pytest.mark.parametrize("nonsense", [float("nan"), -1.0, 0.0])
def test_nonsense_from_a_gateway_keeps_no_figures_back(attended: Start, gateway: LocalGateway, nonsense: float) -> None:
    run = attended("nonsense", **LONG)
    run.until(lambda: "nonsense" in gateway.runs and "scalars" in gateway.runs["nonsense"].names)
    gateway.pace("nonsense", nonsense)
    at = gateway.runs["nonsense"].names.count("scalars")
    run.until(lambda: gateway.runs["nonsense"].names.count("scalars") > at + 3)


def test_a_script_that_never_speaks_is_frozen(attended: Start, gateway: LocalGateway) -> None:
    run = attended("frozen", silent=True, grandchild=True, **LONG)
    log = run.folder / "logs" / "cleanrl.stdout.log"
    run.until(lambda: log.exists() and "stepping" in log.read_text())
    gateway.want("frozen", pause=True)
    run.until(lambda: "run_paused" in run.names())
    child, grandchild = run.child(), int((run.folder / "grandchild.pid").read_text())
    run.until(lambda: _state(child) == _state(grandchild) == "T")
    gateway.want("frozen", pause=False)
    run.until(lambda: "run_resumed" in run.names())
    run.until(lambda: _state(child) != "T" and _state(grandchild) != "T")
    gateway.want("frozen", pause=True)
    run.until(lambda: _state(child) == "T")
    run.process.terminate()
    assert run.wait() == 143, "a frozen process is woken to stop"


@pytest.mark.parametrize(
    ("reason", "outcome", "code"),
    [("cancel", "canceled", 0), ("suspend", "suspended", 0), ("deadline", "deadline_exceeded", 124)],
)
def test_stop_has_a_reason(attended: Start, gateway: LocalGateway, reason: str, outcome: str, code: int) -> None:
    run = attended(reason, **LONG)
    run.until(lambda: "scalars" in run.names())
    gateway.want(reason, stop=True, stop_reason=reason)
    assert run.wait() == code, run.stderr
    payload = run.last()["payload"]
    assert (run.last()["event"], payload["outcome"]) == ("run_cancelled", outcome)
    assert payload["checkpoint_confirmed"] is True
    assert gateway.runs[reason].names[-1] == "run_cancelled"


def test_a_suspended_run_goes_on_by_itself(attended: Start, gateway: LocalGateway, tmp_path: Path) -> None:
    first = attended("again", folder=tmp_path / "suspended", **LONG)
    first.until(lambda: "scalars" in first.names())
    gateway.want("again", stop=True, stop_reason="suspend")
    assert first.wait() == 0
    gateway.want("again", stop=False)
    at = first.last()["payload"]["step"]
    second = attended("again", folder=tmp_path / "suspended", steps=at + 2)
    assert second.wait() == 0, second.stderr
    begun = [event["payload"] for event in second.events() if event["event"] == "training_started"]
    assert begun[-1] == {"step": at, "resumed": True}


def test_a_worker_whose_time_is_over_stops(attended: Start, gateway: LocalGateway) -> None:
    run = attended("fenced", **LONG)
    run.until(lambda: "scalars" in run.names())
    gateway.faults = Faults(refuse=(grpc.StatusCode.FAILED_PRECONDITION, "attempt 2 has taken over"))
    port = gateway.port
    gateway.stop()
    gateway.start(port)
    assert run.wait() == 1
    assert (run.last()["payload"]["reason"], run.last()["payload"]["outcome"]) == ("Fenced", "canceled")


def test_without_a_gateway_the_run_goes_on(start: Start) -> None:
    run = start("--grpc", "--grpc-target", "127.0.0.1:1", steps=5)
    assert run.wait() == 0, run.stderr
    assert run.last()["event"] == "run_completed"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_metrics_and_health_are_served(start: Start, look: SimpleNamespace) -> None:
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = start("--metrics-port", str(port), **LONG)
    run.until(lambda: "scalars" in run.names())
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    assert "cleanrl_worker_env_steps_total" in text
    assert 'algo="plugin.standin"' in text
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10).status == 200
    taken = start("--metrics-port", str(port))
    assert taken.wait() == 1
    assert f"metrics port {port}" in taken.stderr

"""Kill -9, errors on every kind of call, lost answers, cut watches, an API server that is away: every run still ends as it
should, with one pod per attempt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

STATUS = "/cleanrlruns/[^/]+/status$"
PODS = "/namespaces/[^/]+/pods$"
RUNS = "/apis/mosaic.dev/v1alpha1"
ATTEMPT = "mosaic.dev/attempt"


@pytest.fixture(scope="module")
def fragile(make_operator: Any) -> Iterator[Any]:
    """An operator that reaches the API server through the fault proxy."""
    operator = make_operator("fragile", faulty=True, operator_class="fragile", lease_seconds=20).start()
    yield operator
    assert operator.stop() == 0


@pytest.fixture
def shaky(make_lab: Any, fragile: Any) -> Any:
    return make_lab(fragile.gateway_port, operator_class="fragile")


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500, "method": "POST", "path": PODS, "times": 2},
        {"status": 429, "retry_after": 1, "method": "POST", "path": PODS, "times": 1},
        {"action": "lose-answer", "method": "POST", "path": PODS, "times": 1},
        {"status": 500, "method": "PATCH", "path": STATUS, "times": 3},
        {"status": 409, "method": "PATCH", "path": STATUS, "times": 2},
        {"action": "lose-answer", "method": "PATCH", "path": STATUS, "times": 2},
        {"action": "cut", "method": "PATCH", "path": STATUS, "times": 2},
        {"action": "cut-stream", "verb": "watch", "times": 4},
    ],
    ids=lambda fault: f"{fault.get('action', fault.get('status'))} {fault.get('path', 'watch').split('/')[-1]}",
)
def test_errors_on_any_call(shaky: Any, cluster: Any, fault: dict[str, Any]) -> None:
    with cluster.faults.fault(**fault) as struck:
        shaky.create("run")
        worker = shaky.execute("run")
        assert struck.struck > 0
        worker.emit("run_completed")
        assert worker.session.close(30)
        shaky.end_pod("run", outcome="completed", last_step=1000)
        end = shaky.until("run", fsmState="TERM", outcome="completed")
    assert end["attempt"] == 1
    assert len(shaky.pods("run")) == 1
    assert shaky.walked("run") == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]


def test_killed_between_the_pod_and_the_status_that_names_it(make_lab: Any, make_operator: Any, cluster: Any) -> None:
    operator = make_operator("killed", faulty=True, operator_class="killed").start()
    lab = make_lab(operator.gateway_port, operator_class="killed")
    with cluster.faults.fault("cut", method="PATCH", path=f"{lab.namespace}{STATUS}"):
        lab.create("run")
        wait_for(lambda: lab.pods("run"))
        operator.kill()
    assert "podUID" not in lab.status("run")
    (pod,) = lab.pods("run")
    operator.start()
    found = lab.until("run", fsmState="INIT", attempt=1)
    assert found["podUID"] == pod["metadata"]["uid"]
    assert found["claimUID"]

    # The same at a retry, where the status still says FAULT when the next pod exists already.
    lab.edit("run", retry={"limit": 3, "backoffSeconds": 1})
    lab.start_pod("run")
    lab.end_pod("run", exit_code=1)
    lab.until("run", fsmState="FAULT")
    with cluster.faults.fault("cut", method="PATCH", path=f"{lab.namespace}{STATUS}"):
        wait_for(lambda: len(lab.pods("run")) == 2)
        operator.kill()
    operator.start()
    after = lab.until("run", fsmState="INIT", attempt=2)
    assert {pod["metadata"]["uid"] for pod in lab.pods("run")} == {pod["metadata"]["uid"], after["podUID"]}
    assert operator.stop() == 0


def test_what_is_wanted_while_no_status_names_the_pod_reaches_it(shaky: Any, cluster: Any) -> None:
    def created_unnoticed(name: str, number: int, **wanted: Any) -> None:
        with cluster.faults.fault("cut", method="PATCH", path=f"{name}/status$"):
            if shaky.api.answers(f"{RUNS}/namespaces/{shaky.namespace}/cleanrlruns/{name}"):
                shaky.edit(name, suspend=False)
            else:
                shaky.create(name)
            wait_for(lambda: number in [int(pod["metadata"]["labels"][ATTEMPT]) for pod in shaky.pods(name)])
            shaky.edit(name, **wanted)

    for name in ("suspended", "canceled"):
        created_unnoticed(name, 1, suspend=True)
        after = shaky.until(name, fsmState="PAUSE", attempt=1)
        assert "podUID" not in after
        assert shaky.pods(name) == [], "suspended, it holds no pod"
    created_unnoticed("suspended", 2, suspend=True)
    shaky.until("suspended", fsmState="PAUSE", attempt=2)
    created_unnoticed("canceled", 2, cancel=True)
    shaky.until("canceled", fsmState="TERM", outcome="canceled")
    for name in ("suspended", "canceled"):
        assert shaky.pods(name) == []
        assert shaky.status(name).get("retries", 0) == 0


def test_a_stop_that_could_not_be_written_down_costs_nothing(shaky: Any, cluster: Any) -> None:
    shaky.create("run", retry={"limit": 0})
    shaky.until("run", reason="Unschedulable")
    with cluster.faults.fault("cut", method="PATCH", path="run/status$") as struck:
        shaky.edit("run", suspend=True)
        wait_for(lambda: struck.struck > 1)
        shaky.edit("run", suspend=False)
    time.sleep(1)
    found = shaky.status("run")
    assert (found["fsmState"], found["attempt"], found.get("retries", 0)) == ("INIT", 1, 0)
    assert [pod["metadata"]["uid"] for pod in shaky.pods("run")] == [found["podUID"]]


def test_an_operator_that_was_away_finds_what_happened_meanwhile(make_lab: Any, make_operator: Any) -> None:
    operator = make_operator("away", operator_class="away").start()
    lab = make_lab(operator.gateway_port, operator_class="away")
    for name in ("completes", "fails", "vanishes", "goes-on", "paused"):
        lab.create(name, retry={"limit": 1, "backoffSeconds": 1})
    going = lab.execute("goes-on")
    paused = lab.execute("paused")
    lab.edit("paused", pause=True)
    paused.emit("run_paused")
    lab.until("paused", fsmState="PAUSE")
    for name in ("completes", "fails", "vanishes"):
        lab.start_pod(name)
    operator.kill()
    lab.end_pod("completes", outcome="completed")
    lab.end_pod("fails", exit_code=2, outcome="failed", message="no such flag")
    lab.delete_pod("vanishes")
    lab.create("new")
    going.checkpoint(700)
    operator.start()
    lab.until("completes", fsmState="TERM", outcome="completed")
    lab.until("fails", fsmState="TERM", reason="BadConfig")
    lab.until("vanishes", fsmState="INIT", attempt=2)
    lab.until("new", fsmState="INIT", attempt=1)
    wait_for(lambda: (lab.status("goes-on").get("checkpoint") or {}).get("step") == 700)
    assert lab.status("goes-on")["fsmState"] == "EXEC"
    wait_for(lambda: operator.metric("cleanrl_operator_streams") == 2)
    assert lab.status("paused")["fsmState"] == "PAUSE"
    assert [wish.pause for wish in paused.wishes][-1] is True
    assert lab.walked("paused").count("PAUSE") == 1, "it did not wake up in between"
    assert operator.stop() == 0


def test_an_api_server_that_is_away_ends_the_leader_and_no_run(make_lab: Any, make_operator: Any, cluster: Any) -> None:
    operator = make_operator("outage", faulty=True, operator_class="outage", lease_seconds=5).start()
    lab = make_lab(operator.gateway_port, operator_class="outage")
    lab.create("run")
    worker = lab.execute("run")
    with cluster.faults.outage():
        assert operator.process.wait(30) == 1, "without its lease it must not go on"
        operator.start(wait=False)
        worker.checkpoint(300)
        time.sleep(1)
        assert operator.process.poll() is None, "a start without an API server waits"
    wait_for(lambda: (lab.status("run").get("checkpoint") or {}).get("step") == 300)
    assert lab.walked("run") == ["INIT", "HSHK", "RDY", "EXEC"]
    assert operator.stop() == 0


def wait_for(ask: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.05)

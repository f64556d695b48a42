"""The operator's wall clock jumps, or time passes while nobody looks: no run is judged by that, and none waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

HOUR = 3600.0


def times(lab: Any, name: str) -> list[datetime]:
    return [datetime.fromisoformat(step["at"]) for step in lab.status(name)["transitions"]]


def test_a_clock_set_forth_and_back_ends_nobody(
    make_lab: Any, jumping_operator: tuple[Any, Callable[[float], None]]
) -> None:
    operator, jump = jumping_operator
    lab = make_lab(operator.gateway_port, operator_class="jumping")
    lab.create("run", maxWallclockMinutes=30)
    lab.create("pending", pendingDeadlineSeconds=1800)
    worker = lab.execute("run")
    lab.until("pending", attempt=1)
    for offset, step in ((HOUR, 300), (-HOUR, 600), (2 * HOUR, 900)):
        jump(offset)
        worker.checkpoint(step)
        lab.until("run", fsmState="EXEC")
        for name in ("run", "pending"):
            lab.edit(name, retry={"limit": step // 100})  # makes the operator look at it now
        generation = lab.run("run")["metadata"]["generation"]
        lab.until("run", observedGeneration=generation, fsmState="EXEC")
        lab.until("pending", observedGeneration=lab.run("pending")["metadata"]["generation"], fsmState="INIT")
    lab.end_pod("run", outcome="completed")
    end = lab.until("run", fsmState="TERM", outcome="completed")
    assert end["attempt"] == 1
    assert lab.walked("run") == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]
    assert times(lab, "run") == sorted(times(lab, "run")), "time never runs backwards in a status"


def test_a_retry_comes_though_the_clock_was_set_back(
    make_lab: Any, jumping_operator: tuple[Any, Callable[[float], None]]
) -> None:
    operator, jump = jumping_operator
    lab = make_lab(operator.gateway_port, operator_class="jumping")
    lab.create("run", retry={"limit": 2, "backoffSeconds": 4})
    lab.start_pod("run")
    lab.end_pod("run", exit_code=1)
    lab.until("run", fsmState="FAULT")
    jump(-HOUR)
    lab.until("run", fsmState="INIT", attempt=2)
    lab.start_pod("run")
    lab.end_pod("run", exit_code=1)
    lab.until("run", fsmState="FAULT")
    operator.kill()
    operator.start()  # the same, for an operator that has only the status to go by
    lab.until("run", fsmState="INIT", attempt=3)
    assert times(lab, "run") == sorted(times(lab, "run"))


def test_an_operator_that_was_away_for_an_hour_faults_nobody(
    make_lab: Any, jumping_operator: tuple[Any, Callable[[float], None]]
) -> None:
    operator, jump = jumping_operator
    lab = make_lab(operator.gateway_port, operator_class="jumping")
    lab.create("goes-on")
    lab.create("waits", retry={"limit": 1, "backoffSeconds": 600})
    worker = lab.execute("goes-on")
    lab.start_pod("waits")
    lab.end_pod("waits", exit_code=1)
    lab.until("waits", fsmState="FAULT")
    operator.kill()
    jump(HOUR)
    operator.start()
    lab.until("waits", fsmState="INIT", attempt=2)  # its time has come meanwhile
    worker.checkpoint(900)
    lab.until("goes-on", fsmState="EXEC")
    lab.end_pod("goes-on", outcome="completed")
    assert lab.until("goes-on", fsmState="TERM")["outcome"] == "completed"
    assert lab.walked("goes-on") == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]

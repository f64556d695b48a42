"""From `kubectl apply` to TERM, and what stays true on the way: conditions, Events, progress, checkpoints."""

from __future__ import annotations

import time
from typing import Any


def conditions(status: dict[str, Any]) -> dict[str, str]:
    return {item["type"]: item["status"] for item in status["conditions"]}


def test_a_run_walks_from_init_to_term(lab: Any) -> None:
    lab.create("whole")
    begun = lab.start_pod("whole")
    assert conditions(begun) == {"Ready": "False", "Reconciling": "True"}
    worker = lab.worker("whole")
    lab.until("whole", fsmState="RDY")
    worker.emit("run_started", attempt=1)
    running = lab.until("whole", fsmState="EXEC")
    assert conditions(running) == {"Ready": "True"}
    lab.cluster.kubectl("wait", "-n", lab.namespace, "--for=condition=Ready", "crr/whole", "--timeout=10s")
    worker.scalars(500, **{"charts/episodic_return": 42.0})
    last = worker.checkpoint(500)
    stored = lab.until("whole", fsmState="EXEC", reason="RunStarted")
    while (stored.get("checkpoint") or {}).get("step") != 500:
        stored = lab.status("whole")
    assert worker.session.close(20), "what the status holds is acknowledged"
    assert worker.session.acknowledged >= last
    assert stored["progress"]["episodicReturn"] == 42.0
    lab.end_pod("whole", outcome="completed", checkpoint=1000, last_step=1000, manifest_sha256="b" * 64)
    end = lab.until("whole", fsmState="TERM")
    lab.cluster.kubectl("wait", "-n", lab.namespace, "--for=condition=Complete", "crr/whole", "--timeout=10s")
    assert conditions(end) == {"Ready": "True", "Complete": "True"}
    assert (end["outcome"], end["attempt"], end.get("retries", 0)) == ("completed", 1, 0)
    assert end["checkpoint"]["step"] == 1000
    assert end["analytics"]["manifestDigest"] == "b" * 64
    assert end["analytics"]["claimName"]
    assert lab.walked("whole") == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]
    assert lab.run("whole")["metadata"].get("finalizers") is None
    assert not any("kopf" in name for name in lab.run("whole")["metadata"].get("annotations") or {})
    assert lab.events("whole") == ["Accepted", "WorkerRunning", "Registered", "RunStarted", "Completed"]


def test_a_worker_that_was_quicker_than_the_watch_leaves_no_state_out(lab: Any) -> None:
    lab.create("quick")
    lab.until("quick", fsmState="INIT", reason="Unschedulable")
    lab.end_pod("quick", outcome="completed", last_step=1000)
    lab.until("quick", fsmState="TERM", outcome="completed")
    assert lab.walked("quick") == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]


def test_pause_keeps_the_pod_and_suspend_frees_it(lab: Any) -> None:
    lab.create("verbs")
    worker = lab.execute("verbs")
    lab.edit("verbs", pause=True)
    until_wish(worker, pause=True)
    worker.emit("run_paused")
    paused = lab.until("verbs", fsmState="PAUSE", reason="Paused")
    assert conditions(paused) == {"Ready": "True", "Suspended": "True"}
    assert len(lab.pods("verbs")) == 1
    lab.edit("verbs", pause=False)
    until_wish(worker, pause=False)
    worker.emit("run_resumed")
    lab.until("verbs", fsmState="EXEC", reason="Resumed")
    lab.edit("verbs", suspend=True)
    wish = until_wish(worker, stop=True)
    assert wish.stop_reason == "suspend"
    lab.end_pod("verbs", outcome="suspended", checkpoint=300)
    suspended = lab.until("verbs", fsmState="PAUSE", reason="Suspended")
    assert suspended["checkpoint"]["step"] == 300
    assert "podUID" not in suspended
    assert conditions(suspended) == {"Ready": "True", "Suspended": "True"}
    lab.edit("verbs", suspend=False)
    lab.until("verbs", fsmState="INIT", attempt=2)
    lab.start_pod("verbs")
    assert lab.walked("verbs")[-3:] == ["PAUSE", "INIT", "HSHK"]
    lab.edit("verbs", cancel=True)
    canceled = lab.until("verbs", fsmState="TERM", outcome="canceled")
    assert conditions(canceled) == {"Ready": "False", "Stalled": "True", "Failed": "True"}
    assert canceled.get("retries", 0) == 0


def test_created_suspended_it_has_no_pod_until_that_is_lifted(lab: Any) -> None:
    lab.create("later", suspend=True)
    lab.until("later", fsmState="PAUSE", reason="Suspended")
    assert lab.pods("later") == []
    lab.edit("later", suspend=False)
    lab.until("later", fsmState="INIT", attempt=1)


def test_an_edit_of_a_finished_run_is_observed_and_changes_nothing_else(lab: Any) -> None:
    lab.create("done", cancel=True)
    end = lab.until("done", fsmState="TERM", outcome="canceled")
    assert lab.pods("done") == []
    generation = lab.edit("done", suspend=True)["metadata"]["generation"]
    after = lab.until("done", observedGeneration=generation)
    for changing in ("observedGeneration", "conditions"):
        end.pop(changing)
        after.pop(changing)
    assert after == end


def test_a_run_that_is_created_again_is_a_new_run(lab: Any) -> None:
    lab.create("again", cancel=True)
    first = lab.until("again", fsmState="TERM")
    lab.delete("again")
    lab.create("again")
    second = lab.until("again", fsmState="INIT", attempt=1)
    assert first["runId"] != second["runId"]


def until_wish(worker: Any, **wanted: Any) -> Any:
    """The newest wish that the worker heard, once it is this."""
    deadline = time.monotonic() + 30
    while not (worker.wishes and all(getattr(worker.wishes[-1], name) == value for name, value in wanted.items())):
        assert time.monotonic() < deadline, f"the worker heard {worker.wishes}, not {wanted}"
        time.sleep(0.05)
    return worker.wishes[-1]

"""Many runs at once, an operator that is killed again and again, and an API server that fails now and then."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

RUNS, KILLS = 12, 2


def test_every_run_ends_as_it_should(make_lab: Any, make_operator: Any, cluster: Any) -> None:
    operator = make_operator("chaos", faulty=True, operator_class="chaos").start()
    lab = make_lab(operator.gateway_port, operator_class="chaos")
    chance = random.Random(1)
    done = threading.Event()
    kubelet = threading.Thread(target=play_kubelet, args=(lab, done))
    names = [f"run-{number:02}" for number in range(RUNS)]
    faults = [
        cluster.faults.add("status", status=500, path=lab.namespace, probability=0.05),
        cluster.faults.add("lose-answer", method="POST", path=lab.namespace, probability=0.05),
        cluster.faults.add("lose-answer", method="PATCH", path=lab.namespace, probability=0.05),
    ]
    kubelet.start()
    try:
        for name in names:
            lab.create(name, retry={"limit": 2, "backoffSeconds": 1})
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 1.5))
            operator.kill()
            operator.start(wait=False)
            time.sleep(chance.uniform(1.5, 4))
        ends = {}
        for name in names:
            operator.keep_alive()
            ends[name] = lab.until(name, fsmState="TERM")
    finally:
        done.set()
        kubelet.join()
        for fault in faults:
            fault.remove()
    for number, name in enumerate(names):
        attempts = 2 if number % 3 == 0 else 1
        assert (ends[name]["outcome"], ends[name]["attempt"]) == ("completed", attempts), ends[name]
        assert len(lab.pods(name)) == attempts
        walked = lab.walked(name)
        assert walked[:2] == ["INIT", "HSHK"]
        assert walked[-3:] == ["RDY", "EXEC", "TERM"]
    assert operator.stop() == 0


def play_kubelet(lab: Any, done: threading.Event) -> None:
    """Start every pod, then end it; the first attempt of every third run fails."""
    while not done.is_set():
        for pod in lab.api.get(f"/api/v1/namespaces/{lab.namespace}/pods")["items"]:
            labels, phase = pod["metadata"]["labels"], pod["status"].get("phase")
            name, attempt = labels["mosaic.dev/run"], labels["mosaic.dev/attempt"]
            if lab.status(name).get("podUID") != pod["metadata"]["uid"]:
                continue
            if phase == "Pending":
                lab.set_pod(name, phase="Running", containerStatuses=[state(running={"startedAt": moment()})])
            elif phase == "Running" and int(name[-2:]) % 3 == 0 and attempt == "1":
                lab.end_pod(name, exit_code=1)
            elif phase == "Running":
                lab.end_pod(name, outcome="completed")
        done.wait(0.1)


def state(**fields: Any) -> dict[str, Any]:
    return {"name": "worker", "ready": False, "restartCount": 0, "image": "w", "imageID": "", "state": fields}


def moment() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

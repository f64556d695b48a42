"""On a real node with two GPUs: a third run waits and says for what, takes the first that comes free, or does without."""

from __future__ import annotations

import json
from typing import Any

SMALL = {"cpus": {"requested": "200m"}, "memory": "700Mi"}
ALONE = {"tensorboard": {"enabled": False}}
GPU = "nvidia.com/gpu"


def executes(status: dict[str, Any]) -> bool:
    return status.get("fsmState") == "EXEC"


def asked(runs: Any, pod: str) -> dict[str, str]:
    """What the worker of a pod is given."""
    worker = json.loads(runs.kubectl("get", "pod", pod, "-o", "json"))["spec"]["containers"][0]
    return dict(worker["resources"]["limits"])


def test_three_runs_share_two_gpus(runs: Any) -> None:
    def apply(name: str, **gpus: Any) -> None:
        runs.apply(name, resources={**SMALL, "gpus": {"requested": 1, **gpus}}, artifacts=ALONE)

    apply("first", mandatory=True)
    apply("second", mandatory=True)
    for name in ("first", "second"):
        started = runs.reach(name, executes)
        assert asked(runs, started["podName"])[GPU] == "1"

    apply("third", mandatory=True)
    apply("flexible", mandatory=False, fallbackAfterSeconds=5)
    waiting = runs.reach("third", lambda status: status.get("reason") == "NoGPU")
    assert waiting["fsmState"] == "INIT"
    assert f"No node has 1 {GPU} free; it starts when they are free." in waiting["message"]

    alone = runs.reach("flexible", executes)
    assert alone["gpuFallback"] is True
    assert GPU not in asked(runs, alone["podName"])
    assert (alone["attempt"], alone.get("retries", 0), alone.get("gpuSeconds", 0)) == (2, 0, 0), "waiting is no failure"
    assert "the run goes on with the CPU" in runs.warned("flexible", "GPUFallback")
    assert "GPUFallback" in [each["type"] for each in alone["conditions"]]
    assert runs.status("third")["fsmState"] == "INIT", "who must have one still waits"

    runs.change("first", cancel=True)
    over = runs.reach("first", lambda status: status["fsmState"] == "TERM")
    assert (over["outcome"], over["gpuSeconds"] > 0) == ("canceled", True)
    served = runs.reach("third", executes)
    assert served["attempt"] == 1
    assert asked(runs, served["podName"])[GPU] == "1"
    assert "NoGPU" not in [each["to"] for each in served["transitions"]]
    assert "FAULT" not in [each["to"] for each in served["transitions"]]

"""What a platform team does with the installation leaves training alone, and lets nobody else at the gateway."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(600)  # runs of minutes, on a node that may be loaded

SYSTEM = "cleanrl-system"
OPERATOR = "deployment/cleanrl-cleanrl-operator"

CALL = """
import socket
try:
    socket.create_connection(("cleanrl-cleanrl-operator-gateway.cleanrl-system.svc", 50055), 4).close()
    print("open")
except TimeoutError:
    print("closed")
"""


def test_only_workers_reach_the_gateway(runs: Any) -> None:
    if not runs.cluster.options.netpol:
        pytest.skip(
            "this machine's kernel can't enforce NetworkPolicy: load the module nfnetlink_queue to include this"
        )
    assert runs.python(CALL, labels={"app.kubernetes.io/name": "cleanrl-worker"}).strip() == "open"
    assert runs.python(CALL).strip() == "closed"


def test_runs_go_on_without_the_operator_and_a_new_one_adopts_them(
    runs: Any, helm: Callable[..., str], install: Callable[[], None]
) -> None:
    """One goes on training, one ends while nobody looks, one waits in pause; the same name installed again knows them all."""
    alone = {"artifacts": {"tensorboard": {"enabled": False}}}
    runs.apply("orphan", **alone)
    runs.apply("sleeper", **alone, totalTimesteps=40_960, pause=True)
    runs.apply("finisher", **alone, totalTimesteps=300_032, pause=True)
    before = runs.reach("orphan", lambda status: status.get("fsmState") == "EXEC")
    asleep = runs.reach("sleeper", lambda status: status.get("fsmState") == "PAUSE")
    runs.reach("finisher", lambda status: status.get("fsmState") == "PAUSE")
    runs.change("finisher", pause=False)
    runs.reach("finisher", lambda status: status.get("fsmState") == "EXEC")
    helm("uninstall", "cleanrl", "-n", SYSTEM, "--wait")
    left = runs.cluster.kubectl("-n", SYSTEM, "get", "all,leases,roles,secrets", "-o", "name").stdout
    try:
        alive = runs.status("finisher")
        assert alive["fsmState"] == "EXEC", "the operator has to go first"
        own = {"lease.coordination.k8s.io/cleanrl-cleanrl-operator", "secret/cleanrl-gateway"}
        assert {name for name in left.split() if not name.startswith("pod/")} == own
        runs.freed("finisher", seconds=200)
        assert runs.status("finisher") == alive, "nobody was there to write it down"
        runs.says("orphan", "checkpoint_saved")
    finally:
        install()

    over = runs.reach("finisher", lambda status: status["fsmState"] == "TERM")
    assert (over["outcome"], over["reason"], over["attempt"]) == ("completed", "Completed", 1)
    assert [each["to"] for each in over["transitions"]] == ["INIT", "HSHK", "RDY", "EXEC", "PAUSE", "EXEC", "TERM"]
    assert over["checkpoint"]["step"] == 300_032, "whole rollouts of 512"
    assert over["analytics"]["manifestDigest"]
    runs.kubectl("wait", "cleanrlrun/finisher", "--for=condition=Complete", "--timeout=10s")

    assert runs.status("sleeper")["podUID"] == asleep["podUID"]
    runs.change("sleeper", pause=False)
    woken = runs.reach("sleeper", lambda status: status["fsmState"] == "TERM")
    assert (woken["outcome"], woken["attempt"]) == ("completed", 1)

    runs.change("orphan", cancel=True)
    after = runs.reach("orphan", lambda status: status["fsmState"] == "TERM")
    assert (after["outcome"], after["attempt"]) == ("canceled", 1), "the pod that was there is the pod that went on"
    assert after["checkpoint"]["step"] > 0
    assert "FAULT" not in [each["to"] for each in after["transitions"]]
    assert before["podUID"]


def test_an_operator_that_is_killed_or_replaced_costs_no_run_anything(runs: Any, system: Any) -> None:
    runs.apply("steady", artifacts={"tensorboard": {"enabled": False}})
    before = runs.reach("steady", lambda status: status.get("fsmState") == "EXEC")
    (pod,) = leaders(system)
    os.kill(operator_process(pod), signal.SIGKILL)
    runs.reach("steady", heard_since(runs.status("steady")))
    restarts = "jsonpath={.status.containerStatuses[0].restartCount}"
    assert system.kubectl("get", "pod", pod, "-o", restarts) == "1", "killed, and started again by the kubelet"

    system.kubectl("rollout", "restart", OPERATOR)
    system.kubectl("rollout", "status", OPERATOR, "--timeout=100s")
    system.kubectl("wait", f"pod/{pod}", "--for=delete", "--timeout=100s")
    runs.reach("steady", heard_since(runs.status("steady")))
    (successor,) = leaders(system)
    assert successor != pod

    runs.change("steady", cancel=True)
    after = runs.reach("steady", lambda status: status["fsmState"] == "TERM")
    assert (after["outcome"], after["attempt"], after.get("retries", 0)) == ("canceled", 1, 0)
    assert after["podUID"] == before["podUID"]
    assert [each["to"] for each in after["transitions"]] == ["INIT", "HSHK", "RDY", "EXEC", "TERM"]
    numbers = [each["seq"] for each in runs.events("steady")]
    assert numbers == list(range(1, len(numbers) + 1))


def leaders(system: Any) -> list[str]:
    """The pods that lead."""
    names = "jsonpath={.items[*].metadata.name}"
    return list(system.kubectl("get", "pods", "-l", "mosaic.dev/gateway=leader", "-o", names).split())


def operator_process(pod: str) -> int:
    """The operator's process in this pod, seen from the machine that the node runs on."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"POD_NAME={pod}".encode() in environ.split(b"\0"):
            return int(folder.name)
    raise AssertionError(f"no operator of pod {pod} is on this machine")


def heard_since(known: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    """Whether the worker was heard again."""
    step = known["progress"]["step"] if known.get("progress") else 0
    return lambda status: (status.get("progress") or {}).get("step", 0) > step

"""What a platform team does with the installation leaves training alone, and lets nobody else at the gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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


def test_a_run_trains_on_without_the_operator_and_a_new_one_adopts_it(
    runs: Any, helm: Callable[..., str], install: Callable[[], None]
) -> None:
    runs.apply("orphan")
    before = runs.reach("orphan", lambda status: status.get("fsmState") == "EXEC")
    helm("uninstall", "cleanrl", "-n", "cleanrl-system", "--wait")
    left = runs.cluster.kubectl("-n", "cleanrl-system", "get", "all,leases,roles,secrets", "-o", "name").stdout
    try:
        assert [name for name in left.split() if not name.startswith("pod/")] == ["secret/cleanrl-gateway"]
        runs.says("orphan", "checkpoint_saved")
    finally:
        install()
    runs.change("orphan", cancel=True)
    after = runs.reach("orphan", lambda status: status["fsmState"] == "TERM")
    assert after["outcome"] == "canceled"
    assert after["attempt"] == 1, "the pod that was there is the pod that went on"
    assert after["checkpoint"]["step"] > 0
    assert "FAULT" not in [each["to"] for each in after["transitions"]]
    assert before["podUID"]

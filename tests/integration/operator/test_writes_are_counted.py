"""What the operator writes, by the API server's own audit log: at most two writes per transition, none for a run that rests."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
CHILDREN = {"cleanrlruns", "pods", "persistentvolumeclaims", "services", "deployments"}


def writes(lab: Any, since: int = 0) -> Counter[str]:
    """Successful writes of operators to runs and their children in this namespace, from this line of the audit log on."""
    found: Counter[str] = Counter()
    for line in lab.cluster.audit_log.read_text().splitlines()[since:]:
        entry = json.loads(line)
        thing = entry.get("objectRef") or {}
        ours = entry.get("userAgent", "").startswith(("cleanrl-operator", "kopf"))
        here = thing.get("namespace") == lab.namespace and thing["resource"] in CHILDREN
        if ours and here and entry["verb"] in WRITES and entry["responseStatus"]["code"] < 300:
            found[f"{entry['verb']} {thing['resource']}/{thing.get('subresource', '')}".rstrip("/")] += 1
    return found


def position(lab: Any) -> int:
    return len(lab.cluster.audit_log.read_text().splitlines())


def test_a_whole_life_takes_at_most_two_writes_per_transition(lab: Any) -> None:
    lab.create("run")
    worker = lab.execute("run")
    assert worker.session.close(20)
    lab.end_pod("run", outcome="completed")
    lab.until("run", fsmState="TERM")
    transitions = len(lab.walked("run"))
    lab.until("run", fsmState="TERM")
    counted = writes(lab)
    assert counted["create pods"] == 1
    assert counted["create persistentvolumeclaims"] == 1
    assert sum(counted.values()) <= 2 * transitions, counted
    assert set(counted) == {"create pods", "create persistentvolumeclaims", "patch cleanrlruns/status"}, counted


@pytest.mark.parametrize("kind", ["the same manifest", "a label"])
def test_an_unchanged_run_costs_nothing(lab: Any, operator: Any, kind: str) -> None:
    lab.create("waiting")
    lab.create("running")
    lab.create("finished", cancel=True)
    lab.until("waiting", fsmState="INIT", reason="Unschedulable")
    lab.start_pod("running")
    lab.until("finished", fsmState="TERM")
    before, reconciles = position(lab), operator.metric("cleanrl_operator_reconciles_total")
    for name in ("waiting", "running", "finished"):
        run = lab.run(name)
        if kind == "a label":
            path = f"/apis/mosaic.dev/v1alpha1/namespaces/{lab.namespace}/cleanrlruns/{name}"
            lab.api.merge(path, {"metadata": {"labels": {"team": "a"}}})
        else:
            manifest = {key: run[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": name}}
            lab.cluster.kubectl("apply", "-n", lab.namespace, "-f", "-", stdin=json.dumps(manifest))
    deadline = time.monotonic() + 20
    while kind == "a label" and operator.metric("cleanrl_operator_reconciles_total") < reconciles + 3:
        assert time.monotonic() < deadline, "the operator does not look at them"
    assert writes(lab, before) == {}


def test_a_restart_over_what_rests_writes_nothing(make_lab: Any, make_operator: Any) -> None:
    operator = make_operator("restart", operator_class="restart").start()
    lab = make_lab(operator.gateway_port, operator_class="restart")
    lab.create("waiting")
    lab.create("running")
    lab.create("finished", cancel=True)
    lab.until("waiting", fsmState="INIT", reason="Unschedulable")
    worker = lab.execute("running")
    assert worker.session.acknowledged >= 0
    lab.until("finished", fsmState="TERM")
    statuses = {name: lab.status(name) for name in ("waiting", "finished")}
    operator.kill()
    worker.session.close(0.1)
    before = position(lab)
    operator.start()
    deadline = time.monotonic() + 30
    while operator.metric("cleanrl_operator_reconciles_total") < 3:
        assert time.monotonic() < deadline, "the operator does not look at them"
        time.sleep(0.1)
    assert operator.stop() == 0  # which finishes what is under way
    assert writes(lab, before) == {}
    assert {name: lab.status(name) for name in statuses} == statuses

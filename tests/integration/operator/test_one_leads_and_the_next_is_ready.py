"""Running the operator: one leader and a warm standby, health that means something, figures, logs, a graceful stop."""

from __future__ import annotations

import time
from typing import Any

import pytest

SYSTEM = "operator-system"


def wait_for(ask: Any, what: str = "", seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return answer


@pytest.fixture
def pair(make_operator: Any) -> Any:
    """Two replicas, each with a pod of its own in the operator's namespace."""
    options = {"lease_name": "pair", "lease_seconds": 5, "operator_class": "pair"}
    return [make_operator(name, **options) for name in ("replica-a", "replica-b")]


def leader_pods(cluster: Any) -> list[str]:
    path = f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector=mosaic.dev/gateway%3Dleader"
    names = [pod["metadata"]["name"] for pod in cluster.api().get(path)["items"]]
    return [name for name in names if name.startswith("operator-replica")]


def test_the_standby_takes_over_at_once_when_the_leader_stops_and_soon_when_it_dies(
    pair: Any, make_lab: Any, cluster: Any
) -> None:
    first, second = pair
    first.start()
    second.start(wait=False)
    wait_for(lambda: second.get("/readyz")[0] == 200, "the standby is ready while it waits")
    assert second.metric("cleanrl_operator_leader") == 0
    wait_for(lambda: leader_pods(cluster) == ["operator-replica-a"])
    lab = make_lab(first.gateway_port, operator_class="pair")
    lab.create("one")
    lab.until("one", fsmState="INIT", attempt=1)

    assert first.stop() == 0
    assert leader_pods(cluster) != ["operator-replica-a"], "its label goes before its lease"
    wait_for(second.leads)
    lab.create("two")
    lab.until("two", fsmState="INIT", attempt=1)
    wait_for(lambda: leader_pods(cluster) == ["operator-replica-b"])

    first.start(wait=False)
    wait_for(lambda: first.get("/readyz")[0] == 200)
    second.kill()
    wait_for(first.leads)
    lab.create("three")
    lab.until("three", fsmState="INIT", attempt=1)
    for name in ("one", "two", "three"):
        assert len(lab.pods(name)) == 1
    assert first.stop() == 0


def test_a_leader_that_lost_its_lease_ends(make_operator: Any, cluster: Any) -> None:
    operator = make_operator("robbed", lease_seconds=5, operator_class="robbed").start()
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/lease-robbed"
    renewed = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    cluster.api().merge(lease, {"spec": {"holderIdentity": "somebody else", "renewTime": renewed}})
    assert operator.process.wait(30) == 1
    assert "the lease was lost" in operator.log.read_text()


def test_a_dead_watch_is_noticed(make_operator: Any, make_lab: Any, cluster: Any) -> None:
    settings = {"operator_class": "deaf", "watch_check_seconds": 1, "lease_seconds": 30}
    operator = make_operator("deaf", faulty=True, **settings).start()
    lab = make_lab(operator.gateway_port, operator_class="deaf")
    lab.create("seen")
    lab.until("seen", fsmState="INIT", attempt=1)
    assert operator.get("/healthz") == (200, "ok")
    with cluster.faults.fault("hang", verb="watch", path="cleanrlruns"):
        lab.create("unseen")
        wait_for(lambda: operator.get("/healthz")[0] == 503, "nobody notices")
        assert "the watch on apis/mosaic.dev/v1alpha1/cleanrlruns is dead" in operator.get("/healthz")[1]
    operator.kill()


def test_a_leader_that_cannot_be_labelled_yet_leads_all_the_same(
    make_operator: Any, make_lab: Any, cluster: Any
) -> None:
    options = {"lease_name": "unlabelled", "lease_seconds": 5, "operator_class": "unlabelled"}
    first = make_operator("before", **options).start()
    second = make_operator("unlabelled", faulty=True, **options)
    second.start(wait=False)
    wait_for(lambda: second.get("/readyz")[0] == 200, "the standby is ready while it waits")

    def labels() -> Any:
        pod = cluster.api().get(f"/api/v1/namespaces/{SYSTEM}/pods/operator-unlabelled")
        return pod["metadata"].get("labels") or {}

    with cluster.faults.fault(status=503, verb="patch", path="/pods/operator-unlabelled") as fault:
        first.stop()
        lab = make_lab(second.gateway_port, operator_class="unlabelled")
        lab.create("early")
        lab.until("early", fsmState="INIT", attempt=1)
        wait_for(lambda: fault.struck, "it was never to be labelled")
        assert "mosaic.dev/gateway" not in labels()
    wait_for(lambda: labels().get("mosaic.dev/gateway") == "leader", "no worker will find it")
    assert second.stop() == 0
    assert "mosaic.dev/gateway" not in labels()


def test_a_run_whose_end_nobody_saw_is_forgotten(make_operator: Any, make_lab: Any, cluster: Any) -> None:
    settings = {"operator_class": "absent", "watch_check_seconds": 1, "lease_seconds": 30}
    operator = make_operator("absent", faulty=True, **settings).start()
    lab = make_lab(operator.gateway_port, operator_class="absent")
    lab.create("gone", cancel=True)
    lab.until("gone", fsmState="TERM")
    over = 'cleanrl_operator_runs{outcome="canceled",state="TERM"}'
    counted = operator.metric(over)
    with cluster.faults.fault("hang", verb="watch", path="cleanrlruns"):
        lab.delete("gone")
        wait_for(lambda: operator.metric(over) == counted - 1, "it is counted still")
    assert "gone was deleted while nothing was heard of it" in operator.log.read_text()
    operator.kill()


def test_without_the_resource_or_the_rights_it_says_so_and_ends(make_operator: Any, narrow_account: Any) -> None:
    operator = make_operator("narrow", kubeconfig=narrow_account("narrow", []), operator_class="narrow")
    operator.start(wait=False)
    assert operator.process.wait(60) == 1
    assert "lacks a right that it needs" in operator.log.read_text()
    odd = make_operator("odd", colour="blue")
    odd.start(wait=False)
    assert odd.process.wait(60) == 2
    assert "CLEANRL_OPERATOR_COLOUR is no setting of the operator" in odd.log.read_text()


def test_figures_and_logs_name_the_run(lab: Any, operator: Any) -> None:
    lab.create("told")
    worker = lab.execute("told")
    worker.scalars(10, **{"charts/episodic_return": 12.5})
    headline = f'cleanrl_run_episodic_return{{algo="ppo",env="CartPole-v1",namespace="{lab.namespace}",run="told"}}'
    wait_for(lambda: headline in operator.get("/metrics")[1], operator.get("/metrics")[1])
    assert operator.metric("cleanrl_operator_streams") >= 1
    assert operator.metric('cleanrl_operator_runs{outcome="none",state="EXEC"}') >= 1
    worker.session.close(10)
    lab.end_pod("told", outcome="completed")
    lab.until("told", fsmState="TERM")
    assert operator.metric(headline) == 12.5, "it stays for five minutes"
    about = [line for line in operator.lines() if line["run"] == f"{lab.namespace}/told"]
    assert {"new -> INIT", "HSHK -> RDY", "EXEC -> TERM"} <= {line["message"] for line in about}
    assert all("attempt" in line for line in operator.lines())


def test_a_run_that_cannot_be_read_says_so_and_is_left_alone(lab: Any) -> None:
    lab.create("odd", suspend=True)
    lab.until("odd", fsmState="PAUSE")
    lab.edit_status("odd", startedAt="0000-01-01T00:00:00Z")  # the API server takes a year that no calendar has
    lab.edit("odd", suspend=False)

    def said() -> Any:
        return {item["type"]: item for item in lab.status("odd")["conditions"] if item["reason"] == "Unreadable"}

    told = wait_for(said, "its conditions say nothing")
    assert (told["Ready"]["status"], told["Stalled"]["status"]) == ("False", "True")
    assert "startedAt" in told["Ready"]["message"]
    assert lab.pods("odd") == []
    version = lab.run("odd")["metadata"]["resourceVersion"]
    lab.edit_status("odd", startedAt="2026-01-01T00:00:00Z")
    lab.until("odd", fsmState="INIT", attempt=1)
    assert int(lab.run("odd")["metadata"]["resourceVersion"]) > int(version)

"""Options that meet other people's resources, and what the release tells a person to type."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from foreign import prometheus_operator

from devcluster import Cluster
from devcluster.cluster import ESTABLISHED

Render = Callable[..., list[dict[str, Any]]]
Helm = Callable[..., subprocess.CompletedProcess[str]]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def test_a_disruption_budget_guards_the_operator_and_never_blocks_a_drain(render: Render) -> None:
    objects = render({"replicas": 1})
    budget, deployment = of_kind(objects, "PodDisruptionBudget")["spec"], of_kind(objects, "Deployment")["spec"]
    assert budget["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert (budget["maxUnavailable"], "minAvailable" in budget) == (1, False)
    without = render({"podDisruptionBudget": {"enabled": False}})
    assert "PodDisruptionBudget" not in [each["kind"] for each in without]


def test_policies_deny_everything_that_they_do_not_name(render: Render) -> None:
    policies = {
        each["metadata"]["name"].removeprefix("cleanrl-cleanrl-operator").removeprefix(".cleanrl-system"): each["spec"]
        for each in render({"scope": "namespaced"})
        if each["kind"] == "NetworkPolicy"
    }
    assert policies[""]["policyTypes"] == policies["-workers"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policies["-workers"], "nobody reaches a worker unless metricsFrom names them"
    (gateway,) = policies[""]["ingress"]
    assert [port["port"] for port in gateway["ports"]] == ["gateway"]
    allowed = {port["port"] for rule in policies[""]["egress"] for port in rule["ports"]}
    assert allowed == {53, 443, 6443}
    assert {port["port"] for rule in policies["-workers"]["egress"] for port in rule["ports"]} == {53, 50055}


def test_the_pods_take_the_runtime_class_they_are_given(render: Render) -> None:
    objects = render({"runtimeClassName": "gvisor"})
    assert of_kind(objects, "Deployment")["spec"]["template"]["spec"]["runtimeClassName"] == "gvisor"
    assert of_kind(objects, "Pod")["spec"]["runtimeClassName"] == "gvisor"


def test_what_is_offered_to_the_prometheus_operator_is_taken(
    server: Cluster, helm: Helm, chart: Path, namespace: str
) -> None:
    definitions = prometheus_operator()
    server.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": definitions}))
    names = [each["metadata"]["name"] for each in definitions]
    server.kubectl("wait", ESTABLISHED, "crd", *names, "--timeout=30s")
    try:
        asked = {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "rules", "dashboards")}
        said = helm(
            "install", "cleanrl", str(chart), "-n", namespace, "--set-json", f"monitoring={json.dumps(asked)}"
        ).stdout
        made = server.kubectl(
            "get", "servicemonitors,podmonitors,prometheusrules", "-n", namespace, "-o", "name"
        ).stdout
        assert len(made.split()) == 3
        dashboards = server.kubectl(
            "get", "configmaps", "-n", namespace, "-l", "grafana_dashboard=1", "-o", "name"
        ).stdout
        assert len(dashboards.split()) == 1
        notes_work(server, namespace, said)
    finally:
        helm("uninstall", "cleanrl", "-n", namespace, "--wait", check=False)
        server.kubectl("delete", "crd", *names, "cleanrlruns.mosaic.dev")


def notes_work(server: Cluster, namespace: str, said: str) -> None:
    """The notes' manifest is accepted, and the objects that they name are there."""
    notes = said.partition("NOTES:")[2]
    manifest = notes.partition("<<EOF\n")[2].partition("  EOF")[0]
    server.kubectl("wait", ESTABLISHED, "crd/cleanrlruns.mosaic.dev", "--timeout=30s")
    run = yaml.safe_load(manifest)
    server.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(run))
    (deployment,) = [word for word in notes.split() if word.startswith("deployment/")]
    server.kubectl("get", deployment, "-n", namespace)

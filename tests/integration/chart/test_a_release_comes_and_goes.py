"""Install, upgrade, rollback and uninstall on a real API server. Nothing stays behind but what was asked to."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from devcluster import Cluster
from devcluster.cluster import ESTABLISHED

PROJECT = Path(__file__).parents[3]
CRD = "cleanrlruns.mosaic.dev"
Helm = Callable[..., subprocess.CompletedProcess[str]]
RUN = {
    "apiVersion": "mosaic.dev/v1alpha1",
    "kind": "CleanRLRun",
    "metadata": {"name": "kept"},
    "spec": {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000},
}


def everything(server: Cluster) -> set[str]:
    """Every object of the cluster that somebody made: kind, namespace and name."""
    answer = server.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    passing = {"events", "events.events.k8s.io", "leases.coordination.k8s.io"}
    # What the controllers make by themselves and take away in their own time.
    passing |= {"pods", "replicasets.apps", "endpoints", "endpointslices.discovery.k8s.io", "componentstatuses"}
    passing |= {"ipaddresses.networking.k8s.io", "controllerrevisions.apps", "apiservices.apiregistration.k8s.io"}
    wanted = ",".join(sorted(set(answer) - passing))
    columns = "custom-columns=K:.kind,N:.metadata.namespace,M:.metadata.name"
    return set(server.kubectl("get", wanted, "-A", "--no-headers", "-o", columns).stdout.splitlines())


def test_every_object_is_accepted_by_a_dry_run(
    server: Cluster, namespace: str, render: Callable[..., list[dict[str, Any]]]
) -> None:
    extra = {"networkPolicy": {"workers": {"namespaces": [namespace]}, "metricsFrom": [{"namespaceSelector": {}}]}}
    for values in ({}, {"scope": "namespaced"}, {"admissionPolicy": {"csiDrivers": ["a.example"]}, **extra}):
        objects = render({**values, "fullnameOverride": "dry"})
        for each in objects:
            if "namespace" in each["metadata"]:
                each["metadata"]["namespace"] = namespace
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=listed)


def test_the_api_server_keeps_every_field_as_it_is_written(
    server: Cluster, namespace: str, render: Callable[..., list[dict[str, Any]]]
) -> None:
    """What it drops or writes in another way is a difference for ever to a GitOps tool that compares."""
    asked = {
        "metrics": {"authorize": True},
        "monitoring": {"dashboards": {"enabled": True}},
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}], "workers": {"namespaces": [namespace]}},
        "tensorboard": {"basePath": "", "route": {"kind": "Ingress", "host": "boards.example"}},
    }

    def lost(written: Any, kept: Any, path: str) -> list[str]:
        if isinstance(written, dict) and isinstance(kept, dict):
            gone = [f"{path}.{name}" for name in written.keys() - kept.keys()]
            return gone + [
                each
                for name in written.keys() & kept.keys()
                for each in lost(written[name], kept[name], f"{path}.{name}")
            ]
        if isinstance(written, list) and isinstance(kept, list) and len(written) == len(kept):
            return [
                each
                for number, pair in enumerate(zip(written, kept, strict=True))
                for each in lost(*pair, f"{path}[{number}]")
            ]
        return [] if written == kept else [path]

    for values in ({}, {"scope": "namespaced"}, asked):
        for each in render({**values, "fullnameOverride": "kept"}):
            if "namespace" in each["metadata"]:
                each["metadata"]["namespace"] = namespace
            taken = server.kubectl("create", "--dry-run=server", "-f", "-", "-o", "json", stdin=json.dumps(each)).stdout
            assert lost(each, json.loads(taken), each["kind"]) == []


def test_a_release_lives_and_leaves_only_what_was_asked_to_stay(
    server: Cluster, helm: Helm, chart: Path, namespace: str, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(chart, older)
    template = older / "templates" / "crds.yaml"
    without_field(template, "operatorClass")
    before = everything(server)

    helm("install", "cleanrl", str(older), "-n", namespace)
    server.kubectl("wait", ESTABLISHED, f"crd/{CRD}", "--timeout=30s")
    server.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(RUN))
    assert "operatorClass" not in fields(server)

    helm("upgrade", "cleanrl", str(chart), "-n", namespace, "--set", "replicas=2")
    assert "operatorClass" in fields(server), "an upgrade brings new fields"
    assert replicas(server, namespace) == "2"

    helm("rollback", "cleanrl", "1", "-n", namespace)
    assert replicas(server, namespace) == "1"
    assert "operatorClass" not in fields(server)
    kept = server.kubectl("get", "cleanrlrun", "kept", "-n", namespace, "-o", "jsonpath={.metadata.uid}").stdout

    helm("uninstall", "cleanrl", "-n", namespace, "--wait")
    left = {tuple(line.split()) for line in everything(server) - before}
    assert left == {("CustomResourceDefinition", "<none>", CRD), ("CleanRLRun", namespace, "kept")}

    helm("install", "cleanrl", str(chart), "-n", namespace)
    path = "jsonpath={.metadata.uid}"
    assert server.kubectl("get", "cleanrlrun", "kept", "-n", namespace, "-o", path).stdout == kept
    assert "operatorClass" in fields(server)

    helm("uninstall", "cleanrl", "-n", namespace, "--wait")
    server.kubectl("delete", "crd", CRD)
    assert everything(server) - before == set()


def test_without_the_keep_policy_the_runs_go_too(server: Cluster, helm: Helm, chart: Path, namespace: str) -> None:
    before = everything(server)
    helm("install", "cleanrl", str(chart), "-n", namespace, "--set", "crds.keep=false")
    helm("uninstall", "cleanrl", "-n", namespace, "--wait")
    server.kubectl("wait", "--for=delete", f"crd/{CRD}", "--timeout=30s")
    assert everything(server) - before == set()


def without_field(template: Path, field: str) -> None:
    """Take a field of spec, and the rules that speak of it, out of the CRD."""
    head, keep, body, end = split(template.read_text())
    definition = yaml.safe_load(body)
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del schema["properties"][field]
    rules = schema["x-kubernetes-validations"]
    schema["x-kubernetes-validations"] = [rule for rule in rules if field not in rule["rule"]]
    text = yaml.safe_dump(definition, sort_keys=False, width=10_000)
    template.write_text(head + text.replace("metadata:\n", f"metadata:\n{keep}", 1) + end)


def split(text: str) -> tuple[str, str, str, str]:
    """The template's first lines, its keep annotation, the CRD, and the last line."""
    lines = text.splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if line.startswith("apiVersion"))
    keep = next(number for number, line in enumerate(lines) if ".Values.crds.keep" in line)
    end = len(lines) - 1
    body = lines[start:keep] + lines[keep + 4 : end]
    return "".join(lines[:start]), "".join(lines[keep : keep + 4]), "".join(body), lines[end]


def fields(server: Cluster) -> set[str]:
    """The fields of spec as the API server has them."""
    path = "jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties}"
    return set(json.loads(server.kubectl("get", "crd", CRD, "-o", path).stdout))


def replicas(server: Cluster, namespace: str) -> str:
    path = "jsonpath={.items[0].spec.replicas}"
    return server.kubectl("get", "deployments", "-n", namespace, "-o", path).stdout

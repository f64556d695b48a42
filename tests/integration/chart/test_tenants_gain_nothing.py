"""The policy for tenants and the roles for people, judged by a real API server for the person who asks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import Cluster

EXAMPLES = Path(__file__).parents[3] / "examples"
PLAIN = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000}
RUNS = {"apiGroups": ["mosaic.dev"], "resources": ["cleanrlruns"], "verbs": ["get", "create", "update", "patch"]}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}


def wandb(secret: str) -> dict[str, Any]:
    return {**PLAIN, "artifacts": {"wandb": {"enabled": True, "apiKeySecretRef": {"name": secret}}}}


def templated(**fields: Any) -> dict[str, Any]:
    return {**PLAIN, "podTemplate": fields}


def volume(driver: str) -> dict[str, Any]:
    return {"name": "data", "mountPath": "/mnt/data", "csi": {"driver": driver}}


def may(name: str, resource: str, *verbs: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": [resource], "resourceNames": [name], "verbs": list(verbs)}


class Tenant:
    """A person with exactly these rights in the namespace."""

    def __init__(self, server: Cluster, namespace: str, name: str, rules: list[dict[str, Any]]) -> None:
        self.server, self.namespace, self.name = server, namespace, name
        head = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
        role = {**head, "kind": "Role", "rules": rules}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
        binding = {**head, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]}
        for each in (role, binding):
            server.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(each))

    def creates(self, spec: dict[str, Any]) -> str:
        """What kubectl says when this person asks for a run; nothing is kept."""
        run = {
            "apiVersion": "mosaic.dev/v1alpha1",
            "kind": "CleanRLRun",
            "metadata": {"name": f"of-{self.name}"},
            "spec": spec,
        }
        command = ["create", "-n", self.namespace, "--as", self.name, "--dry-run=server", "-f", "-"]
        answer = self.server.kubectl(*command, stdin=json.dumps(run), check=False)
        return answer.stdout + answer.stderr


def tenant(server: Cluster, release: str, name: str, *rules: dict[str, Any]) -> Tenant:
    """A tenant, once the policy is in force and the authorizer knows the rights."""
    outsider = Tenant(server, release, "outsider", [RUNS])
    deadline = time.monotonic() + 30
    while "you may not create pods" not in outsider.creates(PLAIN):
        assert time.monotonic() < deadline, "the policy never came into force: " + outsider.creates(PLAIN)
        time.sleep(0.2)
    person = Tenant(server, release, name, [RUNS, *rules])
    while rules and "created" not in person.creates(PLAIN):
        assert time.monotonic() < deadline, person.creates(PLAIN)
        time.sleep(0.2)
    return person


def test_a_run_asks_for_what_a_pod_would_ask_for(server: Cluster, release: str) -> None:
    person = tenant(
        server, release, "alice", PODS, may("mine", "secrets", "get"), may("robot", "serviceaccounts", "use")
    )
    assert "created" in person.creates(PLAIN)
    assert "created" in person.creates(wandb("mine"))
    assert "names the Secret theirs, which you may not read" in person.creates(wandb("theirs"))
    assert "created" in person.creates(templated(serviceAccountName="robot"))
    refused = person.creates(templated(serviceAccountName="admin-robot"))
    assert "names the ServiceAccount admin-robot, which you may not use" in refused
    mine = [{"name": "mine"}] * 8
    assert "created" in person.creates(templated(imagePullSecrets=mine)), "eight questions fit into the cost limit"
    refused = person.creates(templated(imagePullSecrets=[*mine[:7], {"name": "theirs"}]))
    assert "imagePullSecrets names the Secret theirs" in refused
    assert "inline CSI volumes are not allowed here" in person.creates(templated(volumes=[volume("csi.example")]))


def test_every_run_of_the_examples_is_accepted(server: Cluster, release: str) -> None:
    """Of each example its runs: what else it holds is for others to make, or for kinds that are not installed here."""
    tenant(server, release, "dora", PODS)
    documents = [
        each for path in sorted(EXAMPLES.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text()) if each
    ]
    runs = [each for each in documents if each["kind"] == "CleanRLRun"]
    assert len(runs) >= len(documents) / 2, "the examples are mostly runs"
    manifests = "---\n".join(yaml.safe_dump(each) for each in runs)
    said = server.kubectl(
        "create", "-n", release, "--as", "dora", "--dry-run=server", "-f", "-", stdin=manifests
    ).stdout
    assert said.count("created") == len(runs)


def test_a_change_is_judged_for_the_person_who_changes(server: Cluster, release: str) -> None:
    owner = tenant(server, release, "carol", PODS)
    run = {"apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun", "metadata": {"name": "hers"}, "spec": PLAIN}
    server.kubectl("create", "-n", release, "--as", owner.name, "-f", "-", stdin=json.dumps(run))
    change = ["patch", "-n", release, "cleanrlrun", "hers", "--type=merge", "-p"]
    refused = server.kubectl(*change, '{"spec":{"suspend":true}}', "--as", "outsider", check=False).stderr
    assert "you may not create pods" in refused
    server.kubectl(*change, '{"metadata":{"labels":{"seen":"yes"}}}', "--as", "outsider")
    server.kubectl(*change, '{"spec":{"suspend":true}}', "--as", owner.name)


@pytest.mark.parametrize(
    ("role", "allowed", "denied"),
    [
        ("view", ["get", "watch"], ["create", "patch"]),
        ("edit", ["get", "create", "delete"], ["deletecollection"]),
        ("admin", ["get", "create", "deletecollection"], []),
    ],
)
def test_the_built_in_roles_know_runs(
    server: Cluster, release: str, role: str, allowed: list[str], denied: list[str]
) -> None:
    person = f"{role}er"
    server.kubectl("create", "rolebinding", person, f"--clusterrole={role}", f"--user={person}", "-n", release)

    def can(verb: str, *part: str) -> bool:
        about = ["cleanrlruns.mosaic.dev", *part, "-n", release, "--as", person]
        answer = server.kubectl("auth", "can-i", verb, *about, check=False)
        return answer.stdout.strip() == "yes"

    deadline = time.monotonic() + 30
    while not can(allowed[0]):  # the roles are joined by a controller
        assert time.monotonic() < deadline, f"role {role} was not joined"
        time.sleep(0.2)
    assert [can(verb) for verb in allowed] == [True] * len(allowed)
    assert [can(verb) for verb in denied] == [False] * len(denied)
    assert not can("patch", "--subresource=status"), "a status is the operator's alone to write"

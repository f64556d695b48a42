"""The API server refuses, admits, signs and verifies as a production one does."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.api import Api, ApiError
from devcluster.cluster import Cluster


@pytest.fixture
def namespace(api_server: Cluster) -> Iterator[str]:
    name = f"real-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api_server.api().create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    yield name
    api_server.api().delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def api(api_server: Cluster) -> Api:
    return api_server.api()


def call(cluster: Cluster, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """A request without a client certificate."""
    spec = cluster.spec
    trust = ssl.create_default_context(cafile=str(cluster.layout.pki / "ca.crt"))
    connection = http.client.HTTPSConnection(spec.address, spec.ports["api"], context=trust, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, json.load(response)
    finally:
        connection.close()


def token(api: Api, namespace: str, account: str, audience: str) -> str:
    """A token for a service account, once the controller has made it."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    deadline = time.monotonic() + 20
    while True:
        try:
            answer = api.request("POST", path, {"spec": {"audiences": [audience]}})
            return str(answer["status"]["token"])
        except ApiError as error:
            if error.status != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_callers_without_a_name_are_refused(api_server: Cluster) -> None:
    status, body = call(api_server, "/api/v1/namespaces", {})
    assert status == 401
    assert body["reason"] == "Unauthorized"


def test_service_accounts_may_do_nothing_until_a_role_says_so(api_server: Cluster, api: Api, namespace: str) -> None:
    audience = api.get("/.well-known/openid-configuration")["issuer"]
    headers = {"Authorization": f"Bearer {token(api, namespace, 'default', audience)}"}
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    status, body = call(api_server, path, headers)
    assert status == 403
    assert f"system:serviceaccount:{namespace}:default" in body["message"]

    role = {
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    }
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api.create(f"{rbac}/roles", role)
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    api.create(f"{rbac}/rolebindings", {"metadata": {"name": "reader"}, "subjects": [subject], "roleRef": reference})
    deadline = time.monotonic() + 10
    while status != 200 and time.monotonic() < deadline:
        status, body = call(api_server, path, headers)
    assert status == 200


def test_token_review_knows_the_audience(api: Api, namespace: str) -> None:
    given = token(api, namespace, "default", "cleanrl-gateway")

    def review(audience: str) -> dict[str, Any]:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": given, "audiences": [audience]},
        }
        status: dict[str, Any] = api.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)["status"]
        return status

    right = review("cleanrl-gateway")
    assert right["authenticated"] is True
    assert right["audiences"] == ["cleanrl-gateway"]
    assert not review("somebody-else").get("authenticated")


def test_tokens_are_signed_with_a_published_key(api: Api, namespace: str) -> None:
    header = token(api, namespace, "default", "anyone").split(".")[0]
    kid = json.loads(base64.urlsafe_b64decode(header + "=="))["kid"]
    published = [key["kid"] for key in api.get("/openid/v1/jwks")["keys"]]
    assert kid in published


def test_the_restricted_profile_refuses_a_privileged_pod(api: Api, namespace: str) -> None:
    pod = {
        "metadata": {"name": "bold"},
        "spec": {"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": True}}]},
    }
    with pytest.raises(ApiError, match='violates PodSecurity "restricted') as refusal:
        api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    assert refusal.value.status == 403


def test_admission_policies_are_enforced(api: Api, namespace: str) -> None:
    kind = "/apis/admissionregistration.k8s.io/v1"
    policy = {
        "metadata": {"name": namespace},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
                ]
            },
            "validations": [{"expression": "!('forbidden' in object.data)", "message": "write something else"}],
        },
    }
    only_here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {
        "metadata": {"name": namespace},
        "spec": {"policyName": namespace, "validationActions": ["Deny"], "matchResources": only_here},
    }
    api.create(f"{kind}/validatingadmissionpolicies", policy)
    api.create(f"{kind}/validatingadmissionpolicybindings", binding)
    try:
        maps = f"/api/v1/namespaces/{namespace}/configmaps"
        assert api.create(maps, {"metadata": {"name": "good"}, "data": {"allowed": "x"}})
        deadline = time.monotonic() + 20
        message = ""
        while "write something else" not in message and time.monotonic() < deadline:
            try:
                api.create(maps, {"metadata": {"generateName": "bad-"}, "data": {"forbidden": "x"}})
                time.sleep(0.1)  # a policy takes effect a moment after it is made
            except ApiError as refusal:
                message = str(refusal)
        assert "write something else" in message
    finally:
        api.delete(f"{kind}/validatingadmissionpolicybindings/{namespace}")
        api.delete(f"{kind}/validatingadmissionpolicies/{namespace}")


def test_there_is_one_default_storage_class(api: Api) -> None:
    marked = [
        each["metadata"]["name"]
        for each in api.get("/apis/storage.k8s.io/v1/storageclasses")["items"]
        if each["metadata"].get("annotations", {}).get("storageclass.kubernetes.io/is-default-class") == "true"
    ]
    assert marked == ["devcluster"]


def test_the_audit_log_tells_who_did_what(api_server: Cluster, api: Api, namespace: str) -> None:
    api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "traced"}})
    deadline = time.monotonic() + 10
    found: list[dict[str, Any]] = []
    while not found and time.monotonic() < deadline:
        found = [
            entry
            for entry in map(json.loads, complete_lines(api_server.audit_log))
            if entry["verb"] == "create" and entry.get("objectRef", {}).get("name") == "traced"
        ]
    assert found[0]["user"]["username"] == "devcluster-admin"
    assert found[0]["objectRef"]["namespace"] == namespace


def complete_lines(path: Path) -> list[str]:
    return path.read_text().rpartition("\n")[0].splitlines()


def test_faults_strike_only_those_who_go_through_the_proxy(api_server: Cluster) -> None:
    faulty = f"--kubeconfig={api_server.faulty_kubeconfig}"
    with api_server.faults.fault(status=500, path="/version") as fault:
        straight = api_server.kubectl("get", "--raw", "/version")
        assert "v1." in straight.stdout
        struck = api_server.kubectl(faulty, "get", "--raw", "/version", check=False)
        assert struck.returncode != 0
    assert fault.struck >= 1
    who = api_server.kubectl(faulty, "auth", "whoami", "-o", "json")
    assert json.loads(who.stdout)["status"]["userInfo"]["username"] == "devcluster-admin"

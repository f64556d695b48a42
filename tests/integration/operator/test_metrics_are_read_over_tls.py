"""Where the operator's metrics ask for a token they do so over TLS: the API server judges, a real Prometheus reads."""

from __future__ import annotations

import http.client
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

AUDIENCE = "https://kubernetes.default.svc.cluster.local"
HOST = "cleanrl-metrics.operator-system.svc"


@pytest.fixture
def guarded(make_operator: Any, narrow_account: Any, free_port: int) -> Any:
    account = narrow_account("guarded", None)
    secure = {"metrics_auth": "true", "secure_metrics_port": free_port, "metrics_host": HOST}
    operator = make_operator("guarded", kubeconfig=account, operator_class="guarded", **secure)
    operator.start(wait=False)
    deadline = time.monotonic() + 60
    while operator.get("/readyz")[0] != 200:
        assert time.monotonic() < deadline, operator.log.read_text()
        time.sleep(0.1)
    yield operator
    assert operator.stop() == 0


def ask(port: int, authority: bytes, token: str | None) -> tuple[int, str]:
    """What /metrics answers to the bearer of a token who trusts this authority, and calls the server by its name."""
    trust = ssl.create_default_context(cadata=authority.decode())
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trust)
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    plain.connect()
    connection.sock = trust.wrap_socket(plain.sock, server_hostname=HOST)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def reader(lab: Any) -> str:
    """The token of an account that may read metrics."""
    account = f"/api/v1/namespaces/{lab.namespace}/serviceaccounts"
    lab.api.create(account, {"metadata": {"name": "reader"}})
    rights = "/apis/rbac.authorization.k8s.io/v1"
    name = f"reader-{lab.namespace}"
    rule = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    lab.api.create(f"{rights}/clusterroles", {"metadata": {"name": name}, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": lab.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    lab.api.create(
        f"{rights}/clusterrolebindings", {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    )
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [AUDIENCE]}}
    return str(lab.api.request("POST", f"{account}/reader/token", body)["status"]["token"])


def test_a_token_is_asked_for_and_never_in_the_clear(
    guarded: Any, lab: Any, free_port: int, observatory: Any, tmp_path: Path
) -> None:
    authority = lab.authority()
    stranger = lab.token(audience=AUDIENCE)
    assert ask(free_port, authority, None)[0] == 401
    assert ask(free_port, authority, "nonsense")[0] == 401
    assert ask(free_port, authority, lab.token(audience="cleanrl-gateway"))[0] == 401, "a worker's is for the gateway"
    assert ask(free_port, authority, stranger)[0] == 403
    assert guarded.get("/metrics") == (404, f"metrics are served over TLS, on port {free_port}")
    assert guarded.get("/healthz")[0] == 200, "the kubelet needs no token"

    token = reader(lab)
    deadline = time.monotonic() + 150
    while (answer := ask(free_port, authority, token))[0] == 403 and time.monotonic() < deadline:
        time.sleep(2)  # the authorizer may not have seen the binding; an answer is believed for a minute
    assert answer[0] == 200
    assert "cleanrl_operator_leader" in answer[1]

    (tmp_path / "ca.crt").write_bytes(authority)
    (tmp_path / "token").write_text(token)
    trust = {"ca_file": str(tmp_path / "ca.crt"), "server_name": HOST}
    bearer = {"credentials_file": str(tmp_path / "token")}
    ways = {
        "reader": {"scheme": "https", "tls_config": trust, "authorization": bearer},
        "nobody": {"scheme": "https", "tls_config": trust},
        "misled": {"scheme": "https", "tls_config": {**trust, "server_name": "elsewhere"}, "authorization": bearer},
        "plain": {"authorization": bearer},
    }
    targets: dict[str, Any] = {job: (f"127.0.0.1:{free_port}", {}) for job in ways}
    with observatory.Prometheus(tmp_path, targets, ways) as prometheus:
        observatory.until(
            lambda: (
                len(prometheus.query("up")) == len(ways) and prometheus.query('cleanrl_operator_leader{job="reader"}')
            ),
            "Prometheus did not scrape the operator",
            lambda: prometheus.query("up"),
        )
        up = {series["metric"]["job"]: series["value"][1] for series in prometheus.query("up")}
    assert up == {"reader": "1", "nobody": "0", "misled": "0", "plain": "0"}

    told = guarded.log.read_text()
    assert stranger not in told
    assert token not in told
    rights, name = "/apis/rbac.authorization.k8s.io/v1", f"reader-{lab.namespace}"
    lab.api.delete(f"{rights}/clusterrolebindings/{name}")
    lab.api.delete(f"{rights}/clusterroles/{name}")

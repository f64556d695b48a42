"""The operator with exactly the rights that the chart gives, judged by the API server's audit log: none missing, none idle."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import yaml

from cleanrl_protocol import limits
from cleanrl_protocol import session_pb2 as pb
from cleanrl_protocol import session_pb2_grpc as rpc
from devcluster import Cluster
from devcluster.cluster import ESTABLISHED

CRD = "cleanrlruns.mosaic.dev"
Helm = Callable[..., subprocess.CompletedProcess[str]]
Use = tuple[str, str, str]
"""Verb, API group, resource with its subresource."""
IN_NEED: set[Use] = {
    ("get", "", "nodes"),  # is a silent worker's node well?
    ("get", "", "pods"),  # is a pod that no watch shows really gone?
    ("get", "", "persistentvolumeclaims"),  # whose is a claim that has the name already?
    ("get", "mosaic.dev", "cleanrlruns"),  # what is a run like after a conflict?
    ("update", "", "secrets"),  # the authority comes to its end after years
}
"""Rights for situations that this test does not make; others do."""


@pytest.mark.parametrize("scope", ["cluster", "namespaced"])
def test_a_run_lives_without_a_right_missing_or_idle(
    server: Cluster, helm: Helm, chart: Path, namespace: str, tmp_path: Path, scope: str
) -> None:
    helm("install", "cleanrl", str(chart), "-n", namespace, "--set", f"scope={scope}")
    try:
        server.kubectl("wait", ESTABLISHED, f"crd/{CRD}", "--timeout=30s")
        with operator(server, namespace, tmp_path) as gateway_port:
            live(server, namespace, gateway_port)
        account = f"system:serviceaccount:{namespace}:cleanrl-cleanrl-operator"
        used, refused = audited(server, account)
        assert not refused, "the API server refused something that the operator needs"
        granted = rights(helm, namespace)
        assert used - granted == set()
        assert granted - used - IN_NEED == set(), "the chart grants what is never used"
        for verb, resource in (("get", "secrets/other"), ("list", "secrets"), ("list", "deployments.apps")):
            answer = server.kubectl("auth", "can-i", verb, resource, "-n", namespace, "--as", account, check=False)
            assert answer.stdout.strip() == "no", f"{verb} {resource}"
    finally:
        helm("uninstall", "cleanrl", "-n", namespace)
        server.kubectl("delete", "crd", CRD)


def live(server: Cluster, namespace: str, gateway_port: int) -> None:
    """Three runs, as the kubelet and a worker would show them: one registers, one is canceled while its pod still waits, and
    the TensorBoard of one is served, gives its claim to the run's next pod, and goes when its time is over."""
    create(server, namespace, "canceled")
    create(server, namespace, "registered")
    change(server, namespace, "canceled", cancel=True)
    reach(server, namespace, "canceled", "{.status.fsmState}", "TERM")
    path = "jsonpath={.status.podName}"
    pod = server.kubectl("get", "-n", namespace, "cleanrlrun", "registered", "-o", path).stdout
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    worker = {"name": "worker", "ready": True, "restartCount": 0, "image": "", "imageID": ""}
    worker["state"] = {"running": {"startedAt": now}}
    shown = {"status": {"phase": "Running", "containerStatuses": [worker]}}
    server.kubectl("patch", "pod", pod, "-n", namespace, "--subresource=status", "-p", json.dumps(shown))
    reach(server, namespace, "registered", "{.status.fsmState}", "HSHK")
    register(server, namespace, pod, gateway_port)
    reach(server, namespace, "registered", "{.status.fsmState}", "RDY")
    serve(server, namespace)


def serve(server: Cluster, namespace: str) -> None:
    """A run whose TensorBoard outlives its pods."""
    create(server, namespace, "served", artifacts={"tensorboard": {"serve": "always"}})
    board = "{.status.analytics.tensorboard.reason}"
    deployments = ["get", "deployments", "-n", namespace, "-l", "mosaic.dev/run=served", "-o"]
    change(server, namespace, "served", suspend=True)
    reach(server, namespace, "served", "{.status.fsmState}", "PAUSE")
    reach(server, namespace, "served", "{.status.analytics.tensorboard.message}", "TensorBoard is starting.")
    assert server.kubectl(*deployments, "jsonpath={.items[*].spec.replicas}").stdout == "1"
    change(server, namespace, "served", suspend=False)
    reach(server, namespace, "served", "{.status.attempt}", "2")
    assert server.kubectl(*deployments, "jsonpath={.items[*].spec.replicas}").stdout == "0"
    change(server, namespace, "served", cancel=True, ttlSecondsAfterFinished=0)
    reach(server, namespace, "served", board, "Removed")
    assert server.kubectl(*deployments, "name").stdout == ""


def change(server: Cluster, namespace: str, name: str, **spec: object) -> None:
    server.kubectl("patch", "cleanrlrun", name, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))


def create(server: Cluster, namespace: str, name: str, **spec: object) -> None:
    """A run that has its pod."""
    run = {
        "apiVersion": "mosaic.dev/v1alpha1",
        "kind": "CleanRLRun",
        "metadata": {"name": name},
        "spec": {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, **spec},
    }
    server.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(run))
    reach(server, namespace, name, "{.status.podUID}", "")


def register(server: Cluster, namespace: str, pod: str, port: int) -> None:
    """Register as the pod's worker, with a token that is bound to the pod."""
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}", "--audience=cleanrl-gateway"]
    token = server.kubectl("create", "token", "default", "-n", namespace, *bound).stdout.strip()
    path = r"jsonpath={.data.ca\.crt}"
    authority = base64.b64decode(server.kubectl("get", "secret", "cleanrl-gateway", "-n", namespace, "-o", path).stdout)
    run_id = server.kubectl("get", "cleanrlrun", "registered", "-n", namespace, "-o", "jsonpath={.status.runId}").stdout
    name = f"cleanrl-cleanrl-operator-gateway.{namespace}.svc"
    options = [("grpc.ssl_target_name_override", name), ("grpc.enable_http_proxy", 0)]
    credentials = grpc.ssl_channel_credentials(authority)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        request = pb.RegisterWorkerRequest(
            run_id=run_id, worker_id=pod, worker_kind="cleanrl", proto_version=limits.PROTO_VERSION, attempt=1
        )
        stub = rpc.SessionServiceStub(channel)
        reply = stub.RegisterWorker(request, timeout=30, metadata=[("authorization", f"Bearer {token}")])
    assert reply.session_token


@contextlib.contextmanager
def operator(server: Cluster, namespace: str, folder: Path) -> Iterator[int]:
    """The operator as a process here, with the environment and the service account of the chart's pod; its gateway's port."""
    deployment = json.loads(
        server.kubectl("get", "deployment", "cleanrl-cleanrl-operator", "-n", namespace, "-o", "json").stdout
    )
    spec = deployment["spec"]["template"]["spec"]
    environment = {each["name"]: each["value"] for each in spec["containers"][0]["env"] if "value" in each}
    environment |= {"POD_NAME": own_pod(server, namespace), "POD_NAMESPACE": namespace}
    gateway, health = free_port(), free_port()
    environment |= {"CLEANRL_OPERATOR_GATEWAY_PORT": str(gateway), "CLEANRL_OPERATOR_HEALTH_PORT": str(health)}
    access = folder / "kubeconfig"
    kubeconfig = json.loads(server.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json").stdout)
    token = server.kubectl("create", "token", spec["serviceAccountName"], "-n", namespace).stdout.strip()
    kubeconfig["users"][0]["user"] = {"token": token}
    access.write_text(json.dumps(kubeconfig))
    log = folder / "operator.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "cleanrl_operator.main"],
            env={**server.client_environment(), **environment, "KUBECONFIG": str(access)},
            stdout=stream,
            stderr=stream,
            cwd=folder,
        )
        try:
            yield gateway
            assert process.poll() is None, log.read_text()
        except BaseException:
            sys.stderr.write(log.read_text())
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def own_pod(server: Cluster, namespace: str) -> str:
    """The Deployment's pod. No node runs it here; the process takes its place."""
    selector = ["-n", namespace, "-l", "app.kubernetes.io/component=operator"]
    deadline = time.monotonic() + 30
    while not (name := server.kubectl("get", "pods", *selector, "-o", "jsonpath={.items[*].metadata.name}").stdout):
        assert time.monotonic() < deadline, "the Deployment made no pod"
        time.sleep(0.2)
    return name


def reach(server: Cluster, namespace: str, name: str, path: str, wanted: str, seconds: float = 60) -> None:
    """Wait until a field of the run has this value; any value at all, if none is wanted."""
    deadline = time.monotonic() + seconds
    while True:
        found = server.kubectl("get", "cleanrlrun", name, "-n", namespace, "-o", f"jsonpath={path}").stdout
        if found and wanted in ("", found):
            return
        assert time.monotonic() < deadline, f"{path} is {found!r} and not {wanted!r}"
        time.sleep(0.2)


def audited(server: Cluster, account: str) -> tuple[set[Use], list[str]]:
    """What an account did according to the audit log, and what it was refused."""
    used: set[Use] = set()
    refused = []
    for line in server.audit_log.read_text().splitlines():
        event = json.loads(line)
        if event.get("user", {}).get("username") != account or "objectRef" not in event:
            continue
        about = event["objectRef"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        use = (event["verb"], about.get("apiGroup", ""), resource)
        used.add(use)
        if event.get("responseStatus", {}).get("code") == 403:
            refused.append(f"{' '.join(use)}: {event['responseStatus'].get('message')}")
    return used, refused


def rights(helm: Helm, namespace: str) -> set[Use]:
    """What the release's roles for the operator grant."""
    manifest = [each for each in yaml.safe_load_all(helm("get", "manifest", "cleanrl", "-n", namespace).stdout) if each]
    bound = {each["roleRef"]["name"] for each in manifest if each["kind"].endswith("RoleBinding")}
    return {
        (verb, group, resource)
        for each in manifest
        if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] in bound
        for rule in each["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

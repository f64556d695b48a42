"""On a real node: two tenants of one installation see and touch nothing of each other, and names buy them nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

SMALL = {"cpus": {"requested": "200m"}, "memory": "700Mi"}
ALONE = {"tensorboard": {"enabled": False}}
CALL_GATEWAY = """
import os, sys, pathlib, grpc
from cleanrl_protocol import limits, podconfig, session_pb2 as pb, session_pb2_grpc as rpc
config = podconfig.decode(pathlib.Path(os.environ["CLEANRL_POD_CONFIG"]).read_text())
token = pathlib.Path(os.environ["CLEANRL_TOKEN_FILE"]).read_text()
credentials = grpc.ssl_channel_credentials(config.ca_bundle().encode())
channel = grpc.secure_channel(config.gateway_target, credentials, limits.CLIENT_OPTIONS)
stub = rpc.SessionServiceStub(channel)
try:
    request = pb.RegisterWorkerRequest(run_id=%r, attempt=1, proto_version=limits.PROTO_VERSION)
    stub.RegisterWorker(request, metadata=(("authorization", "Bearer " + token),), timeout=20)
    print("accepted")
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""
STRANGER = """
import pathlib, grpc
from cleanrl_protocol import limits, session_pb2 as pb, session_pb2_grpc as rpc
token = pathlib.Path("/folder/token").read_text()
authority = %r
credentials = grpc.ssl_channel_credentials(authority.encode())
stub = rpc.SessionServiceStub(grpc.secure_channel(%r, credentials, limits.CLIENT_OPTIONS))
try:
    request = pb.RegisterWorkerRequest(run_id=%r, attempt=1, proto_version=limits.PROTO_VERSION)
    stub.RegisterWorker(request, metadata=(("authorization", "Bearer " + token),), timeout=20)
    print("accepted")
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""
WHERE = """
import os, pathlib, json
from cleanrl_protocol import podconfig
config = podconfig.decode(pathlib.Path(os.environ["CLEANRL_POD_CONFIG"]).read_text())
print(json.dumps([config.gateway_target, config.ca_bundle()]))
"""
LOOK_AROUND = """
import json, os, pathlib
seen = []
for folder, below, files in os.walk("/", topdown=True, onerror=lambda error: None):
    below[:] = [name for name in below if os.path.join(folder, name) not in ("/proc", "/sys", "/usr", "/lib", "/root")]
    seen += [os.path.join(folder, name) for name in (*below, *files)]
own = pathlib.Path(os.environ["CLEANRL_RUN_DIR"])
tokens = [path for path in seen if path.endswith("/token")]
try:
    (own / ".." / "proof").write_text("I was here")
    escaped = True
except OSError:
    escaped = False
known = (own / "events.jsonl").read_text()
print(json.dumps({"foreign": [path for path in seen if %r in path], "own": %r in known,
                  "tokens": tokens, "escaped": escaped}))
"""


@pytest.fixture(scope="module")
def both(module_runs: Any, other_runs: Any) -> tuple[Any, Any]:
    """Two tenants, each an editor of its own namespace, each with a run in EXEC that has a checkpoint."""
    for person, runs in (("ann", module_runs), ("ben", other_runs)):
        runs.kubectl("create", "rolebinding", "editor", "--clusterrole=edit", f"--user={person}")
        runs.apply("mine", resources=SMALL, artifacts=ALONE)
    for runs in (module_runs, other_runs):
        runs.reach("mine", lambda status: status.get("fsmState") == "EXEC")
        runs.saved("mine")
    return module_runs, other_runs


@pytest.fixture
def ann(both: tuple[Any, Any]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """kubectl in the hands of the first tenant."""

    def ask(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return both[0].cluster.kubectl("--as", "ann", *arguments, stdin=stdin, check=False)

    return ask


def test_nothing_of_another_namespace_can_be_seen_or_touched(both: tuple[Any, Any], ann: Any) -> None:
    mine, theirs = both
    run = theirs.status("mine")
    assert "mine" in ann("-n", mine.namespace, "get", "cleanrlruns").stdout
    there = ["-n", theirs.namespace]
    attempts = [
        ["get", "cleanrlruns"],
        ["get", "pods,persistentvolumeclaims,events,secrets,configmaps"],
        ["patch", "cleanrlrun", "mine", "--type=merge", "-p", '{"spec":{"cancel":true}}'],
        ["delete", "cleanrlrun", "mine"],
        ["logs", run["podName"], "-c", "worker"],
        ["exec", run["podName"], "-c", "worker", "--", "true"],
        ["port-forward", run["podName"], ":9464"],
        ["patch", "cleanrlrun", "mine", "--subresource=status", "--type=merge", "-p", '{"status":{"podUID":"x"}}'],
    ]
    for attempt in attempts:
        answer = ann(*there, *attempt)
        assert answer.returncode != 0, attempt
        assert "forbidden" in answer.stderr.lower(), (attempt, answer.stderr)
    assert "forbidden" in ann("get", "cleanrlruns", "--all-namespaces").stderr.lower()
    status = ["patch", "cleanrlrun", "mine", "--subresource=status", "--type=merge"]
    own = ann("-n", mine.namespace, *status, "-p", json.dumps({"status": {"podUID": run["podUID"]}}))
    assert "forbidden" in own.stderr.lower(), "not even one's own status can be made to name a foreign pod"


def test_a_worker_speaks_for_its_own_run_alone(both: tuple[Any, Any]) -> None:
    mine, theirs = both
    before = theirs.status("mine")
    refused = mine.inside("mine", CALL_GATEWAY % before["runId"])
    assert refused.split()[0] in ("PERMISSION_DENIED", "FAILED_PRECONDITION"), refused
    target, authority = json.loads(mine.inside("mine", WHERE))
    token = {"audience": "cleanrl-gateway", "expirationSeconds": 600, "path": "token"}
    volume = {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}}
    mount = {"name": "token", "mountPath": "/folder", "readOnly": True}
    labels = {
        "app.kubernetes.io/name": "cleanrl-worker",
        "mosaic.dev/run": "mine",
        "mosaic.dev/attempt": "1",
    }
    for run_id in (before["runId"], mine.status("mine")["runId"]):
        said = mine.python(STRANGER % (authority, target, run_id), mount, volume, labels)
        assert said.split()[0] in ("UNAVAILABLE", "FAILED_PRECONDITION"), "its labels prove nothing"
    after = theirs.reach("mine", lambda status: status["progress"]["step"] > before["progress"]["step"])
    assert after["session"]["registeredAt"] == before["session"]["registeredAt"], "its session was never disturbed"
    assert mine.status("mine")["fsmState"] == "EXEC", "a pod dressed up as a worker is not taken for one"


def test_a_worker_sees_its_own_folder_of_a_claim_alone(both: tuple[Any, Any]) -> None:
    mine, _ = both
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Mi"}}}
    shared = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": claim}
    mine.kubectl("create", "-f", "-", stdin=json.dumps(shared))
    for name in ("left", "right"):
        mine.apply(name, resources=SMALL, artifacts={**ALONE, "storage": {"claimName": "shared"}})
    ids = {
        name: mine.reach(name, lambda status: status.get("fsmState") == "EXEC")["runId"] for name in ("left", "right")
    }
    seen = json.loads(mine.inside("left", LOOK_AROUND % (ids["right"], ids["left"])))
    assert seen["foreign"] == []
    assert seen["own"], "what looks finds its own"
    assert not seen["escaped"]
    assert all("kubernetes.io" not in path for path in seen["tokens"]), "no token for the API server is in a worker"
    for name in ("left", "right"):
        mine.change(name, cancel=True)


def test_names_of_another_namespace_lead_nowhere(both: tuple[Any, Any], ann: Any) -> None:
    mine, theirs = both
    theirs.kubectl("create", "secret", "generic", "api-key", "--from-literal=api-key=not-yours")
    theirs.kubectl("create", "serviceaccount", "robot")
    claim = theirs.status("mine")["analytics"]["claimName"]
    assert claim != mine.status("mine")["analytics"]["claimName"]
    cases = {
        "from-run": {"mode": "resume", "from": {"run": "only-theirs"}},
        "their-claim": {"artifacts": {**ALONE, "storage": {"claimName": claim}}},
        "their-secret": {
            "artifacts": {**ALONE, "wandb": {"enabled": True, "apiKeySecretRef": {"name": "api-key", "key": "api-key"}}}
        },
        "their-account": {"podTemplate": {"serviceAccountName": "robot"}},
    }
    theirs.apply("only-theirs", suspend=True)
    answers = {}
    for name, spec in cases.items():
        base = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, "resources": SMALL, "artifacts": ALONE}
        run = {
            "apiVersion": "mosaic.dev/v1alpha1",
            "kind": "CleanRLRun",
            "metadata": {"name": name},
            "spec": base | spec,
        }
        answers[name] = ann("-n", mine.namespace, "create", "-f", "-", stdin=json.dumps(run))
    assert [answer.returncode for answer in answers.values()] == [0, 0, 0, 0], (
        "an editor may use what is in the namespace"
    )
    robbed = mine.reach("their-account", lambda status: status.get("reason") == "NotAdmittedYet")
    assert "podUID" not in robbed
    assert 'serviceaccount "robot" not found' in robbed["message"]
    missing = mine.reach("from-run", lambda status: status.get("fsmState") == "TERM")
    assert (missing["outcome"], missing["reason"]) == ("failed", "BadConfig")
    assert "there is no such run in this namespace" in missing["message"]
    waiting = mine.reach("their-claim", lambda status: claim in (status.get("message") or ""))
    assert (waiting["fsmState"], waiting["reason"]) == ("INIT", "Unschedulable")
    assert f'persistentvolumeclaim "{claim}" not found' in waiting["message"]
    keyless = mine.reach("their-secret", lambda status: "api-key" in (status.get("message") or ""))
    assert (keyless["fsmState"], keyless["reason"]) == ("INIT", "Pending")
    assert 'secret "api-key" not found' in keyless["message"]

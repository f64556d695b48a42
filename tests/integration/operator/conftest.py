"""A real operator process on a real API server. Pod statuses are set by the tests, workers are real sessions."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cleanrl_operator.api import GROUP, KIND, PLURAL, VERSION

from cleanrl_protocol.record import CheckpointRef, TerminationRecord, Transition, dump
from cleanrl_worker.session import Backoff, Session, Worker
from cleanrl_worker.telemetry import EventLog
from devcluster import Cluster
from devcluster.api import ApiError

PROJECT = Path(__file__).parents[3]
RUNS = f"/apis/{GROUP}/{VERSION}"
SYSTEM = "operator-system"
PATIENCE = 60.0
"""How long a test waits for what has to happen. Only a failing test waits that long."""
SHA = "a" * 64

OWN_POD = {"containers": [{"name": "operator", "image": "operator"}]}

Object = dict[str, Any]


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(ask: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Ask until the answer is true; the answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"did not happen: {what() if callable(what) else what}"
        time.sleep(0.05)


@dataclass
class OperatorProcess:
    """One `python -m cleanrl_operator.main`."""

    environment: dict[str, str]
    log: Path
    gateway_port: int
    health_port: int
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> OperatorProcess:
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cleanrl_operator.main"], env=self.environment, stderr=stream, stdout=stream
            )
        if wait:
            until(self.leads, lambda: f"the operator leads and is ready\n{self.log.read_text()[-3000:]}")
        return self

    def leads(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return self.get("/readyz")[0] == 200 and "cleanrl_operator_leader 1.0" in self.get("/metrics")[1]

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def keep_alive(self) -> None:
        """What the kubelet does: start it again if it has ended."""
        if self.process is None or self.process.poll() is not None:
            self.start(wait=False)

    def kill(self) -> None:
        """As a node's death would: at once."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def lines(self) -> list[Object]:
        """Its log; fails on a line that is not JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@dataclass
class FakeWorker:
    """A worker's event log and its session with the gateway."""

    log: EventLog
    session: Session
    wishes: list[Any] = field(default_factory=list)

    def emit(self, event: str, **payload: Any) -> int:
        record = self.log.emit(event, **payload)
        self.session.publish(record)
        return int(record["seq"])

    def scalars(self, step: int, **values: float) -> int:
        return self.emit("scalars", step=step, total=1000, sps=10.0, episodes=1, values=values)

    def checkpoint(self, step: int) -> int:
        path = f"checkpoints/{step}"
        return self.emit("checkpoint_saved", path=path, step=step, sha256=SHA, bytes=1, seconds=0.1, reason="interval")


class Lab:
    """One namespace, and everything a test does in it."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path, gateway_port: int = 0, operator_class: str = ""):
        self.cluster = cluster
        self.namespace = namespace
        self.api = cluster.api()
        self.gateway_port = gateway_port
        self.operator_class = operator_class
        self._folder = folder
        self._workers: list[FakeWorker] = []

    # -- runs

    def create(self, name: str, **spec: Any) -> Object:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": name},
            "spec": {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, **spec},
        }
        if self.operator_class:
            body["spec"]["operatorClass"] = self.operator_class
        return self.api.request("POST", f"{RUNS}/namespaces/{self.namespace}/{PLURAL}", body)

    def run(self, name: str) -> Object:
        return self.api.get(f"{RUNS}/namespaces/{self.namespace}/{PLURAL}/{name}")

    def status(self, name: str) -> Object:
        return dict(self.run(name).get("status") or {})

    def edit(self, name: str, **spec: Any) -> Object:
        return self.api.merge(f"{RUNS}/namespaces/{self.namespace}/{PLURAL}/{name}", {"spec": spec})

    def edit_status(self, name: str, **status: Any) -> Object:
        return self.api.merge(f"{RUNS}/namespaces/{self.namespace}/{PLURAL}/{name}/status", {"status": status})

    def delete(self, name: str) -> None:
        self.api.delete(f"{RUNS}/namespaces/{self.namespace}/{PLURAL}/{name}")

    def until(self, name: str, **wanted: Any) -> Object:
        """The run's status once all these fields are so."""
        seen: Object = {}

        def there() -> bool:
            seen.clear()
            seen.update(self.status(name))
            return all(seen.get(field) == value for field, value in wanted.items())

        until(there, lambda: f"{name} has {wanted}; it has {json.dumps(seen)}")
        return seen

    def walked(self, name: str) -> list[str]:
        return [step["to"] for step in self.status(name)["transitions"]]

    def events(self, name: str) -> list[str]:
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/events?limit=500")["items"]
        ours = [item for item in items if item["involvedObject"].get("name") == name]
        return [item["reason"] for item in sorted(ours, key=lambda item: item.get("eventTime") or "")]

    # -- pods

    def pods(self, name: str) -> list[Object]:
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={GROUP}/run%3D{name}"
        items: list[Object] = self.api.get(path)["items"]
        return items

    def pod_path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.status(name)['podName']}"

    def set_pod(self, name: str, **status: Any) -> None:
        self.api.merge(f"{self.pod_path(name)}/status", {"status": status})

    def delete_pod(self, name: str) -> None:
        self.api.request("DELETE", f"{self.pod_path(name)}?gracePeriodSeconds=0")

    def start_pod(self, name: str) -> Object:
        """Wait for the pod, and let its worker container run."""
        self.until(name, fsmState="INIT")
        until(lambda: self.status(name).get("podUID"), f"{name} has a pod")
        self.set_pod(name, phase="Running", containerStatuses=[container(running={"startedAt": now()})])
        return self.until(name, fsmState="HSHK")

    def end_pod(
        self, name: str, exit_code: int = 0, *, reason: str = "", phase: str = "", why: str | None = None, **record: Any
    ) -> None:
        """The worker container ends, for the kubelet's `reason`, with a record and its reason `why` if that has an outcome."""
        message = self.record(name, reason=why, **record) if record else ""
        done = {"exitCode": exit_code, "finishedAt": now(), "startedAt": now(), "message": message}
        done["reason"] = reason or ("Completed" if exit_code == 0 else "Error")
        phase = phase or ("Succeeded" if exit_code == 0 else "Failed")
        self.set_pod(name, phase=phase, containerStatuses=[container(terminated=done)])

    def record(self, name: str, outcome: str, checkpoint: int = 0, **fields: Any) -> str:
        status = self.status(name)
        made = TerminationRecord(
            run_id=status["runId"],
            attempt=status["attempt"],
            outcome=outcome,  # type: ignore[arg-type]
            transitions=[Transition(state="RDY", at=time.time()), Transition(state="EXEC", at=time.time())],
            checkpoint=CheckpointRef(path=f"checkpoints/{checkpoint}", step=checkpoint, sha256=SHA)
            if checkpoint
            else None,
            **fields,
        )
        return dump(made).decode()

    # -- workers

    def token(self, pod: str = "", uid: str = "", audience: str = "cleanrl-gateway", seconds: int = 3600) -> str:
        spec: Object = {"audiences": [audience], "expirationSeconds": seconds}
        if pod:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.api.request("POST", f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default/token", body)
        return str(answer["status"]["token"])

    def authority(self) -> bytes:
        secret = self.api.get(f"/api/v1/namespaces/{SYSTEM}/secrets/cleanrl-gateway")
        return base64.b64decode(secret["data"]["ca.crt"])

    def worker(self, name: str, **options: Any) -> FakeWorker:
        """The worker of the run's current pod, connecting."""
        status = self.status(name)
        folder = self._folder / f"{self.namespace}-{name}"
        folder.mkdir(exist_ok=True)
        token = folder / "token"
        token.write_text(self.token(status["podName"], status["podUID"]))
        (folder / "ca.pem").write_bytes(self.authority())
        log = EventLog(folder / "events.jsonl", status["runId"], None)
        wishes: list[Any] = []
        session = Session(
            f"localhost:{self.gateway_port}",
            Worker(run_id=status["runId"], algo="ppo", env_id="CartPole-v1", attempt=status["attempt"], **options),
            log.path,
            on_desired=wishes.append,
            token_file=token,
            ca_file=folder / "ca.pem",
            backoff=Backoff(first=0.1, cap=0.5),
        )
        worker = FakeWorker(log, session, wishes)
        self._workers.append(worker)
        session.start()
        return worker

    def execute(self, name: str, **options: Any) -> FakeWorker:
        """From a new run to EXEC."""
        self.start_pod(name)
        worker = self.worker(name, **options)
        assert worker.session.wait_registered(PATIENCE)
        worker.emit("run_started", attempt=self.status(name)["attempt"])
        self.until(name, fsmState="EXEC")
        return worker

    def close(self) -> None:
        for worker in self._workers:
            worker.session.close(0.1)
        with contextlib.suppress(ApiError):
            self.api.delete(f"/api/v1/namespaces/{self.namespace}")


def container(**state: Any) -> Object:
    return {
        "name": "worker",
        "ready": False,
        "restartCount": 0,
        "image": "worker",
        "imageID": "",
        "state": state,
        "started": "running" in state,
    }


def now(seconds_ago: float = 0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))


@pytest.fixture(scope="session")
def cluster(api_server: Cluster) -> Cluster:
    """The API server with our resource and the operator's namespace."""
    api_server.kubectl("apply", "-f", str(PROJECT / "crds"))
    api = api_server.api()
    until(lambda: api.answers(f"{RUNS}/{PLURAL}"), "the API server takes the CRD up")
    api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    return api_server


@pytest.fixture(scope="session")
def make_operator(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., OperatorProcess]]:
    """An operator that is not started yet, with settings of its own."""
    made: list[OperatorProcess] = []

    def make(name: str, *, kubeconfig: Path | None = None, faulty: bool = False, **settings: Any) -> OperatorProcess:
        gateway, health = unused_port(), unused_port()
        config = kubeconfig or (cluster.faulty_kubeconfig if faulty else cluster.kubeconfig)
        pod = f"operator-{name}"
        cluster.api().create(f"/api/v1/namespaces/{SYSTEM}/pods", {"metadata": {"name": pod}, "spec": OWN_POD})
        own = {
            "pod_name": pod,  # one that is killed and restarted may lead again at once
            "gateway_target": f"localhost:{gateway}",
            "gateway_port": gateway,
            "health_port": health,
            "namespace": SYSTEM,
            "lease_name": f"lease-{name}",
            "worker_image": "worker:test",
            **settings,
        }
        environment = {
            **cluster.client_environment(),
            "KUBECONFIG": str(config),
            "PYTHONFAULTHANDLER": "1",
            **{f"CLEANRL_OPERATOR_{key.upper()}": str(value) for key, value in own.items()},
        }
        for variable in ("POD_NAME", "POD_NAMESPACE"):
            environment.pop(variable, None)
        log = tmp_path_factory.mktemp(f"operator-{name}") / "operator.log"
        made.append(OperatorProcess(environment, log, gateway, health))
        return made[-1]

    yield make
    for operator in made:
        if operator.process is not None and operator.process.poll() is None:
            operator.process.kill()
            operator.process.wait()


@pytest.fixture(scope="session")
def operator(
    make_operator: Callable[..., OperatorProcess], narrow_account: Callable[[str, list[str] | None], Path]
) -> OperatorProcess:
    """The operator that most tests share, with no more rights than it needs."""
    return make_operator("shared", kubeconfig=narrow_account("shared", None)).start()


RUN_RIGHTS = [
    {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [GROUP], "resources": [f"{PLURAL}/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "create", "delete"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "create", "patch", "delete"]},
]
"""What the operator needs where runs are."""
OWN_RIGHTS = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["cleanrl-gateway"], "verbs": ["get", "update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
]
"""What it needs in its own namespace."""
CLUSTER_RIGHTS = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
]
"""What it needs besides, where it looks after all namespaces."""


@pytest.fixture(scope="session")
def narrow_account(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, list[str] | None], Path]:
    """A ServiceAccount with exactly the rights that the operator needs; its kubeconfig.

    With namespaces given it has no ClusterRole at all, with None it looks after all of them.
    """

    def make(account: str, namespaces: list[str] | None) -> Path:
        api = cluster.api()
        if namespaces is None:
            rights = "/apis/rbac.authorization.k8s.io/v1"
            rules = [*RUN_RIGHTS, *CLUSTER_RIGHTS]
            api.create(f"{rights}/clusterroles", {"metadata": {"name": account}, "rules": rules})
            binding = {
                "metadata": {"name": account},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}],
            }
            api.create(f"{rights}/clusterrolebindings", binding)
            namespaces = []
        api.create(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": account}})
        for namespace, rules in [(SYSTEM, OWN_RIGHTS), *((name, RUN_RIGHTS) for name in namespaces)]:
            rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
            api.create(f"{rights}/roles", {"metadata": {"name": account}, "rules": rules})
            binding = {
                "metadata": {"name": account},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}],
            }
            api.create(f"{rights}/rolebindings", binding)
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
        token = api.request("POST", path, body)["status"]["token"]
        known = json.loads(cluster.kubectl("config", "view", "--raw", "--minify", "-o", "json").stdout)
        known["users"] = [{"name": "account", "user": {"token": token}}]
        known["contexts"] = [{"name": "c", "context": {"cluster": known["clusters"][0]["name"], "user": "account"}}]
        known["current-context"] = "c"
        file = tmp_path_factory.mktemp("account") / "kubeconfig"
        file.write_text(json.dumps(known))
        return file

    return make


@pytest.fixture
def free_port() -> int:
    """A port that nobody has at the moment."""
    return unused_port()


@pytest.fixture
def make_lab(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Lab]]:
    """Namespaces of a test's own."""
    labs: list[Lab] = []

    def make(
        gateway_port: int = 0,
        labels: dict[str, str] | None = None,
        operator_class: str = "",
        name: str | None = None,
    ) -> Lab:
        namespace = name or f"t{os.getpid()}-{abs(hash(request.node.nodeid)) % 10**8}-{len(labs)}"
        cluster.api().create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels or {}}})
        lab = Lab(cluster, namespace, tmp_path, gateway_port, operator_class)
        until(lambda: lab.api.answers(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"), "the account is made")
        labs.append(lab)
        return lab

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def lab(make_lab: Callable[..., Lab], operator: OperatorProcess) -> Lab:
    """A namespace that the shared operator looks after, under the restricted Pod Security standard."""
    return make_lab(operator.gateway_port, {"pod-security.kubernetes.io/enforce": "restricted"})

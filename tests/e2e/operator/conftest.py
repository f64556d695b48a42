"""The operator, installed by its chart on the real node, and what tests do with runs."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster import Cluster, binaries
from devcluster.images import BASE

PROJECT = Path(__file__).parents[3]
SYSTEM = "cleanrl-system"


class Runs:
    """Runs of one namespace, seen through kubectl as a user sees them."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints in this namespace."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin).stdout

    def apply(self, name: str, **spec: Any) -> None:
        """Apply a manifest: ppo on CartPole, small enough for a shared machine, changed by `spec` (None: left out)."""
        base = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 50_000_000, "seed": 1}
        base |= {"resources": {"cpus": {"requested": "500m"}, "memory": "1Gi"}, "fastlane": {"videoMode": "off"}}
        base |= {"checkpoint": {"everySteps": 2000, "keep": 2}, "retry": {"limit": 2, "backoffSeconds": 1}}
        manifest = {"apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun", "metadata": {"name": name}}
        wanted = {field: value for field, value in (base | spec).items() if value is not None}
        self.kubectl("apply", "-f", "-", stdin=json.dumps({**manifest, "spec": wanted}))

    def change(self, name: str, **spec: Any) -> None:
        """Change fields of a run's spec."""
        self.kubectl("patch", "cleanrlrun", name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def status(self, name: str) -> dict[str, Any]:
        """The run's status."""
        return dict(json.loads(self.kubectl("get", "cleanrlrun", name, "-o", "json")).get("status", {}))

    def reach(self, name: str, what: Callable[[dict[str, Any]], bool], seconds: float = 200) -> dict[str, Any]:
        """Wait until this holds of the run's status; the status."""
        deadline = time.monotonic() + seconds
        while not what(status := self.status(name)):
            assert time.monotonic() < deadline, self.story(name, status)
            time.sleep(0.5)
        return status

    def says(self, name: str, event: str, seconds: float = 90) -> dict[str, Any]:
        """Wait until the worker of the run's pod has said this; what it said with it, the first time."""
        pod = self.status(name)["podName"]
        deadline = time.monotonic() + seconds
        while True:
            for line in self.kubectl("logs", pod, "-c", "worker").splitlines():
                if line.startswith("{") and (said := json.loads(line))["event"] == event:
                    return dict(said["payload"])
            assert time.monotonic() < deadline, self.story(name, self.status(name))
            time.sleep(0.5)

    def freed(self, name: str, seconds: float = 60) -> None:
        """Wait until no pod of the run holds anything of the node any more."""
        deadline = time.monotonic() + seconds
        path = "jsonpath={range .items[*]}{.metadata.name} {.status.phase}{'\\n'}{end}"
        while held := self.kubectl("get", "pods", "-l", f"mosaic.dev/run={name}", "-o", path).split("\n"):
            if not [line for line in held if line and not line.endswith(("Succeeded", "Failed"))]:
                return
            assert time.monotonic() < deadline, f"{held}\n{self.story(name, self.status(name))}"
            time.sleep(0.5)

    def story(self, name: str, status: dict[str, Any]) -> str:
        """All that helps to understand a run that does not do what it should."""
        parts = [json.dumps(status, indent=1), self.kubectl("get", "pods,events")]
        pods = self.kubectl("get", "pods", "-l", f"mosaic.dev/run={name}", "-o", "name").split()
        parts += [self.kubectl("logs", pod, "--all-containers", "--tail=20", "--ignore-errors") for pod in pods]
        selector = ["-n", SYSTEM, "logs", "-l", "app.kubernetes.io/component=operator", "--tail=40"]
        parts.append(self.cluster.kubectl(*selector, check=False).stdout)
        return "\n".join(parts)

    def read(self, name: str, program: str) -> str:
        """What a Python program prints that sees the run's folder, and nothing else of the claim, read-only."""
        status = self.status(name)
        claim = self.kubectl("get", "pvc", "-l", f"mosaic.dev/run={name}", "-o", "jsonpath={.items[0].metadata.name}")
        mount = {"name": "claim", "mountPath": "/folder", "subPath": f"runs/{status['runId']}", "readOnly": True}
        volume = {"name": "claim", "persistentVolumeClaim": {"claimName": claim}}
        return self.python(program, mount, volume)

    def python(
        self,
        program: str,
        mount: dict[str, Any] | None = None,
        volume: dict[str, Any] | None = None,
        labels: dict[str, str] | None = None,
    ) -> str:
        """What a Python program prints in a pod of its own; it starts in the folder that is mounted."""
        pod = f"reader-{secrets.token_hex(4)}"
        confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {"name": "main", "image": BASE, "command": ["python", "-c", program], "securityContext": confined}
        container |= {"volumeMounts": [mount], "workingDir": mount["mountPath"]} if mount else {}
        user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {"restartPolicy": "Never", "securityContext": user, "containers": [container]}
        spec["volumes"] = [volume] if volume else []
        metadata = {"name": pod, "labels": labels or {}}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        self.kubectl("wait", f"pod/{pod}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=90s")
        return self.kubectl("logs", pod)

    def inside(self, name: str, program: str) -> str:
        """What a Python program prints in the container of the run's worker."""
        pod = self.status(name)["podName"]
        return self.kubectl("exec", pod, "-c", "worker", "--", "python", "-c", program)

    def saved(self, name: str) -> dict[str, Any]:
        """Have the run save a checkpoint now, by a short pause; its status then."""
        before = (self.status(name).get("checkpoint") or {}).get("step", -1)
        self.change(name, pause=True)
        self.reach(
            name,
            lambda status: status["fsmState"] == "PAUSE" and (status.get("checkpoint") or {}).get("step", -1) > before,
        )
        self.change(name, pause=False)
        return self.reach(name, lambda status: status["fsmState"] == "EXEC")

    def warned(self, name: str, reason: str, seconds: float = 30) -> str:
        """Wait for the Warning that `kubectl describe` shows of the run; its sentence."""
        chosen = f"involvedObject.name={name},reason={reason},type=Warning"
        deadline = time.monotonic() + seconds
        while not (
            said := self.kubectl("get", "events", "--field-selector", chosen, "-o", "jsonpath={.items[*].message}")
        ):
            assert time.monotonic() < deadline, f"no Warning {reason}: {self.kubectl('get', 'events')}"
            time.sleep(0.5)
        return said

    def left(self, kinds: str = "pods,services,deployments,persistentvolumeclaims") -> list[str]:
        """The names of what is in the namespace."""
        return self.kubectl("get", kinds, "-o", "name").split()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The run's numbered log, over all its attempts."""
        return [json.loads(line) for line in self.read(name, "print(open('events.jsonl').read())").splitlines() if line]


@pytest.fixture(scope="package")
def helm(node_cluster: Cluster) -> Callable[..., str]:
    """Run helm against the cluster."""
    program = binaries.ensure("helm")

    def run(*arguments: str) -> str:
        environment = {**node_cluster.client_environment(), "KUBECONFIG": str(node_cluster.kubeconfig)}
        answer = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, env=environment)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    return run


@pytest.fixture(scope="package")
def install(helm: Callable[..., str]) -> Callable[[], None]:
    """Install the chart with this project's own images, and wait until the operator is ready."""
    images = ["--set", "image.tag=dev", "--set", "worker.image.tag=dev", "--set", "worker.graceSeconds=30"]
    images += ["--set", "worker.wheelCache.claimName=wheels"]

    def run() -> None:
        chart = str(PROJECT / "helm" / "cleanrl-operator")
        helm("install", "cleanrl", chart, "-n", SYSTEM, *images, "--wait", "--timeout", "2m")

    return run


@pytest.fixture(scope="package")
def operator(node_cluster: Cluster, helm: Callable[..., str], install: Callable[[], None]) -> Iterator[Cluster]:
    """The operator, installed by its chart and ready, in a namespace that enforces the restricted profile."""
    node_cluster.kubectl("create", "namespace", SYSTEM)
    node_cluster.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")
    install()
    yield node_cluster
    helm("uninstall", "cleanrl", "-n", SYSTEM, "--wait")
    node_cluster.kubectl("delete", "crd", "cleanrlruns.mosaic.dev")
    node_cluster.kubectl("delete", "namespace", SYSTEM, "--wait=false")


@pytest.fixture
def system(operator: Cluster) -> Runs:
    """The operator's own namespace."""
    return Runs(operator, SYSTEM)


@pytest.fixture
def runs(operator: Cluster) -> Iterator[Runs]:
    """A tenant's namespace, for one test."""
    with tenant(operator) as runs:
        yield runs


@pytest.fixture(scope="module")
def module_runs(operator: Cluster) -> Iterator[Runs]:
    """A tenant's namespace, for all tests of a module."""
    with tenant(operator) as runs:
        yield runs


@pytest.fixture(scope="module")
def other_runs(operator: Cluster) -> Iterator[Runs]:
    """Another tenant's."""
    with tenant(operator) as runs:
        yield runs


@contextlib.contextmanager
def tenant(operator: Cluster) -> Iterator[Runs]:
    """A tenant's namespace that enforces the restricted profile."""
    name = f"team-{secrets.token_hex(4)}"
    operator.kubectl("create", "namespace", name)
    operator.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield Runs(operator, name)
    operator.kubectl("delete", "namespace", name, "--wait=false")

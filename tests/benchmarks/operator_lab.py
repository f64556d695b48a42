"""What the operator's benchmarks share: a cluster whose controllers are not throttled, an operator process, quick clients.

Times are taken by `time.monotonic`, which all processes of a machine share. What becomes visible is seen by a watch in a
process of its own that only notes when each line came; the lines are read afterwards, so that looking costs little.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import http.client
import json
import os
import platform
import random
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
from cleanrl_operator.api import GROUP, KIND, PLURAL, VERSION
from reporting import cpu_seconds, machine

from cleanrl_protocol.record import CheckpointRef, TerminationRecord, Transition, dump
from devcluster import Cluster as Cluster  # the benchmarks have theirs from here
from devcluster.components import Component
from devcluster.spec import Spec

PROJECT = Path(__file__).resolve().parents[2]
RUNS = f"/apis/{GROUP}/{VERSION}"
SYSTEM = "operator-system"
SHARED_CLAIM = "shared"
OPERATOR_AGENTS = ("cleanrl-operator", "kopf")
WRITES = {"create", "update", "patch", "delete", "deletecollection"}
CHILDREN = {PLURAL, "pods", "persistentvolumeclaims"}
Object = dict[str, Any]


class NotReached(Exception):
    """Something did not happen in time."""


class GivenUp(NotReached):
    """The API server gave up on a request that takes longer than a minute (504); what it had done by then is done."""


# -- the cluster


class UnthrottledCluster(Cluster):
    """A control plane whose built-in controllers have their client limits and workers raised, so that none is held back."""

    MORE: ClassVar[dict[str, list[str]]] = {
        "kube-controller-manager": [
            "--kube-api-qps=1000", "--kube-api-burst=1000", "--concurrent-job-syncs=1000",
            "--terminated-pod-gc-threshold=100000",
        ],
        "kube-scheduler": ["--kube-api-qps=1000", "--kube-api-burst=1000"],
        "kube-apiserver": ["--audit-log-maxsize=8000"],
    }  # fmt: skip

    def _components(self, spec: Spec) -> list[Component]:
        return [
            dataclasses.replace(component, argv=[*component.argv, *self.MORE.get(component.name, [])])
            for component in super()._components(spec)
        ]


def nodes_for(pods: int) -> int:
    """Pretended nodes on which so many pods find room: a node has 32 cores, a run's pod asks for 1.15."""
    return pods // 25 + 4


@contextlib.contextmanager
def cluster(kwok_nodes: int, **options: Any) -> Iterator[Cluster]:
    """A cluster with our resource and the operator's account and namespace, gone at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a benchmark that is stopped takes its cluster down too
    made = UnthrottledCluster(f"bench-{os.getpid()}", kwok_nodes=kwok_nodes, audit_log=True, **options)
    with made:
        api = made.api()
        made.kubectl("apply", "-f", str(PROJECT / "crds"))
        until(lambda: api.answers(f"{RUNS}/{PLURAL}"), "the API server takes the CRD up")
        api.create("/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        rules = [
            {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]},
            {
                "apiGroups": [""],
                "resources": ["pods", "persistentvolumeclaims", "events", "secrets", "nodes"],
                "verbs": ["*"],
            },
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        ]
        api.create(f"{rbac}/clusterroles", {"metadata": {"name": "operator"}, "rules": rules})
        binding = {
            "metadata": {"name": "operator"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator"},
            "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": SYSTEM}],
        }
        api.create(f"{rbac}/clusterrolebindings", binding)
        api.create(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": "operator"}})
        until(lambda: api.answers(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/default"), "accounts are made")
        yield made


def make_namespace(made: Cluster, name: str) -> str:
    """A namespace with a shared claim in it, ready for pods."""
    api = made.api()
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    until(lambda: api.answers(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "the account is made")
    claim = {
        "metadata": {"name": SHARED_CLAIM},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": f"volume-{name}",
            "storageClassName": "",
        },
    }
    volume = {
        "metadata": {"name": f"volume-{name}"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": name, "name": SHARED_CLAIM},
            "storageClassName": "",
        },
    }
    api.create("/api/v1/persistentvolumes", volume)
    api.create(f"/api/v1/namespaces/{name}/persistentvolumeclaims", claim)
    path = f"/api/v1/namespaces/{name}/persistentvolumeclaims/{SHARED_CLAIM}"
    until(lambda: (api.get(path).get("status") or {}).get("phase") == "Bound", "the claim is bound")
    return name


def run_body(name: str, **spec: Any) -> Object:
    """A run on the shared claim, small enough for a thousand of them on a pretended node."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "algo": "ppo",
            "envId": "CartPole-v1",
            "totalTimesteps": 1000,
            "resources": {"cpus": {"requested": 1}, "memory": "64Mi"},
            "artifacts": {"storage": {"claimName": SHARED_CLAIM}},
            **spec,
        },
    }


def runs_path(namespace: str, name: str = "", sub: str = "") -> str:
    return "/".join(part for part in (f"{RUNS}/namespaces/{namespace}/{PLURAL}", name, sub) if part)


def pods_path(namespace: str, name: str = "", sub: str = "") -> str:
    return "/".join(part for part in (f"/api/v1/namespaces/{namespace}/pods", name, sub) if part)


def runs_backwards(status: Object) -> bool:
    """Whether a run's transitions are not in the order of their times."""
    moments = [datetime.fromisoformat(step["at"]) for step in status["transitions"]]
    return moments != sorted(moments)


def running() -> Object:
    return {"phase": "Running", "containerStatuses": [container(running={"startedAt": stamp()})]}


def completed(run_id: str, attempt: int, checkpoint: CheckpointRef | None = None) -> Object:
    """The status of a pod whose worker did all its steps and left its record."""
    now = time.time()
    record = TerminationRecord(
        run_id=run_id,
        attempt=attempt,
        outcome="completed",
        last_step=1000,
        checkpoint=checkpoint,
        transitions=[Transition(state="RDY", at=now), Transition(state="EXEC", at=now)],
    )
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": stamp(), "finishedAt": stamp()}
    return {
        "phase": "Succeeded",
        "containerStatuses": [container(terminated={**ended, "message": dump(record).decode()})],
    }


def container(**state: Any) -> Object:
    return {
        "name": "worker", "ready": False, "restartCount": 0, "image": "worker", "imageID": "",
        "state": state, "started": "running" in state,
    }  # fmt: skip


def stamp(seconds_ago: float = 0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))


# -- clients


class Client:
    """A quick asynchronous client of the API server, as its administrator."""

    def __init__(self, made: Cluster, connections: int = 64) -> None:
        pki = made.layout.pki
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        self._server = made.server
        self._connections = connections
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=self._connections)
        headers = {"User-Agent": "load-generator"}
        self._session = aiohttp.ClientSession(self._server, connector=connector, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def __call__(self, method: str, path: str, body: Object | None = None) -> Object:
        """One request; what is refused with 409 or 429 or a 500 is the caller's to see as an error."""
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, path, data=data, headers={"Content-Type": patch}) as answer:
            content = await answer.read()
            if answer.status >= 300:
                kind = GivenUp if answer.status == 504 else NotReached
                raise kind(f"{method} {path}: {answer.status} {content[:300]!r}")
            return dict(json.loads(content))

    async def empty(self, path: str) -> None:
        """Delete a collection, without the grace that pods are usually given, however large it is."""
        for _ in range(100):
            with contextlib.suppress(GivenUp):
                await self("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
                return
        raise NotReached(f"{path} does not become empty")

    async def items(self, path: str) -> list[Object]:
        found: list[Object] = []
        following = ""
        while True:
            page = await self("GET", f"{path}?limit=500{following}")
            found += page["items"]
            if not page["metadata"].get("continue"):
                return found
            following = f"&continue={page['metadata']['continue']}"


async def at_once(count: int, work: Callable[[int], Any], *, abreast: int = 64, say: str = "") -> list[Any]:
    """Do this for all numbers, so many abreast; what each gave."""
    results: list[Any] = [None] * count
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            results[number] = await work(number)
            if say and (number + 1) % max(1, count // 5) == 0:
                note(f"{say}: {number + 1} of {count}")

    await asyncio.gather(*(worker() for _ in range(min(abreast, count))))
    return results


WATCH = """
import http.client, re, ssl, sys, time
host, port, ca, cert, key, path, version, accept, target = sys.argv[1:]
tls = ssl.create_default_context(cafile=ca)
tls.load_cert_chain(cert, key)
out = open(target, "wb")
first = True
while True:  # the API server hangs up on a watcher that it finds slow: go on where it stopped
    connection = http.client.HTTPSConnection(host, int(port), context=tls)
    headers = {"Accept": accept, "User-Agent": "load-generator"}
    connection.request("GET", f"{path}?watch=1&resourceVersion={version}", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    if first:
        print("watching", flush=True)
        first = False
    rest = b""
    while data := answer.read1(1 << 20):
        moment = b"%r " % time.monotonic()
        *lines, rest = (rest + data).split(b"\\n")
        if lines:
            out.write(b"".join(moment + line + b"\\n" for line in lines))
            out.flush()
            version = re.findall(rb'"resourceVersion":"(\\d+)"', lines[-1])[0].decode()
"""
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class Watch:
    """A watch in a process of its own, from now on."""

    def __init__(self, made: Cluster, path: str, *, metadata_only: bool = True) -> None:
        version = made.api().get(f"{path}?limit=1")["metadata"]["resourceVersion"]
        pki, spec = made.layout.pki, made.spec
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "lines"
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", WATCH, spec.address, str(spec.ports["api"]), str(pki / "ca.crt"),
                str(pki / "admin.crt"), str(pki / "admin.key"), path, version,
                METADATA if metadata_only else "application/json", str(self._file),
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"watching\n", "the watch did not start"

    def count(self, needle: bytes = b'"type":"ADDED"') -> int:
        """How many lines with this have come, cheaply."""
        return self._file.read_bytes().count(needle) if self._file.exists() else 0

    def has(self, least: int) -> bool:
        """Whether so many were added."""
        return self.count() >= least

    def events(self) -> Iterator[tuple[float, str, Object]]:
        """(when, what, object) of everything so far."""
        for line in self._file.read_bytes().splitlines():
            moment, _, text = line.partition(b" ")
            with contextlib.suppress(ValueError):  # the last line may be half written
                event = json.loads(text)
                yield float(moment), event["type"], event["object"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- the operator


def free_port() -> int:
    """A port that is free and stays so: none of those that the kernel gives to whoever calls somebody."""
    while True:
        port = random.randrange(15_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class OperatorProcess:
    """One operator as a process, with a ServiceAccount's rights and limits like in a cluster."""

    def __init__(
        self,
        made: Cluster,
        folder: Path,
        *,
        faulty: bool = False,
        prefix: Iterable[str] = (),
        python: Iterable[str] = (),
        **settings: Any,
    ):
        """`prefix` is a command to start it under, `python` are options of the interpreter."""
        self.gateway_port, self.health_port = free_port(), free_port()
        self.log = folder / f"operator-{self.health_port}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._command = [*prefix, sys.executable, *python, "-m", "cleanrl_operator.main"]
        pod = f"operator-{self.health_port}"
        spec = {"containers": [{"name": "operator", "image": "operator"}], "schedulerName": "nobody"}
        made.api().create(pods_path(SYSTEM), {"metadata": {"name": pod}, "spec": spec})
        own = {
            "pod_name": pod,
            "gateway_target": f"localhost:{self.gateway_port}",
            "gateway_port": self.gateway_port,
            "health_port": self.health_port,
            "namespace": SYSTEM,
            "worker_image": "worker:bench",
            **settings,
        }
        self.environment = {
            **made.client_environment(),
            "KUBECONFIG": str(_account(made, folder, faulty)),
            **{f"CLEANRL_OPERATOR_{key.upper()}": str(value) for key, value in own.items()},
        }
        for variable in ("POD_NAME", "POD_NAMESPACE"):
            self.environment.pop(variable, None)

    def start(self, *, wait: bool = True) -> OperatorProcess:
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(self._command, env=self.environment, stdout=stream, stderr=stream)
        if wait:
            until(self.leads, lambda: f"the operator leads:\n{self.log.read_text()[-2000:]}")
        return self

    def leads(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise NotReached(f"the operator ended: {self.log.read_text()[-2000:]}")
        return self.get("/readyz")[0] == 200 and self.metric("cleanrl_operator_leader") == 1

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def keep_alive(self) -> bool:
        """What the kubelet does: start it again if it has ended. Whether that was so."""
        if self.process is None or self.process.poll() is not None:
            self.start(wait=False)
            return True
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def usage(self) -> tuple[float, float, float]:
        """(CPU seconds, MiB resident now, MiB resident at most)."""
        assert self.process is not None
        pid = self.process.pid
        memory = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        return cpu_seconds(pid), int(memory["VmRSS"].split()[0]) / 1024, int(memory["VmHWM"].split()[0]) / 1024

    def __enter__(self) -> OperatorProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def _account(made: Cluster, folder: Path, faulty: bool) -> Path:
    """A kubeconfig with the operator's ServiceAccount: administrators pass the API server's own queues, pods do not."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 36000}}
    answer = made.api().request("POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/operator/token", body)
    given = str(made.faulty_kubeconfig if faulty else made.kubeconfig)
    known = json.loads(
        made.kubectl("config", "view", f"--kubeconfig={given}", "--raw", "--minify", "-o", "json").stdout
    )
    known["users"] = [{"name": "account", "user": {"token": answer["status"]["token"]}}]
    known["contexts"] = [{"name": "c", "context": {"cluster": known["clusters"][0]["name"], "user": "account"}}]
    known["current-context"] = "c"
    file = folder / f"kubeconfig-{'faulty' if faulty else 'plain'}"
    file.write_text(json.dumps(known))
    return file


FAKETIME = Path("/usr/lib") / f"{platform.machine()}-linux-gnu" / "faketime" / "libfaketimeMT.so.1"


def own_clock(offset: str = "") -> dict[str, str]:
    """The variables under which a process has a wall clock of its own, `offset` seconds off; its monotonic one stays right."""
    if not FAKETIME.exists():
        raise SystemExit(f"{FAKETIME} is not there: install Debian's package libfaketime, or run `make setup` as root")
    said = {"FAKETIME": offset} if offset else {}
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", **said}


def authority(made: Cluster) -> bytes:
    """The gateway's CA."""
    secret = made.api().get(f"/api/v1/namespaces/{SYSTEM}/secrets/cleanrl-gateway")
    return base64.b64decode(secret["data"]["ca.crt"])


# -- the audit log


class Audit:
    """What the API server was asked by operators, from now on."""

    def __init__(self, made: Cluster) -> None:
        self._file = made.audit_log
        self._from = self._file.stat().st_size

    def entries(self) -> Iterator[Object]:
        with self._file.open("rb") as stream:
            stream.seek(self._from)
            for line in stream:
                if b'"userAgent":"cleanrl-operator' in line or b'"userAgent":"kopf' in line:
                    yield json.loads(line)

    def writes(self, namespace: str | None = None) -> Counter[str]:
        """Successful writes to runs and their children, by what they were."""
        found: Counter[str] = Counter()
        for entry in self.entries():
            thing = entry.get("objectRef") or {}
            if entry["verb"] not in WRITES or entry["responseStatus"]["code"] >= 300:
                continue
            here = namespace is None or thing.get("namespace") == namespace
            if here and thing.get("namespace") != SYSTEM:
                found[f"{entry['verb']} {thing['resource']}/{thing.get('subresource', '')}".rstrip("/")] += 1
        return found


def to_children(writes: Counter[str]) -> int:
    """Those that count: to runs and what belongs to them, not Events and reviews."""
    return sum(count for what, count in writes.items() if what.split()[1].split("/")[0] in CHILDREN)


# -- figures


def until(ask: Callable[[], Any], what: str | Callable[[], str], seconds: float = 120.0, every: float = 0.05) -> Any:
    """Ask until the answer is true; the answer."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise NotReached(f"did not happen in {seconds:.0f} s: {what() if callable(what) else what}")
        time.sleep(every)


async def until_async(ask: Callable[[], Any], what: str, seconds: float = 120.0, every: float = 0.2) -> None:
    """The same, for what is asked between other tasks."""
    deadline = time.monotonic() + seconds
    while not ask():
        if time.monotonic() > deadline:
            raise NotReached(f"did not happen in {seconds:.0f} s: {what}")
        await asyncio.sleep(every)


async def settled(operator: OperatorProcess, seconds: float = 300.0) -> None:
    """Wait until the operator has nothing to do: two seconds in a row with hardly any work."""
    deadline, quiet, before = time.monotonic() + seconds, 0, operator.usage()[0]
    while quiet < 2 and time.monotonic() < deadline:
        await asyncio.sleep(1)
        cpu = operator.usage()[0]
        quiet = quiet + 1 if cpu - before < 0.05 else 0
        before = cpu


def note(text: str) -> None:
    """Progress, on standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stderr.flush()


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which this share lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclasses.dataclass
class Figure:
    """One line of the table. `good` is None for what has no target."""

    name: str
    measured: str
    target: str = ""
    good: bool | None = None

    @property
    def verdict(self) -> str:
        return "" if self.good is None else "reached" if self.good else "missed"


def surroundings() -> Object:
    """Where this was measured, in words that say nothing about whose machine it is."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=False
    ).stdout.strip()
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "operator", "cleanrl_protocol"],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "commit": commit + (" with changes" if changed else ""),
        "machine": machine(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def publish(
    part: str, title: str, figures: list[Figure], facts: Object, *, folder: Path | None = None, store: str = "operator"
) -> None:
    """Print the table, and put it into docs/benchmarks/`store`.{json,md}, where each part replaces its last self."""
    width = max(len(figure.name) for figure in figures)
    print(f"\n{title}\n{facts['date']}, commit {facts['commit']}, {facts['machine']}, load {facts['load']}")
    for figure in figures:
        print(f"  {figure.name:{width}}  {figure.measured:>28}  {figure.target:>24}  {figure.verdict}")
    target = folder or PROJECT / "docs" / "benchmarks"
    target.mkdir(parents=True, exist_ok=True)
    file = target / f"{store}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known[part] = {"title": title, **facts, "figures": [dataclasses.asdict(figure) for figure in figures]}
    file.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    (target / f"{store}.md").write_text(_page(known, *PAGES[store]))


PAGES = {
    "operator": (
        "The operator, measured",
        "Made by `tests/benchmarks/operator_*.py` on a real API server with pretended nodes.",
    ),
    "shows": (
        "What a run shows, measured",
        "Made by `tests/benchmarks/freshness.py`, `exporter_under_attack.py` and `first_page.py`.",
    ),
}
"""Title and origin of each page."""
PICTURES = {"growth": "operator-growth.png"}
"""What is shown below a part's table."""


def _page(parts: Object, title: str, origin: str) -> str:
    lines = [f"# {title}", ""]
    lines += [
        origin,
        "Load averages are of the moment when the measurement began: above the number of cores, others were at work.",
        "",
    ]
    for part in sorted(parts):
        found = parts[part]
        lines += [f"## {found['title']}", ""]
        load = ", ".join(f"{value:g}" for value in found["load"])
        lines += [f"{found['date']}, commit {found['commit']}; {found['machine']}; load average {load}.", ""]
        lines += ["| Figure | Measured | Target | |", "|---|---|---|---|"]
        for each in found["figures"]:
            figure = Figure(**each)
            lines.append(f"| {figure.name} | {figure.measured} | {figure.target} | {figure.verdict} |")
        lines.append("")
        if part in PICTURES:
            lines += [f"![{found['title']}]({PICTURES[part]})", ""]
    return "\n".join(lines)


def ms(values: Iterable[float], share: float) -> str:
    return f"{1000 * percentile(values, share):,.0f} ms"


def median_ms(values: Iterable[float]) -> str:
    return f"{1000 * statistics.median(values):,.0f} ms"

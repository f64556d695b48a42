"""A cluster from its first process to its last: up, down, status, and what tests ask of it in between."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from devcluster import (
    agent,
    binaries,
    bootstrap,
    cgroups,
    controlplane,
    extras,
    machine,
    namespaces,
    node,
    processes,
    surroundings,
)
from devcluster.api import Api, Object
from devcluster.components import Component, Stage, api_client, write_kubeconfig
from devcluster.errors import Busy, ClusterError
from devcluster.faultproxy import FaultProxy
from devcluster.layout import Layout, known_clusters, locked
from devcluster.processes import Identity
from devcluster.progress import step
from devcluster.runner import Died, Runner
from devcluster.spec import Options, Spec, choose, port_taken

ESTABLISHED = '--for=jsonpath={.status.conditions[?(@.type=="Established")].status}=True'
"""For `kubectl wait crd/NAME`: with condition=Established it fails while a resource has no conditions at all yet."""
_ATTEMPTS = 3
"""How often a new cluster whose free port was snatched away tries again with others."""
_NODE_PATIENCE = 90.0
_API_PATIENCE = 30.0
"""An API server whose store has just come back refuses requests for a moment."""


@dataclass(frozen=True)
class ComponentStatus:
    """One line of `devcluster status`."""

    name: str
    pid: int | None
    memory: int
    port: int | None
    health: str


class Cluster:
    """One local Kubernetes. As a context manager it is up inside the block and gone after it."""

    def __init__(self, name: str | None = None, options: Options | None = None, **asked: Any) -> None:
        """`asked` are fields of Options; a cluster without a name gets one that nobody else has."""
        self.options = options or Options(**asked)
        self.layout = Layout.of(name or f"unnamed-{secrets.token_hex(4)}")
        self._owner: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.layout.name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def faulty_kubeconfig(self) -> Path:
        """The same access, through the fault proxy of a cluster that was asked for one."""
        return self.layout.faulty_kubeconfig

    @property
    def audit_log(self) -> Path:
        """One JSON line for each request, when the cluster was asked for an audit log."""
        return self.layout.audit_log

    @property
    def spec(self) -> Spec:
        """What stands in the cluster's folder."""
        spec = Spec.load(self.layout)
        if spec is None:
            raise ClusterError(f"There is no cluster {self.name!r}: start it with `devcluster up --name {self.name}`.")
        return spec

    @property
    def server(self) -> str:
        """The API server's own address, past the fault proxy."""
        spec = self.spec
        return f"https://{spec.address}:{spec.ports['api']}"

    @property
    def host_address(self) -> str:
        """This machine's address as pods see it: what runs here can be reached from pods there."""
        return self.spec.gateway

    def api(self) -> Api:
        """The administrator's client, past the fault proxy."""
        return api_client(self.layout, self.spec)

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl against this cluster; with `check`, a refusal raises ClusterError with kubectl's own words."""
        answer = subprocess.run(
            self.kubectl_command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env=self.client_environment(),
        )
        if check and answer.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {answer.stderr.strip()}")
        return answer

    def kubectl_command(self, *arguments: str) -> list[str]:
        """The command line of a kubectl against this cluster."""
        return [self.spec.programs["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments]

    def client_environment(self) -> dict[str, str]:
        """This process' environment without proxies, which would not find the cluster."""
        return {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}

    def up(self, *, reuse: bool = False, owner: Identity | None = None) -> None:
        """Start the cluster, or what of it has died.

        One that is wholly up already is an error, unless `reuse` takes it as it is. A new cluster that can't be
        finished is removed again.
        """
        self._owner = dataclasses.asdict(owner) if owner else None
        with locked(self.layout, wait=reuse):
            spec = Spec.load(self.layout)
            if spec is not None and spec.ready:
                self._again(spec, reuse)
                return
            if self.layout.root.exists():
                self._remove()
            self._end_namesakes()
            self._check_namesakes()
            surroundings.check(self.options)
            for chances_left in reversed(range(_ATTEMPTS)):
                try:
                    self._first_time()
                    break
                except BaseException as error:
                    self._remove()
                    if not (chances_left and isinstance(error, Died) and "address already in use" in str(error)):
                        raise

    def down(self) -> None:
        """End every process and remove every trace. A cluster that is not there is down already."""
        with locked(self.layout):
            self._end_namesakes()
            self._remove()

    def status(self) -> list[ComponentStatus]:
        """Each component with its process, memory and health."""
        runner = self._runner()
        lines = []
        for component in self._components(self.spec):
            identity = runner.process(component.name)
            answers = identity is not None and component.healthy()
            health = "healthy" if answers else "not answering" if identity else "dead"
            lines.append(
                ComponentStatus(
                    component.name,
                    identity.pid if identity else None,
                    identity.memory() if identity else 0,
                    component.port,
                    health,
                )
            )
        return lines

    def __enter__(self) -> Self:
        self.up(owner=Identity.of(os.getpid()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def load_image(self, archive: Path) -> list[str]:
        """Give the node the images of an OCI or Docker archive; their names."""
        if not self.spec.node:
            raise ClusterError(f"Cluster {self.name!r} has no node that could hold an image: start one with --node.")
        return node.load_images(self.layout, self._enter(), archive)

    @property
    def faults(self) -> FaultProxy:
        """The fault proxy before the API server, of a cluster that was asked for one."""
        ports = self.spec.ports
        if "fault-proxy" not in ports:
            raise ClusterError(f"Cluster {self.name!r} has no fault proxy: start one with --fault-proxy.")
        return FaultProxy(extras.fault_proxy_url(self.spec), ports["fault-proxy-control"])

    # How it is done.

    def _first_time(self) -> None:
        spec = choose(self.name, self.options, self._programs(), self._owner)
        if not spec.node and self.options.port and port_taken(spec.address, self.options.port):
            raise ClusterError(
                f"Port {self.options.port} is taken on this machine: choose another --port, or leave it out."
            )
        controlplane.prepare(self.layout, spec)
        extras.prepare(self.layout)
        write_kubeconfig(self.kubeconfig, self.layout, "admin", self.server)
        if self.options.fault_proxy:
            write_kubeconfig(self.faulty_kubeconfig, self.layout, "admin", extras.fault_proxy_url(spec))
        if spec.node:
            node.prepare(self.layout, spec)
        self._start(spec, first=True)
        dataclasses.replace(spec, ready=True).save(self.layout)

    def _again(self, spec: Spec, reuse: bool) -> None:
        """`up` on a cluster that was up before: mend it, keeping what it holds."""
        if spec.options != self.options:
            raise ClusterError(
                f"Cluster {self.name!r} was made with other options: run `devcluster down --name {self.name}` first, "
                "or choose another --name."
            )
        runner = self._runner()
        if all(runner.sound(component) for component in self._components(spec)):
            if reuse:
                return
            raise ClusterError(
                f"Cluster {self.name!r} is up already: use it (`devcluster kubeconfig --name {self.name}`), "
                f"take it down first (`devcluster down --name {self.name}`), or choose another --name."
            )
        files = {program: str(path) for program, path in self._programs().items()}
        spec = dataclasses.replace(spec, programs=files)
        spec.save(self.layout)
        self._start(spec)

    def _start(self, spec: Spec, *, first: bool = False) -> None:
        """Start what does not run, in order; keep what does."""
        with step(
            "starting the node" if spec.node else "starting the control plane", 20 if spec.node else 7
        ) as progress:
            if spec.node:
                self._open_namespaces(spec)
            runner = self._runner()
            components = self._components(spec)
            runner.bring_up(components, Stage.BASE, progress)
            if spec.node and first:
                node.load_images(self.layout, self._enter(), self.layout.config / "images.tar")
            runner.bring_up(components, Stage.API, progress)
            api = api_client(self.layout, spec, patience=_API_PATIENCE)
            bootstrap.create(api, spec)
            if spec.options.netpol:
                extras.policies(self.layout, spec, self._enter()).divert()
            runner.bring_up(components, Stage.REST, progress)
            progress.label = "waiting for the nodes"
            self._await_nodes(api, spec)

    def _open_namespaces(self, spec: Spec) -> None:
        """The node's namespaces and control groups. Without their holder nothing can be added to them: start over."""
        runner = self._runner()
        process = runner.process(namespaces.HOLDER)
        if process is None:
            self._end_processes(spec)
            process = runner.start(namespaces.holder())
        machine.remember()
        cgroups.make(self.name)
        namespaces.furnish(self.layout, spec, process)

    def _await_nodes(self, api: Api, spec: Spec) -> None:
        wanted = spec.options.kwok_nodes + (1 if spec.node else 0)
        deadline = time.monotonic() + _NODE_PATIENCE
        while wanted:
            nodes = api.get("/api/v1/nodes")["items"]
            ready = [each for each in nodes if _is_ready(each) and _has_gpus(each, spec)]
            if len(ready) >= wanted:
                return
            if time.monotonic() > deadline:
                reasons = [_why_not(each) for each in nodes if not _is_ready(each)] or ["it did not register"]
                raise ClusterError(f"The node is not ready after {_NODE_PATIENCE:.0f} s: {reasons[0]}.")
            time.sleep(0.1)

    def _end_namesakes(self) -> None:
        """End what is left of clusters of this name whose folder is gone: no other command can."""
        for folder, is_there in processes.namesakes(self.layout.root).items():
            if is_there:
                continue
            Runner(Layout(self.name, folder)).sweep()
            cgroups.remove(self.name)
            shutil.rmtree(self.layout.run, ignore_errors=True)

    def _check_namesakes(self) -> None:
        """Two nodes of one name would share sockets and control groups."""
        for folder in processes.namesakes(self.layout.root) if self.options.node else ():
            raise ClusterError(
                f"A cluster {self.name!r} of another home runs on this machine, from {folder}: take it down first "
                f"(`XDG_STATE_HOME={folder.parent.parent} devcluster down --name {self.name}`), or choose another --name."
            )

    def _remove(self) -> None:
        spec = Spec.load(self.layout)
        self._end_processes(spec)
        for folder in (self.layout.root, self.layout.run):
            if folder.exists():
                shutil.rmtree(folder)
        if spec is None or spec.node:
            machine.put_back(self.name)
        with contextlib.suppress(OSError):  # other clusters have theirs there, or it never was
            self.layout.run.parent.rmdir()

    def _end_processes(self, spec: Spec | None) -> None:
        """Every process of the cluster and of its pods; with them go their mounts, links and rules."""
        runner = self._runner()
        runner.stop_all()
        if spec is None or spec.node:
            cgroups.remove(self.name)
        runner.sweep()
        if spec is not None and spec.node:
            namespaces.cut(spec)

    def _runner(self) -> Runner:
        runner = Runner(self.layout)
        holder = runner.process(namespaces.HOLDER)
        if holder is not None:
            runner.prefix = namespaces.enter(holder)
        return runner

    def _enter(self) -> list[str]:
        return self._runner().prefix

    def _components(self, spec: Spec) -> list[Component]:
        wanted = controlplane.components(self.layout, spec)
        if spec.node:
            wanted = [namespaces.holder(), *wanted, *node.components(self.layout, spec)]
        return [*wanted, *extras.components(self.layout, spec, self._enter())]

    def _programs(self) -> dict[str, Path]:
        names = [*controlplane.BINARIES, "kubectl", *(node.BINARIES if self.options.node else ())]
        names += extras.programs(self.options)
        return binaries.ensure_many(names, kubernetes_version=self.options.kubernetes_version or None)


def _condition(node_object: Object) -> Object:
    conditions = node_object.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == "Ready"), {})


def _is_ready(node_object: Object) -> bool:
    taints = [taint["key"] for taint in node_object.get("spec", {}).get("taints", [])]
    return _condition(node_object).get("status") == "True" and "node.kubernetes.io/not-ready" not in taints


def _has_gpus(node_object: Object, spec: Spec) -> bool:
    if not spec.options.gpus or node_object["metadata"]["name"] != spec.node_name:
        return True
    return bool(node_object["status"].get("allocatable", {}).get(agent.GPU) == str(spec.options.gpus))


def _why_not(node_object: Object) -> str:
    return str(_condition(node_object).get("message", "it has not reported yet")).rstrip(".")


def remove_orphans() -> None:
    """Take down the clusters whose owner has died: a killed test run leaves them. Those of `devcluster up` have none."""
    for name in known_clusters():
        cluster = Cluster(name)
        spec = Spec.load(cluster.layout)
        if spec is not None and spec.owner is not None and not Identity(**spec.owner).alive():
            with contextlib.suppress(Busy):  # another run is at it
                cluster.down()

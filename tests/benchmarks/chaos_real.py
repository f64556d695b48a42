"""Chaos on real pods: the operator by its chart, workers that really train, and faults of the node. A part of chaos.py."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from operator_lab import PROJECT, Audit, Figure, note, runs_path

from cleanrl_worker.telemetry import read_events
from devcluster import Cluster, ClusterError, binaries
from devcluster.api import ApiError
from devcluster.runner import Runner

Object = dict[str, Any]
SYSTEM, TENANT = "cleanrl-system", "chaos-real"
GATEWAY_PORT = 50055
STEPS, INTERVAL = 120_000, 5_000
ABREAST = 5
"""Runs at a time: the machine may be small, and a run that has no CPU learns nothing about faults."""
PATIENCE = 900.0
FATES = {
    "completes": 4,
    "has its container killed": 2,
    "has its training killed": 2,
    "loses its pod": 2,
    "is canceled": 1,
    "loses its claim": 1,
    "has a full disk": 1,
}
OUTCOMES = {"is canceled": {"canceled"}, "loses its claim": {"failed"}, "has a full disk": {"failed"}}


class Real:
    """The cluster, and what is asked of it again and again while its parts come and go."""

    def __init__(self, made: Cluster) -> None:
        self.made = made

    def ask(self, method: str, path: str, body: Object | None = None) -> Object:
        deadline = time.monotonic() + 300
        while True:
            try:
                patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
                return self.made.api().request(method, path, body, content_type=patch)
            except ApiError as error:
                if (method, error.status) in (("POST", 409), ("DELETE", 404)):
                    return {}
                if (error.status not in (0, 401, 403, 429) and error.status < 500) or time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def items(self, kind: str, namespace: str = TENANT) -> list[Object]:
        return list(self.ask("GET", f"/api/v1/namespaces/{namespace}/{kind}")["items"])

    def runs(self) -> list[Object]:
        return list(self.ask("GET", runs_path(TENANT))["items"])

    def folder(self, run: Object) -> Path | None:
        """The run's folder on the claim, as this machine sees it."""
        status = run.get("status") or {}
        claims = [item for item in self.items("persistentvolumeclaims") if _owner(item) == run["metadata"]["uid"]]
        volume = claims[0]["spec"].get("volumeName") if claims else None
        if not volume or "runId" not in status:
            return None
        spec = self.ask("GET", f"/api/v1/persistentvolumes/{volume}")["spec"]
        root = (spec.get("hostPath") or spec.get("local") or {}).get("path")
        return Path(root) / "runs" / status["runId"] if root else None


def _owner(item: Object) -> str:
    owners = item["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def processes_of(pod_uid: str, word: str) -> list[int]:
    """The pod's processes whose command line has this word, oldest first."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                group = (folder / "cgroup").read_text()
                if (pod_uid in group or pod_uid.replace("-", "_") in group) and word in (
                    folder / "cmdline"
                ).read_text():
                    found.append(int(folder.name))
    return sorted(found)


def kill(pids: list[int]) -> None:
    """The oldest of them. Raises ProcessLookupError when there is none: nothing was struck then."""
    if not pids:
        raise ProcessLookupError("there is no such process")
    os.kill(pids[0], signal.SIGKILL)


@contextlib.contextmanager
def installed() -> Iterator[Cluster]:
    """A cluster with a real node and the operator on it."""
    helm = binaries.ensure("helm")
    with Cluster(f"chaos-{os.getpid()}", node=True, audit_log=True) as made:
        environment = {**made.client_environment(), "KUBECONFIG": str(made.kubeconfig)}
        chart = str(PROJECT / "helm" / "cleanrl-operator")
        options = ["--set", "image.tag=dev", "--set", "worker.image.tag=dev", "--set", "worker.graceSeconds=20"]
        command = [str(helm), "install", "cleanrl", chart, "-n", SYSTEM, "--create-namespace", *options, "--wait"]
        subprocess.run([*command, "--timeout", "4m"], env=environment, check=True, capture_output=True)
        made.kubectl("create", "namespace", TENANT)
        yield made


def manifest(name: str, fate: str) -> Object:
    # One checkpoint of an eighth of a MiB finds room on a quarter, and never a second one beside it.
    size = (
        {"size": "256Ki", "storageClassName": "devcluster-limited"} if fate == "has a full disk" else {"size": "64Mi"}
    )
    return {
        "apiVersion": "mosaic.dev/v1alpha1",
        "kind": "CleanRLRun",
        "metadata": {"name": name},
        "spec": {
            "algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": STEPS, "seed": 1,
            "resources": {"cpus": {"requested": "100m"}, "memory": "1Gi"},
            "fastlane": {"videoMode": "off"},
            "checkpoint": {"everySteps": INTERVAL, "keep": 2},
            "retry": {"limit": 1 if fate == "has a full disk" else 6, "backoffSeconds": 1},
            "artifacts": {"tensorboard": {"enabled": False}, "storage": {**size, "deletionPolicy": "Delete"}},
        },
    }  # fmt: skip


class Cast:
    """The runs, what befalls them, and what is on their claims."""

    def __init__(self, real: Real, count: int, chance: random.Random) -> None:
        self.real = real
        drawn = [chance.choices(list(FATES), list(FATES.values()))[0] for _ in range(count)]
        self.fates = {f"run-{number:03}": fate for number, fate in enumerate(drawn)}
        self.befallen: set[str] = set()
        self.ended_first: set[str] = set()
        """Runs whose worker had ended by itself when their fate came, and no status said so yet: whatever it did stands."""
        self.logs: dict[str, list[Object]] = {}
        self.created: set[str] = set()

    def play(self) -> list[Object]:
        before, moved, said = None, time.monotonic(), 0.0
        while True:
            runs = self.real.runs()
            live = [run for run in runs if (run.get("status") or {}).get("fsmState") != "TERM"]
            for name in [name for name in self.fates if name not in self.created][: max(0, ABREAST - len(live))]:
                self.real.ask("POST", runs_path(TENANT), manifest(name, self.fates[name]))
                self.created.add(name)
            for run in live:
                self.befall(run)
            states = Counter((run.get("status") or {}).get("fsmState") or "new" for run in runs)
            if time.monotonic() - said > 20:
                said = time.monotonic()
                note(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
            picture = [(run["metadata"]["name"], run["metadata"]["resourceVersion"]) for run in runs]
            if picture != before:
                before, moved = picture, time.monotonic()
            if states["TERM"] == len(self.fates) or time.monotonic() - moved > PATIENCE:
                return runs
            time.sleep(2)

    def befall(self, run: Object) -> None:
        """The run's fate, once it trains and has a checkpoint to go back to."""
        name, status = run["metadata"]["name"], run.get("status") or {}
        fate = self.fates[name]
        trains = status.get("fsmState") == "EXEC" and (status.get("progress") or status.get("checkpoint"))
        if name in self.befallen or not trains or fate in ("completes", "has a full disk"):
            return
        pod = f"/api/v1/namespaces/{TENANT}/pods/{status['podName']}"
        victim = {
            "has its container killed": "cleanrl_worker.pod",
            "has its training killed": "cleanrl_worker.launcher",
        }
        if fate in victim:
            try:
                kill(processes_of(status["podUID"], victim[fate]))
            except ProcessLookupError:
                return  # it has just ended: another time
        elif fate == "loses its pod":
            self.real.ask("DELETE", pod, {"gracePeriodSeconds": 1})
        elif fate == "is canceled":
            self.real.ask("PATCH", runs_path(TENANT, name), {"spec": {"cancel": True}})
        elif fate == "loses its claim":
            for item in self.real.items("persistentvolumeclaims"):
                if _owner(item) == run["metadata"]["uid"]:
                    self.real.ask(
                        "DELETE", f"/api/v1/namespaces/{TENANT}/persistentvolumeclaims/{item['metadata']['name']}"
                    )
            try:  # at once: told to stop it might do its last steps
                kill(processes_of(status["podUID"], "cleanrl_worker.pod"))
            except ProcessLookupError:
                self.ended_first.add(name)
            self.real.ask("DELETE", pod, {"gracePeriodSeconds": 1})
        self.befallen.add(name)
        note(f"{name} {fate}")

    def too_late(self) -> list[str]:
        """Runs that had ended before their fate came over them: they complete, and prove nothing of it."""
        without = ("completes", "has a full disk")
        struck = self.befallen - self.ended_first
        return [name for name, fate in self.fates.items() if fate not in without and name not in struck]

    def read_logs(self, runs: list[Object]) -> None:
        for run in runs:
            folder = self.real.folder(run)
            if folder is not None and self.fates[run["metadata"]["name"]] != "has a full disk":
                self.logs[run["metadata"]["name"]] = list(read_events(folder / "events.jsonl"))

    def wrong(self, runs: list[Object]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {name: [] for name in ("outcome", "events", "checkpoint", "attempts")}
        there = {run["metadata"]["name"] for run in runs}
        found["outcome"] += [f"{name}: is not there any more" for name in self.fates if name not in there]
        for run in runs:
            name, status = run["metadata"]["name"], run.get("status") or {}
            fate = self.fates[name]
            who, outcome = f"{name} ({fate})", status.get("outcome")
            expected = (
                OUTCOMES.get(fate, {"completed"})
                if name in self.befallen or fate == "has a full disk"
                else {"completed"}
            )
            if fate == "is canceled" and any(event["event"] == "run_completed" for event in self.logs.get(name, ())):
                expected = {"completed"}  # it had done all its steps when it heard of it: that is the truth, and told
            if name in self.ended_first:
                expected = expected | {"completed"}
            if status.get("fsmState") != "TERM" or outcome not in expected:
                found["outcome"].append(
                    f"{who}: {status.get('fsmState')} {outcome} {status.get('reason')}: {status.get('message')}"
                )
            due = 2 if name in self.befallen and "canceled" not in fate and "claim" not in fate else 1
            if status.get("attempt", 0) > due and fate != "has a full disk":
                reasons = [step["reason"] for step in status["transitions"] if step["to"] == "FAULT"]
                found["attempts"].append(f"{who}: {status['attempt']} attempts, {due} caused by its fate; {reasons}")
            log = self.logs.get(name)
            if log is None:
                if fate not in ("loses its claim", "has a full disk"):
                    found["events"].append(f"{who}: no event log on its claim")
                continue
            numbers = [event["seq"] for event in log]
            if numbers != list(range(1, len(numbers) + 1)):
                found["events"].append(f"{who}: numbers {numbers[:3]}...{numbers[-3:]}, {len(numbers)} events")
            if outcome == "completed" and sum(event["event"] == "run_completed" for event in log) != 1:
                found["events"].append(f"{who}: not one run_completed in its log")
            found["checkpoint"] += [f"{who}: {lost}" for lost in steps_back(log)]
        return found


def steps_back(log: list[Object]) -> Iterator[str]:
    """Starts that went on from further back than the last checkpoint but one."""
    saved = 0
    for event in log:
        if event["event"] == "checkpoint_saved":
            saved = max(saved, event["payload"].get("step") or 0)
        elif event["event"] == "training_started":
            begun = event["payload"].get("step") or 0
            if begun < saved - INTERVAL:
                yield f"went on from step {begun}, {saved} was saved"


def ran_full(run: Object) -> bool:
    """Whether the run said that its claim had no room left."""
    status = run.get("status") or {}
    said = [status, *status.get("transitions", ()), *status.get("conditions", ())]
    return any(word in str(each.get("reason")) for each in said for word in ("ClaimFull", "DiskFull"))


class Strikes(threading.Thread):
    """Faults of the node and the control plane, one after the other, until told to stop."""

    def __init__(self, real: Real, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.real, self.chance = real, chance
        self.over = threading.Event()
        self.struck: Counter[str] = Counter()
        self.trouble: list[str] = []
        self.packets = 0
        """How many packets were lost between workers and gateway."""

    def run(self) -> None:
        kinds: list[Callable[[], None]] = [
            self.kill_operator, self.kill_operator, self.kill_api_server, self.kill_etcd, self.kill_kubelet,
            self.kill_containerd, self.cut_gateway, self.kill_controllers,
        ]  # fmt: skip
        while not self.over.is_set():
            self.chance.shuffle(kinds)
            for kind in kinds:
                if self.over.wait(self.chance.uniform(8, 25)):
                    break
                name = kind.__name__.replace("_", " ")
                note(f"fault: {name}")
                try:
                    kind()
                    self.struck[name] += 1
                except Exception as error:  # noqa: BLE001 - counted and shown at the end; the next fault strikes all the same
                    self.trouble.append(f"{name}: {error}")
        with contextlib.suppress(ClusterError):
            self.real.made.up(reuse=True)

    def kill_operator(self) -> None:
        kill(
            [pid for pod in self.real.items("pods", SYSTEM) for pid in processes_of(pod["metadata"]["uid"], "cleanrl")]
        )

    def kill_api_server(self) -> None:
        self._kill("kube-apiserver")

    def kill_etcd(self) -> None:
        self._kill("etcd")

    def kill_kubelet(self) -> None:
        self._kill("kubelet")

    def kill_containerd(self) -> None:
        self._kill("containerd")

    def kill_controllers(self) -> None:
        self._kill("kube-controller-manager")

    def _kill(self, part: str) -> None:
        identity = Runner(self.real.made.layout).process(part)
        kill([identity.pid] if identity is not None else [])
        self.over.wait(self.chance.uniform(0, 5))
        self.real.made.up(reuse=True)

    def cut_gateway(self) -> None:
        """Packets between workers and gateway are lost without a word."""
        rule = ["FORWARD", "-p", "tcp", "--dport", str(GATEWAY_PORT), "-j", "DROP"]
        enter = self.real.made._enter()
        subprocess.run([*enter, "iptables", "-I", *rule], check=True, capture_output=True)
        try:
            self.over.wait(self.chance.uniform(5, 40))
            shown = subprocess.run(
                [*enter, "iptables", "-L", "FORWARD", "-vxn"], check=True, capture_output=True, text=True
            )
            lines = [
                line.split() for line in shown.stdout.splitlines() if f"dpt:{GATEWAY_PORT}" in line and "DROP" in line
            ]
            self.packets += sum(int(line[0]) for line in lines)
        finally:
            subprocess.run([*enter, "iptables", "-D", *rule], check=True, capture_output=True)


def leftovers(real: Real, cast: Cast) -> list[str]:
    """What stays when all runs are deleted: pods, and claims that were to go with their runs."""
    for name in cast.fates:
        real.ask("DELETE", runs_path(TENANT, name))
    deadline = time.monotonic() + 180
    while True:
        left = [
            f"{kind} {item['metadata']['name']}"
            for kind in ("pods", "persistentvolumeclaims")
            for item in real.items(kind)
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(2)


def doubled(audit: Audit, namespaces: str) -> list[str]:
    """Pods that were made more than once in namespaces that begin like this, by the API server's audit log."""
    created: Counter[tuple[str, str]] = Counter()
    for entry in audit.entries():
        thing = entry.get("objectRef") or {}
        made = entry["verb"] == "create" and thing.get("resource") == "pods" and not thing.get("subresource")
        if made and entry["responseStatus"]["code"] == 201 and str(thing.get("namespace", "")).startswith(namespaces):
            created[thing["namespace"], thing.get("name", "")] += 1
    return [f"{'/'.join(key)}: created {count} times" for key, count in created.items() if count > 1]


def run(args: argparse.Namespace) -> list[Figure]:
    chance = random.Random(f"{args.seed}-real")
    began = time.monotonic()
    note(f"{args.real} runs on real pods, {ABREAST} at a time")
    with installed() as made:
        real = Real(made)
        audit = Audit(made)
        cast = Cast(real, args.real, chance)
        strikes = Strikes(real, chance)
        strikes.start()
        try:
            runs = cast.play()
        finally:
            strikes.over.set()
            strikes.join(180)
        cast.read_logs(runs)
        wrong, double = cast.wrong(runs), doubled(audit, TENANT)
        for sentence in [text for texts in (*wrong.values(), double, strikes.trouble) for text in texts][:30]:
            note(f"wrong: {sentence}")
        left = leftovers(real, cast)
        for sentence in left[:10]:
            note(f"left: {sentence}")
    fates = Counter(cast.fates.values())
    return [
        Figure("real: runs", f"{args.real}", "at least 30", args.real >= 30),
        Figure("real: fates", "; ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))),
        Figure("real: fates that came too late", f"{len(cast.too_late())}"),
        Figure("real: claims that were full", f"{sum(ran_full(run) for run in runs)}"),
        Figure("real: faults", "; ".join(f"{count} {kind}" for kind, count in sorted(strikes.struck.items()))),
        Figure("real: packets to the gateway that were dropped", f"{strikes.packets}"),
        Figure("real: faults that could not be made", f"{len(strikes.trouble)}"),
        Figure("real: runs not in TERM with the right outcome", f"{len(wrong['outcome'])}", "0", not wrong["outcome"]),
        Figure("real: event logs with a gap", f"{len(wrong['events'])}", "0", not wrong["events"]),
        Figure(
            "real: starts from further back than an interval",
            f"{len(wrong['checkpoint'])}",
            "0",
            not wrong["checkpoint"],
        ),
        Figure("real: attempts with more than one pod", f"{len(double)}", "0", not double),
        Figure("real: objects left without a run", f"{len(left)}", "0", not left),
        Figure("real: runs with further attempts (a killed runtime may end pods)", f"{len(wrong['attempts'])}"),
        Figure("real: duration", f"{(time.monotonic() - began) / 60:.1f} min"),
    ]

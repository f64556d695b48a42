"""`make demo`: a manifest becomes a policy, on a real Kubernetes.

It takes the cluster that KUBECONFIG names, else starts a local one, installs the operator by its chart, applies
examples/ppo-cartpole.yaml, shows the run's states and learning curve until it ends, and says what to look at next.
`--down` removes everything that it made. On a machine that can't carry a node it trains without a cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import demo_local

from devcluster import Cluster, ClusterError, binaries, surroundings
from devcluster.api import ApiError
from devcluster.cluster import ESTABLISHED
from devcluster.images import WORKER
from devcluster.progress import StepFailed, columns, nobody_reads, step

PROJECT = Path(__file__).resolve().parent.parent
CHART = PROJECT / "helm" / "cleanrl-operator"
EXAMPLE = PROJECT / "examples" / "ppo-cartpole.yaml"
CLUSTER = "demo"
RELEASE, SYSTEM = "cleanrl-demo", "cleanrl-demo-system"
NAMESPACE, RUN = "cleanrl-demo", "ppo-cartpole"
EVALUATION = "ppo-cartpole-eval"
"""The run of examples/mode-policy-eval.yaml, which the demo proposes at its end."""
READER = f"{RUN}-reader"
"""The pod that keeps the run's folder open after its end."""
CRD = "cleanrlruns.mosaic.dev"
PATIENCE_SECONDS = 60
"""How long a run may have no status before the operator is looked at."""
HINT_SECONDS = 10
"""After this long a run that has not begun says what it waits for."""
NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")
METRICS_SECONDS = 2
"""How long the worker's figures are waited for: once it has ended, nobody answers at its address."""


class Refused(Exception):
    """Something outside refused; the message says what, in its own words."""


def main() -> int:
    """Run the demo or take it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--down", action="store_true", help="remove everything that the demo made")
    parser.add_argument("--values", type=Path, help="values of the chart, such as your registry's images")
    arguments = parser.parse_args()
    if arguments.values is not None and not arguments.values.is_file():
        parser.error(f"--values {arguments.values} is no file: write one with the chart's values, or leave it out")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the curve's blocks shows question marks
    try:
        if arguments.down:
            return take_down()
        own = has_own_cluster()
        reason = None if own else surroundings.why_no_node()
        if reason:
            cause = reason.rpartition(": ")[0]  # what stands behind it speaks of devcluster's own options
            say(
                f"{cause}, so this trains without a cluster; as root (in a container: a privileged one), or with KUBECONFIG "
                "set, it runs on Kubernetes.\n\n"
            )
            return demo_local.run()
        tools = Tools.own() if own else Tools.local()
        return demonstrate(tools, arguments.values)
    except (Refused, ClusterError, ApiError, StepFailed, binaries.BinaryError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    except (KeyboardInterrupt, BrokenPipeError) as stop:
        if isinstance(stop, BrokenPipeError):
            nobody_reads()
        sys.stderr.write(
            "\ndemo: interrupted. What runs in the cluster goes on: `make demo` starts afresh, `make demo-down` removes it.\n"
        )
        return 130


def has_own_cluster() -> bool:
    """Whether KUBECONFIG names a cluster of the user's. The demo tells people to set it to the demo's own."""
    named = os.environ.get("KUBECONFIG")
    return bool(named) and Path(str(named)).resolve() != Cluster(CLUSTER).kubeconfig.resolve()


def demonstrate(tools: Tools, values: Path | None) -> int:
    """From the chart to what to look at next."""
    started = time.monotonic()
    install(tools, values)
    start_afresh(tools)
    tools.kubectl("apply", "-n", NAMESPACE, "-f", str(EXAMPLE))
    say(f"Applied {relative(EXAMPLE)}: kind CleanRLRun, ppo on CartPole-v1. What happens to it:\n\n")
    status = follow(tools)
    completed = status.get("outcome") == "completed"
    say(f"\nThe run ended after {time.monotonic() - started:.0f} s: {status['outcome']}. {status.get('message', '')}\n")
    if completed:
        with step("reading its learning curve", 10):
            open_the_claim(tools)
            returns = learned(tools)
        say(f"The return of its episodes over time (500 is perfect): {returns}\n")
    say(what_next(tools, status) if completed else what_went_wrong(tools, status))
    return 0 if completed else 1


def install(tools: Tools, values: Path | None) -> None:
    """The operator by its chart, unless the cluster has one of somebody else's."""
    path = r"jsonpath={.metadata.annotations.meta\.helm\.sh/release-name}"
    owner = tools.kubectl("get", "crd", CRD, "--ignore-not-found", "-o", path)
    if owner not in ("", RELEASE):
        say(f"This cluster has an operator, of release {owner}: using that one.\n")
        tools.ensure_namespace(NAMESPACE)
        return
    say("Installing the operator by its chart.\n")
    options = ["--values", str(values)] if values else []
    if tools.cluster is not None:
        # The node lends the project's files to its pods: a changed source has to restart the operator.
        options += ["--set", "image.tag=dev", "--set", "worker.image.tag=dev"]
        options += ["--set-string", f"podAnnotations.source={digest_of_source()}"]
    tools.helm("upgrade", "--install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace", *options)
    tools.kubectl("wait", ESTABLISHED, f"crd/{CRD}", "--timeout=30s")
    tools.ensure_namespace(NAMESPACE)


def start_afresh(tools: Tools) -> None:
    """A finished run never starts again: the demo's earlier one goes, with its data."""
    tools.kubectl("delete", "pod", READER, "-n", NAMESPACE, "--ignore-not-found", "--wait=false")
    if tools.kubectl("get", "cleanrlrun", RUN, EVALUATION, "-n", NAMESPACE, "--ignore-not-found", "-o", "name"):
        say("Removing the runs of an earlier demo.\n")
        tools.kubectl("delete", "cleanrlrun", RUN, EVALUATION, "-n", NAMESPACE, "--ignore-not-found")
        # The next run has names of its own: nothing has to wait for these to be gone.
        of_theirs = f"mosaic.dev/run in ({RUN},{EVALUATION})"
        tools.kubectl("delete", "pod,pvc", "-n", NAMESPACE, "-l", of_theirs, "--wait=false")


def follow(tools: Tools) -> dict[str, Any]:
    """Show the run's states and its learning curve until it ends; its last status."""
    began = time.monotonic()
    told, hint = 0, ""
    curve = Curve(tools)
    with live_line() as draw:
        while True:
            status = tools.status()
            transitions = status.get("transitions", [])
            for each in transitions[told:]:
                draw("")
                say(f"  {time.monotonic() - began:5.1f} s  {each['to']:5}  {meaning(each)}\n")
            told = len(transitions)
            if status.get("fsmState") == "TERM":
                draw("")
                return status
            waited = time.monotonic() - began
            if not transitions:
                look_at_the_operator(tools, waited)
            if status.get("fsmState") != "EXEC":
                if waited > HINT_SECONDS and status.get("message"):
                    if hint != status["message"]:  # once and whole: it may be longer than a line
                        hint = status["message"]
                        draw("")
                        say(f"           {status['reason']}: {hint}\n")
                    draw(f"  {waited:5.1f} s so far")
                time.sleep(0.5)
                continue
            for _ in range(4):  # a small run is over in seconds: its curve is looked at more often than its status
                line = curve.look(status)
                time.sleep(0.15)
                if not line:
                    break
                draw(line)


def look_at_the_operator(tools: Tools, waited: float) -> None:
    """Nobody has seen the run yet. Raises Refused when nobody will, or after a while."""
    path = "jsonpath={range .items[*].status.containerStatuses[*]}{.state.waiting.reason} {.image}{'\\n'}{end}"
    pods = [line.partition(" ") for line in tools.kubectl("get", "pods", "-n", SYSTEM, "-o", path).splitlines()]
    missing = [image for reason, _, image in pods if reason in NO_IMAGE]
    # An operator that could not start with other values may still be there, beside the one that takes its place.
    if missing and len(missing) == len(pods) and waited > HINT_SECONDS:
        raise Refused(
            f"the cluster can't get the image {missing[0]}. None are published: build them with `make images`, put them where "
            "your cluster pulls from, and name them in a file of values (image.repository, worker.image.repository):\n"
            '  make demo ARGS="--values FILE"'
        )
    if waited > PATIENCE_SECONDS:
        raise Refused(
            f"the operator has not seen the run in {PATIENCE_SECONDS} s: look at it with\n"
            f"  {tools.line('-n', SYSTEM, 'get', 'pods')}\n"
            f"  {tools.line('-n', SYSTEM, 'logs', '-l', 'app.kubernetes.io/component=operator')}"
        )


def meaning(transition: dict[str, Any]) -> str:
    """A state in words, for somebody who sees it for the first time."""
    known = {
        "INIT": "accepted; claim and pod are being made",
        "HSHK": "the worker's container runs and registers with the operator",
        "RDY": "registered; its capabilities are known",
        "EXEC": "training",
        "PAUSE": "stopped for now, from a checkpoint",
        "FAULT": f"something went wrong ({transition['reason']})",
        "TERM": "over, for good",
    }
    return known.get(transition["to"], str(transition["reason"]))


class Curve:
    """The learning curve out of the worker's own metrics; where those can't be reached, out of the sampled status."""

    def __init__(self, tools: Tools) -> None:
        self.returns: list[float] = []
        self._tools = tools
        self._seen = (0.0, 0.0)

    def look(self, status: dict[str, Any]) -> str:
        """Where training is, on one line; empty when there is nothing new to say."""
        figures = self._metrics(status["podName"]) or self._sampled(status)
        done, value = figures.get("progress_ratio"), figures.get("rolling_return")
        if not done or value is None or done < self._seen[0]:  # a sample is older than what was seen before it
            return ""
        if (done, value) != self._seen:
            self._seen = (done, value)
            self.returns.append(value)
        told = f"           {done:4.0%} of the steps, {figures.get('steps_per_second', 0):,.0f} a second  "
        room = columns(sys.stdout) - len(f"{told} {value:.0f}")
        return f"{told}{demo_local.curve(self.returns, max(1, min(demo_local.CURVE_WIDTH, room)))} {value:.0f}"

    def _metrics(self, pod: str) -> dict[str, float]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9464/proxy/metrics"
        try:
            text = self._tools.kubectl("get", "--raw", path, f"--request-timeout={METRICS_SECONDS}s")
        except Refused:  # the worker does not serve yet or any more, or a person may not look into pods
            return {}
        lines = (line.removeprefix("cleanrl_worker_").split(" ") for line in text.splitlines() if line[:1] != "#")
        return {line[0]: float(line[1]) for line in lines if len(line) == 2}

    @staticmethod
    def _sampled(status: dict[str, Any]) -> dict[str, float]:
        progress = status.get("progress", {})
        names = {"rolling_return": "episodicReturn", "steps_per_second": "stepsPerSecond"}
        figures = {name: float(progress[field]) for name, field in names.items() if field in progress}
        return {**figures, "progress_ratio": progress.get("percent", 0) / 100}


def open_the_claim(tools: Tools) -> None:
    """A pod that keeps the run's folder open for reading: TensorBoard beside the worker has ended with it."""
    path = "jsonpath={.items[0].spec.containers[0].image}"
    image = tools.kubectl("get", "pods", "-n", NAMESPACE, "-l", f"mosaic.dev/run={RUN}", "-o", path) or WORKER
    claim = tools.kubectl(
        "get", "pvc", "-n", NAMESPACE, "-l", f"mosaic.dev/run={RUN}", "-o", "jsonpath={.items[0].metadata.name}"
    )
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "tensorboard",
        "image": image,
        "command": ["python", "-m", "tensorboard.main", "--logdir", "/run-data/tensorboard", "--load_fast=false"],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - an emptyDir of the pod's own
        "securityContext": confined,
        "volumeMounts": [
            {"name": "claim", "mountPath": "/run-data", "subPath": f"runs/{tools.status()['runId']}", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
        ],
    }
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": user,
        "containers": [container],
        "volumes": [
            {"name": "claim", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    metadata = {"name": READER, "namespace": NAMESPACE}  # no label of the run: who asks for its pods means its worker
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    tools.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    tools.kubectl("wait", "-n", NAMESPACE, f"pod/{READER}", "--for=condition=Ready", "--timeout=60s")


def learned(tools: Tools) -> str:
    """The whole learning curve, as TensorBoard's files have it: a small run is over before anybody has looked twice."""
    command = ("python", "-c", demo_local.READ_RETURNS, "/run-data/tensorboard")
    try:
        answer = tools.kubectl("exec", "-n", NAMESPACE, READER, "--", *command)
    except Refused as refusal:  # whoever may make pods may still not look into them
        return f"not shown, {refusal}"
    return demo_local.told(json.loads(answer.splitlines()[-1]))


def what_next(tools: Tools, status: dict[str, Any]) -> str:
    """Lines that work as they stand."""
    policy = status.get("checkpoint", {}).get("path", "checkpoints")
    setting = "" if tools.cluster is None else f"\n  export KUBECONFIG={shlex.quote(tools.environment['KUBECONFIG'])}"
    if shutil.which("kubectl") != tools.kubectl_command[0]:
        setting += f"\n  alias kubectl={shlex.quote(shlex.quote(tools.kubectl_command[0]))}"
    return f"""
What to look at next:{setting}
  all runs             kubectl get cleanrlruns -A
  this run's story     kubectl -n {NAMESPACE} describe cleanrlrun {RUN}
  every field          kubectl explain cleanrlrun.spec
  TensorBoard          kubectl -n {NAMESPACE} port-forward pod/{READER} 6006
    while that runs    http://localhost:6006
  the policy           kubectl -n {NAMESPACE} cp {READER}:/run-data/{policy} policy
  a hundred episodes   kubectl -n {NAMESPACE} apply -f examples/mode-policy-eval.yaml
    when they are over kubectl -n {NAMESPACE} wait crr/{EVALUATION} --for=condition=Complete --timeout=10m
    how good it is     kubectl -n {NAMESPACE} get crr
  the manifest         kubectl -n {NAMESPACE} exec {READER} -- cat /run-data/analytics.json
  remove everything    make demo-down
"""


def what_went_wrong(tools: Tools, status: dict[str, Any]) -> str:
    """Where the cause of a failure stands."""
    return f"""
Reason: {status.get("reason")}. Look closer with
  {tools.line("-n", NAMESPACE, "describe", "cleanrlrun", RUN)}
  {tools.line("-n", NAMESPACE, "logs", status.get("podName", "POD"), "-c", "worker")}
"""


def take_down() -> int:
    """Remove the local cluster, or what the demo made in the user's own."""
    if not has_own_cluster():
        Cluster(CLUSTER).down()
        shutil.rmtree(demo_local.RUNS, ignore_errors=True)
        say("The demo's cluster is gone, and the runs that it made without one.\n")
        return 0
    tools = Tools.own()
    tools.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    if RELEASE in tools.helm("list", "-n", SYSTEM, "-q").split():
        tools.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait")
        left = tools.kubectl("get", "cleanrlruns", "-A", "-o", "name")
        if left:
            say(f"There are runs of others, so the resource {CRD} stays.\n")
        else:
            tools.kubectl("delete", "crd", CRD, "--ignore-not-found")
    tools.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")
    say("Everything that the demo made is gone.\n")
    return 0


class Tools:
    """kubectl and helm for one cluster."""

    def __init__(self, environment: dict[str, str], cluster: Cluster | None, programs: dict[str, Path]) -> None:
        self.kubectl_command = [str(programs["kubectl"])]
        self.environment = environment
        self.cluster = cluster
        """The local cluster; None for the user's own."""
        self._helm = str(programs["helm"])

    @classmethod
    def own(cls) -> Tools:
        """For the cluster that KUBECONFIG names."""
        tools = cls(dict(os.environ), None, programs())
        remedy = "start that cluster, name another, or `unset KUBECONFIG` for a local one"
        try:
            server = tools.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
        except Refused as refusal:
            raise Refused(f"KUBECONFIG={os.environ['KUBECONFIG']} leads to no cluster ({refusal}): {remedy}") from None
        say(f"Using the cluster at {server}, which KUBECONFIG names.\n")
        try:
            tools.kubectl("get", "--raw", "/version", "--request-timeout=15s")
        except Refused as refusal:
            raise Refused(f"the cluster at {server} does not answer ({refusal}): {remedy}") from None
        return tools

    @classmethod
    def local(cls) -> Tools:
        """For a local cluster, started if it is not up."""
        cluster = Cluster(CLUSTER, node=True, gpus=2)
        cluster.up(reuse=True)
        return cls({**cluster.client_environment(), "KUBECONFIG": str(cluster.kubeconfig)}, cluster, programs())

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints. Raises Refused with its own words."""
        return self._run([*self.kubectl_command, *arguments], stdin)

    def helm(self, *arguments: str) -> str:
        """What helm prints. Raises Refused with its own words."""
        return self._run([self._helm, *arguments], None)

    def status(self) -> dict[str, Any]:
        """The run's status, empty before there is one."""
        run = self.kubectl("get", "cleanrlrun", RUN, "-n", NAMESPACE, "--ignore-not-found", "-o", "json")
        if not run:
            raise Refused(f"the run {RUN} was deleted meanwhile, by another demo or by hand: `make demo` starts afresh")
        return dict(json.loads(run).get("status", {}))

    def ensure_namespace(self, name: str) -> None:
        """A namespace that enforces the restricted profile, as a careful platform team's would."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def line(self, *arguments: str) -> str:
        """A kubectl line that a person can copy."""
        setting = "" if self.cluster is None else f"KUBECONFIG={shlex.quote(self.environment['KUBECONFIG'])} "
        return setting + shlex.join([*self.kubectl_command, *arguments])

    def _run(self, command: list[str], stdin: str | None) -> str:
        answer = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=self.environment)
        if answer.returncode != 0:
            raise Refused(f"{Path(command[0]).name} {' '.join(command[1:4])}: {answer.stderr.strip()}")
        return answer.stdout.strip()


def programs() -> dict[str, Path]:
    """kubectl and helm, found or made."""
    return binaries.ensure_many(["kubectl", "helm"])


@contextlib.contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """A line that is drawn over itself on a terminal; elsewhere it is written now and then."""
    terminal = sys.stdout.isatty()
    due, written = 0.0, ""

    def draw(text: str) -> None:
        nonlocal due, written
        if terminal:
            say(f"\r\033[K{text[: columns(sys.stdout)]}")
        elif text and text != written and time.monotonic() > due:
            say(f"{text}\n")
            due, written = time.monotonic() + 5, text

    try:
        yield draw
    finally:
        draw("")


def digest_of_source() -> str:
    """Changes when the operator's source does."""
    digest = hashlib.sha256()
    for folder in ("operator", "cleanrl_protocol"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


relative = demo_local.relative
say = demo_local.say


if __name__ == "__main__":
    sys.exit(main())

"""On a real node: each manifest in examples/ is applied and comes to the end that it promises.

What is applied is the file itself, cut down by `lowered` alone: fewer steps and episodes, less CPU and memory, so that all of
them fit on one small node and end in seconds. Kueue and Argo CD are not here: one policy holds pods of a queue back as Kueue
does, and an Application is compared with what it names.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.cluster import ESTABLISHED

pytestmark = pytest.mark.timeout(600)  # each test waits for its own of many runs that share a node

PROJECT = Path(__file__).parents[3]
EXAMPLES = PROJECT / "examples"
OVERLAY = EXAMPLES / "kustomize" / "overlays" / "team-a"
SOURCE = "ppo-cartpole"
"""The run whose policy three other examples go on with."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"

GO_ON = {"mode-interactive": "ppo-cartpole-play", "ppo-procgen": "ppo-starpilot"}
"""Files whose runs are canceled in EXEC: one waits for a person, of the other a single rollout is 16,384 frames."""
STEPS = 2048
FEWER_STEPS = {"doorkey-curriculum": 1024, "ppo-minigrid": 1024, "ppo-pong": 1024, "sac-halfcheetah": 600}
EPISODES = 5
LEARNING_STARTS = {"dqn": 500, "dqn_jax": 500, "sac_continuous_action": 300}
SIZE = {"cpus": {"requested": "400m"}, "memory": "1536Mi"}
ENOUGH = {"memory": "4Gi"}
"""For those that are canceled: on a busy machine they get as far as an update of the full size first."""


def lowered(document: dict[str, Any]) -> dict[str, Any]:
    """The document with smaller figures, and nothing else changed."""
    if document["kind"] != "CleanRLRun":
        return document
    spec = document["spec"]
    goes_on = document["metadata"]["name"] in GO_ON.values()
    if "totalTimesteps" in spec and not goes_on:
        spec["totalTimesteps"] = min(spec["totalTimesteps"], FEWER_STEPS.get(document["metadata"]["name"], STEPS))
    if spec["algo"] in LEARNING_STARTS:
        spec["algoParams"] = {"learning-starts": LEARNING_STARTS[spec["algo"]], **spec.get("algoParams", {})}
    if "evaluation" in spec:
        spec["evaluation"]["episodes"] = EPISODES
    spec["resources"] = {**spec.get("resources", {}), **SIZE, **(ENOUGH if goes_on else {})}
    return document


def documents(text: str) -> list[dict[str, Any]]:
    return [lowered(each) for each in yaml.safe_load_all(text) if each]


Status = dict[str, Any]
Promise = Callable[[Status], bool]


def trained(steps: int = STEPS) -> Promise:
    return lambda over: over["checkpoint"]["step"] >= steps and over["progress"]["percent"] == 100


COMPLETED: dict[str, dict[str, Promise]] = {
    "mode-dry-run": {
        "ppo-cartpole-dry": lambda over: over["reason"] == "DryRun" and "CartPole-v1" in over["message"],
    },
    "ppo-cartpole": {SOURCE: trained()},
    "dqn-cartpole-seeds": {
        f"dqn-cartpole-{seed}": lambda over: trained()(over) and over["analytics"]["claimName"] == "dqn-cartpole"
        for seed in (1, 2, 3)
    },
    "mode-resume": {"ppo-cartpole-more": trained(2 * STEPS)},
    "mode-policy-eval": {
        "ppo-cartpole-eval": lambda over: (
            f"{EPISODES} episodes" in over["message"] and over["progress"]["episodicReturn"] > 0
        ),
    },
    "ppo-atari-gpu": {"ppo-pong": lambda over: trained(1024)(over) and over["gpuSeconds"] > 0},
    "dqn-jax": {"dqn-jax-cartpole": trained()},
    "mode-curriculum": {
        "doorkey-curriculum": lambda over: (
            trained(1024)(over) and "in stage 1 of 2 (MiniGrid-DoorKey-5x5-v0)" in over["message"]
        ),
    },
    "mode-script": {"two-phases": lambda over: over["message"] == "phases.sh ended with exit code 0; phases done: 2."},
    "ppo-minigrid": {"ppo-minigrid": trained(1024)},
    "sac-halfcheetah": {"sac-halfcheetah": trained(600)},
}
"""Files whose runs complete, in the order in which they are applied, and what their statuses then say."""
OTHERS = ["argocd-application", "kueue-queue", "tenant", "tensorboard-all-runs"]

WHEELS = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "wheels"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}},
}
QUEUES = yaml.safe_load(f"""
apiVersion: v1
kind: List
items:
  - apiVersion: apiextensions.k8s.io/v1
    kind: CustomResourceDefinition
    metadata: {{name: localqueues.kueue.x-k8s.io}}
    spec:
      group: kueue.x-k8s.io
      scope: Namespaced
      names: {{kind: LocalQueue, listKind: LocalQueueList, plural: localqueues, singular: localqueue}}
      versions:
        - name: v1beta1
          served: true
          storage: true
          schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
  - apiVersion: admissionregistration.k8s.io/v1
    kind: MutatingAdmissionPolicy
    metadata: {{name: pods-of-a-queue-wait}}
    spec:
      matchConstraints:
        objectSelector: {{matchExpressions: [{{key: {QUEUE_LABEL}, operator: Exists}}]}}
        resourceRules: [{{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}}]
      reinvocationPolicy: Never
      mutations:
        - patchType: ApplyConfiguration
          applyConfiguration:
            expression: 'Object{{spec: Object.spec{{schedulingGates: [Object.spec.schedulingGates{{name: "{GATE}"}}]}}}}'
  - apiVersion: admissionregistration.k8s.io/v1
    kind: MutatingAdmissionPolicyBinding
    metadata: {{name: pods-of-a-queue-wait}}
    spec: {{policyName: pods-of-a-queue-wait}}
""")
"""What Kueue would bring that the example needs: its kind of queue, and pods that wait until they are admitted."""
ALL_RUNS = """
import time, urllib.request
for _ in range(90):
    try:
        runs = urllib.request.urlopen("http://127.0.0.1:6006/data/runs", timeout=10).read().decode()
    except OSError:
        runs = "[]"
    if runs.count("seed=") == 3:
        break
    time.sleep(1)
print(runs)
"""


def test_every_file_is_here() -> None:
    known = [*COMPLETED, *GO_ON, *OTHERS]
    assert sorted(known) == sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
    assert [path.parent for path in EXAMPLES.glob("kustomize/overlays/*/kustomization.yaml")] == [OVERLAY]


@pytest.fixture(scope="module")
def applied(module_runs: Any) -> Any:
    """All runs of all files in one namespace; they start as the node has room, and wait for what they start from."""
    module_runs.kubectl("create", "-f", "-", stdin=json.dumps(WHEELS))
    for name in (*COMPLETED, *GO_ON):
        text = (EXAMPLES / f"{name}.yaml").read_text()
        module_runs.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents(text)))
    return module_runs


def finished(runs: Any, name: str) -> Status:
    return dict(runs.reach(name, lambda status: status.get("fsmState") == "TERM", seconds=400))


@pytest.mark.parametrize("file", COMPLETED)
def test_its_runs_complete(file: str, applied: Any) -> None:
    in_file = [each for each in documents((EXAMPLES / f"{file}.yaml").read_text()) if each["kind"] == "CleanRLRun"]
    assert [each["metadata"]["name"] for each in in_file] == list(COMPLETED[file])
    for name, promise in COMPLETED[file].items():
        over = finished(applied, name)
        assert (over["outcome"], over["attempt"]) == ("completed", 1), applied.story(name, over)
        assert promise(over), json.dumps(over, indent=1)


@pytest.mark.parametrize("file", GO_ON)
def test_its_run_goes_on_until_somebody_ends_it(file: str, applied: Any) -> None:
    name = GO_ON[file]
    begun = applied.reach(name, lambda status: status.get("fsmState") in ("EXEC", "TERM"), seconds=400)
    assert begun["fsmState"] == "EXEC", applied.story(name, begun)
    applied.change(name, cancel=True)
    over = finished(applied, name)
    assert (over["outcome"], over["attempt"]) == ("canceled", 1), applied.story(name, over)


@pytest.fixture
def queues(applied: Any) -> Iterator[None]:
    """A cluster where pods of a queue wait to be admitted."""
    applied.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(QUEUES))
    applied.cluster.kubectl("wait", "crd/localqueues.kueue.x-k8s.io", ESTABLISHED, "--timeout=60s")
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "labels": {QUEUE_LABEL: "any"}}}
    probe["spec"] = {"containers": [{"name": "main", "image": "none"}]}
    create = ["create", "--dry-run=server", "-o", "json", "-f", "-"]
    for _ in range(120):  # a policy takes a moment to be in force
        if GATE in applied.cluster.kubectl(*create, stdin=json.dumps(probe)).stdout:
            break
        time.sleep(0.5)
    yield
    applied.cluster.kubectl("delete", "-f", "-", stdin=json.dumps(QUEUES))


@pytest.mark.usefixtures("queues")
def test_a_queued_run_waits_until_its_queue_admits_it(applied: Any) -> None:
    text = (EXAMPLES / "kueue-queue.yaml").read_text()
    applied.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents(text)))
    waiting = applied.reach("ppo-queued", lambda status: status.get("reason") == "Queued")
    assert waiting["fsmState"] == "INIT"
    pod = json.loads(applied.kubectl("get", "pod", waiting["podName"], "-o", "json"))
    assert pod["metadata"]["labels"][QUEUE_LABEL] == "research", "that is what Kueue acts on"
    assert applied.left("localqueues") == ["localqueue.kueue.x-k8s.io/research"]
    admit = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
    applied.kubectl("patch", "pod", waiting["podName"], "--type=json", "-p", admit)
    over = finished(applied, "ppo-queued")
    assert (over["outcome"], over["attempt"]) == ("completed", 1), applied.story("ppo-queued", over)


def test_one_tensorboard_shows_all_runs_of_a_claim(applied: Any) -> None:
    for seed in (1, 2, 3):
        finished(applied, f"dqn-cartpole-{seed}")
    text = (EXAMPLES / "tensorboard-all-runs.yaml").read_text()
    text = text.replace(": experiments", ": dqn-cartpole").replace("cleanrl-worker:0.1.0", "cleanrl-worker:dev")
    applied.kubectl("apply", "-f", "-", stdin=text)
    applied.kubectl("rollout", "status", "deployment/tensorboard-all-runs", "--timeout=100s")
    shown = json.loads(applied.kubectl("exec", "deployment/tensorboard-all-runs", "--", "python", "-c", ALL_RUNS))
    names = sorted(name.rpartition("__")[0] for name in shown)
    assert names == [f"dqn__CartPole-v1__seed={seed}" for seed in (1, 2, 3)]


@pytest.fixture
def team_a(operator: Any, module_runs: Any) -> Iterator[Any]:
    """The namespace of tenant.yaml."""
    operator.kubectl("apply", "-f", str(EXAMPLES / "tenant.yaml"))
    yield type(module_runs)(operator, "team-a")
    operator.kubectl("delete", "namespace", "team-a", "--wait=false")


def test_a_team_trains_within_its_quota_what_kustomize_builds(team_a: Any) -> None:
    cluster = team_a.cluster
    built = documents(cluster.kubectl("kustomize", str(OVERLAY)).stdout)
    member = ["--as", "carol", "--as-group", "team-a", "--as-group", "system:authenticated"]
    cluster.kubectl(*member, "apply", "-f", "-", stdin=yaml.safe_dump_all(built))
    refused = cluster.kubectl("--as", "dave", "-n", "team-a", "get", "cleanrlruns", check=False)
    assert "forbidden" in refused.stderr
    over = finished(team_a, "team-a-ppo-acrobot")
    assert over["outcome"] == "completed", team_a.story("team-a-ppo-acrobot", over)
    used = json.loads(team_a.kubectl("get", "resourcequota", "team-a", "-o", "json"))["status"]["used"]
    assert (used["count/cleanrlruns.mosaic.dev"], used["persistentvolumeclaims"]) == ("1", "1")


def test_the_application_names_what_is_there(operator: Any) -> None:
    text = (EXAMPLES / "argocd-application.yaml").read_text()
    application = yaml.safe_load(text)["spec"]
    assert PROJECT / application["source"]["path"] == OVERLAY
    built = yaml.safe_load_all(operator.kubectl("kustomize", str(PROJECT / application["source"]["path"])).stdout)
    assert {each["metadata"]["namespace"] for each in built} == {application["destination"]["namespace"]}
    (script,) = re.findall(r"docs/\S+\.lua", text)
    assert (PROJECT / script).is_file()

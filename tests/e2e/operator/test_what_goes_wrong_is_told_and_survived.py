"""On a real node: memory and disk run out, pods and nodes are taken away, clocks run out. The status says what happened and
what to do, the last checkpoint stands, and a run goes on from it whenever that can help."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from devcluster.images import PAUSE

ALONE = {"tensorboard": {"enabled": False}}
"""Without a sidecar a pod starts sooner; the tests beside this one look at the sidecar."""
SMALL = {"cpus": {"requested": "200m"}, "memory": "700Mi"}
FILES = """
import json, pathlib
print(json.dumps(sorted(str(path) for path in pathlib.Path(".").rglob("*") if path.is_file())))
"""
ENDING = """
import json, pathlib
manifest = json.loads(pathlib.Path("analytics.json").read_text())
checkpoints = sorted(path.parent.name for path in pathlib.Path("checkpoints").glob("step-*/manifest.json"))
print(json.dumps({"outcome": manifest["outcome"], "reason": manifest["reason"], "checkpoints": checkpoints}))
"""
EAT_MEMORY = """
# Shared memory counts against the container that writes it, and stays when the writer goes: the kernel has to kill somebody,
# and takes the largest.
with open("/dev/shm/eaten", "wb", buffering=0) as file:
    for _ in range(1000):
        file.write(bytes(2**20))
"""
FILL_CLAIM = """
import os
with open(os.environ["CLEANRL_RUN_DIR"] + "/ballast", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError as error:
        print(error.strerror)
    file.truncate(max(0, file.tell() - %d))
"""


def reasons(status: dict[str, Any]) -> list[str]:
    return [each["reason"] for each in status["transitions"]]


def executes(attempt: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: status.get("fsmState") == "EXEC" and status["attempt"] == attempt


def ended(status: dict[str, Any]) -> bool:
    return status.get("fsmState") == "TERM"


def condition(status: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((each for each in status["conditions"] if each["type"] == kind), None)


def training(runs: Any, name: str, **spec: Any) -> dict[str, Any]:
    """A small run of this name, once it trains."""
    runs.apply(name, **SMALL_RUN | spec)
    status = dict(runs.reach(name, executes(1)))
    runs.says(name, "training_started")
    return status


def inside(runs: Any, name: str) -> list[str]:
    return ["exec", runs.status(name)["podName"], "-c", "worker", "--"]


SMALL_RUN: dict[str, Any] = {"resources": SMALL, "artifacts": ALONE}


@pytest.fixture(scope="module")
def crowd(module_runs: Any) -> Any:
    """The namespace, with the one run in it that takes a minute by the clock: it ends while the others are looked at."""
    module_runs.apply("late", **SMALL_RUN, maxWallclockMinutes=1)
    return module_runs


def test_a_run_with_too_little_memory_says_what_to_raise(crowd: Any) -> None:
    crowd.apply(
        "starved", **SMALL_RUN | {"resources": {**SMALL, "memory": "40Mi"}}, retry={"limit": 1, "backoffSeconds": 1}
    )
    over = crowd.reach("starved", ended)
    assert (over["outcome"], over["reason"]) == ("failed", "OOMKilled")
    assert "more than its memory of 40Mi" in over["message"]
    assert "raise resources.memory" in over["message"]
    assert (over["attempt"], over["retries"]) == (2, 2), "it was tried once more, as the table says"
    assert "raise resources.memory" in crowd.warned("starved", "OOMKilled")
    assert (condition(over, "Failed") or {})["reason"] == "OOMKilled"


def test_a_run_whose_memory_ran_out_goes_on_from_its_checkpoint(crowd: Any) -> None:
    training(crowd, "squeezed")
    saved = crowd.saved("squeezed")["checkpoint"]["step"]
    crowd.cluster.kubectl("-n", crowd.namespace, *inside(crowd, "squeezed"), "python", "-c", EAT_MEMORY, check=False)
    again = crowd.reach("squeezed", executes(2))
    assert "OOMKilled" in reasons(again)
    started = crowd.says("squeezed", "training_started")
    assert started["resumed"]
    assert started["step"] >= saved
    crowd.kubectl("delete", "cleanrlrun", "squeezed")


def test_a_paused_run_keeps_its_pod_and_its_step(crowd: Any) -> None:
    before = training(crowd, "kept")
    crowd.change("kept", pause=True)
    still = crowd.reach("kept", lambda status: status["fsmState"] == "PAUSE")
    assert (still["reason"], still["podUID"], still["attempt"]) == ("Paused", before["podUID"], 1)
    stood = still["checkpoint"]["step"]
    assert condition(still, "Suspended")
    assert "Running" in crowd.kubectl("get", "pod", still["podName"])
    crowd.change("kept", pause=False)
    crowd.reach("kept", lambda status: executes(1)(status) and (status.get("progress") or {}).get("step", 0) > stood)
    assert crowd.status("kept")["podUID"] == before["podUID"]


def test_a_deleted_run_checkpoints_first_and_its_claim_stays_or_goes_as_asked(crowd: Any) -> None:
    kept = crowd.reach("kept", executes(1))
    training(crowd, "dropped", artifacts={**ALONE, "storage": {"deletionPolicy": "Delete"}})
    crowd.kubectl("delete", "cleanrlrun", "kept", "dropped")
    crowd.freed("kept")
    crowd.freed("dropped")
    folder = {"mountPath": "/folder", "subPath": f"runs/{kept['runId']}", "readOnly": True}
    claim = {"claimName": kept["analytics"]["claimName"]}
    told = json.loads(crowd.python(ENDING, {"name": "c", **folder}, {"name": "c", "persistentVolumeClaim": claim}))
    assert told["outcome"] == "canceled"
    assert len(told["checkpoints"]) > 0
    assert int(told["checkpoints"][-1].removeprefix("step-")) > kept["checkpoint"]["step"], "it saved before it left"
    crowd.kubectl("wait", "pvc", "-l", "mosaic.dev/run=dropped", "--for=delete", "--timeout=60s")
    left = [name for name in crowd.left() if "kept" in name or "dropped" in name]
    assert left == [f"persistentvolumeclaim/{claim['claimName']}"]
    newest = told["checkpoints"][-1]
    path = f"runs/{kept['runId']}/checkpoints/{newest}"
    fields = {"mode": "resume", "totalTimesteps": 1024, "from": {"path": path}}
    crowd.apply("recovered", **SMALL_RUN | fields | {"artifacts": {**ALONE, "storage": claim}})
    again = crowd.reach("recovered", ended)
    assert (again["outcome"], again["reason"]) == ("completed", "Completed"), again["message"]
    assert again["checkpoint"]["step"] > int(newest.removeprefix("step-")), "it went on from there"


def test_a_full_claim_is_told_and_the_last_good_checkpoint_stands(crowd: Any) -> None:
    storage = {"size": "16Mi", "storageClassName": "devcluster-limited"}
    training(crowd, "full", artifacts={**ALONE, "storage": storage}, retry={"limit": 0})
    good = crowd.saved("full")["checkpoint"]
    assert "No space left" in crowd.inside("full", FILL_CLAIM % 40_960), (
        "some room for a few lines, none for a checkpoint"
    )
    crowd.change("full", pause=True)
    warned = crowd.reach("full", lambda status: condition(status, "CheckpointFailed") is not None or ended(status))
    if not ended(warned):
        said = condition(warned, "CheckpointFailed")
        assert "Free space on the volume" in said["message"]
        assert warned["checkpoint"]["step"] == good["step"], "one that failed is not the newest"
    crowd.warned("full", "CheckpointFailed")
    crowd.inside("full", FILL_CLAIM % 0)
    crowd.change("full", pause=False)
    over = crowd.reach("full", ended)
    assert (over["outcome"], over["reason"]) == ("failed", "ClaimFull")
    assert "Enlarge the claim, or delete what is not needed on it" in over["message"]
    assert over["checkpoint"] == good
    files = json.loads(crowd.read("full", FILES))
    assert f"{good['path']}/manifest.json" in files
    assert [name for name in files if ".tmp-" in name] == [], "half a checkpoint is none, and takes no room"


def test_a_run_whose_pod_is_deleted_by_hand_goes_on(crowd: Any) -> None:
    status = training(crowd, "bereft")
    crowd.kubectl("delete", "pod", status["podName"], "--wait=false")
    again = crowd.reach("bereft", executes(2))
    assert "PodLost" in reasons(again)
    assert "Somebody deleted the pod" in crowd.warned("bereft", "PodLost")
    assert crowd.says("bereft", "training_started")["resumed"], "SIGTERM made it save"
    crowd.kubectl("delete", "cleanrlrun", "bereft")


def test_a_drained_node_costs_no_retry(crowd: Any) -> None:
    status = training(crowd, "moved")
    node = status["nodeName"]
    try:
        drain = ["drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s"]
        crowd.cluster.kubectl(*drain, "--pod-selector=mosaic.dev/run=moved")
        waiting = crowd.reach("moved", lambda status: status.get("reason") == "Unschedulable")
        assert waiting["fsmState"] == "INIT"
        assert "unschedulable" in waiting["message"]
        assert (waiting["attempt"], waiting.get("retries", 0)) == (2, 0)
        assert "drained" in crowd.warned("moved", "Evicted")
    finally:
        crowd.cluster.kubectl("uncordon", node)
    crowd.reach("moved", executes(2))
    assert crowd.says("moved", "training_started")["resumed"]
    crowd.kubectl("delete", "cleanrlrun", "moved")


def test_a_run_ends_when_its_wall_clock_is_over(crowd: Any) -> None:
    over = crowd.reach("late", ended, seconds=180)
    assert (over["outcome"], over["reason"]) == ("deadline_exceeded", "DeadlineExceeded")
    assert "maxWallclockMinutes (1)" in over["message"]
    assert over["wallclockSeconds"] >= 60
    assert over["attempt"] == 1
    told = json.loads(crowd.read("late", ENDING))
    assert told["outcome"] == "deadline_exceeded"
    assert f"step-{over['checkpoint']['step']:012d}" in told["checkpoints"], "what was trained until then is kept"


def test_an_image_that_is_no_workers_is_named(runs: Any) -> None:
    alone = {"image": PAUSE, "podTemplate": {"runtimeClassName": "image-only"}}
    runs.apply("wrong", **alone)
    told = runs.reach("wrong", lambda status: status.get("reason") == "ImageError")
    assert told["fsmState"] == "INIT", "another one may come"
    assert '"python": executable file not found' in told["message"]
    runs.apply("dry", dryRun=True, retry={"limit": 0}, **alone)
    over = runs.reach("dry", ended)
    assert (over["outcome"], over["reason"]) == ("failed", "ImageError")
    assert '"python": executable file not found' in over["message"]
    assert "HSHK" not in [step["to"] for step in over["transitions"]]

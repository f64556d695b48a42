"""What is particular to a mode, with the API server as the judge: dry runs, scripts, stages, and pods that install first."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cleanrl_protocol.podconfig import decode


def config(pod: dict[str, Any]) -> dict[str, Any]:
    return decode(pod["metadata"]["annotations"]["mosaic.dev/config"]).worker_config


def conditions(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in status["conditions"]}


@pytest.mark.parametrize("asked", ["spec", "annotation"])
def test_a_dry_run_ends_with_what_would_run_and_leaves_nothing(lab: Any, asked: str) -> None:
    if asked == "spec":
        lab.create("dry", dryRun=True)
    else:
        body = {
            "apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun",
            "metadata": {"name": "dry", "annotations": {"mosaic.dev/dry-run": "true"}},
            "spec": {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000},
        }  # fmt: skip
        lab.api.create(f"/apis/mosaic.dev/v1alpha1/namespaces/{lab.namespace}/cleanrlruns", body)
    lab.start_pod("dry")
    (pod,) = lab.pods("dry")
    assert config(pod)["dry_run"] is True
    lab.end_pod("dry", outcome="completed", message="would run: ppo on CartPole-v1 for 1000 steps")
    end = lab.until("dry", fsmState="TERM")
    assert (end["outcome"], end["reason"]) == ("completed", "DryRun")
    assert end["message"] == "would run: ppo on CartPole-v1 for 1000 steps"
    assert conditions(end)["Complete"]["message"] == end["message"]
    claims = lab.api.get(f"/api/v1/namespaces/{lab.namespace}/persistentvolumeclaims")["items"]
    assert claims == []
    assert "analytics" not in end


def test_an_annotation_that_comes_or_goes_later_tells_no_other_story(lab: Any) -> None:
    runs = f"/apis/mosaic.dev/v1alpha1/namespaces/{lab.namespace}/cleanrlruns"
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000}
    for name, before, after in (("dry", "true", None), ("real", None, "true")):
        metadata = {"name": name, "annotations": {"mosaic.dev/dry-run": before} if before else {}}
        lab.api.create(
            runs, {"apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun", "metadata": metadata, "spec": spec}
        )
        lab.start_pod(name)
        lab.api.merge(f"{runs}/{name}", {"metadata": {"annotations": {"mosaic.dev/dry-run": after}}})
        lab.end_pod(name, outcome="completed", message="what it came to")
    dry, real = (lab.until(name, fsmState="TERM", outcome="completed") for name in ("dry", "real"))
    assert (dry["reason"], "execStartedAt" in dry, "progress" in dry) == ("DryRun", False, False), "it has not trained"
    assert (real["reason"], "execStartedAt" in real) == ("Completed", True), "it has"


def test_pods_of_every_mode_are_taken_under_the_restricted_profile(lab: Any) -> None:
    lab.create("script", mode="script", script={"configMapRef": {"name": "phases"}, "key": "run.sh"})
    lab.create("talk", mode="interactive", **{"from": {"path": "policy"}})
    lab.create("staged", mode="curriculum", curriculum={"preset": "babyai-goto"})
    lab.create("judged", mode="policyEval", **{"from": {"path": "policy"}})
    for name in ("script", "talk", "staged", "judged"):
        assert lab.until(name, fsmState="INIT", attempt=1)["reason"] != "PolicyRefused"
    (pod,) = lab.pods("talk")
    assert pod["spec"]["containers"][0]["stdin"] is True
    (pod,) = lab.pods("script")
    assert config(pod)["extras"]["script_path"] == "/scripts/run.sh"


def test_a_stage_is_shown_and_bounded(lab: Any) -> None:
    lab.create("staged", mode="curriculum", curriculum={"preset": "babyai-goto"})
    worker = lab.execute("staged")
    worker.emit("stage_started", index=0, count=3, name="BabyAI-GoToObj-v0")
    deadline = time.monotonic() + 30
    while (lab.status("staged").get("progress") or {}).get("stage") != "1/3 BabyAI-GoToObj-v0":
        assert time.monotonic() < deadline, lab.status("staged").get("progress")
    worker.emit("stage_started", index=1, count=3, name="x" * 5000)
    worker.scalars(10)
    while not (lab.status("staged")["progress"].get("stage") or "").startswith("2/3 x"):
        assert time.monotonic() < deadline, lab.status("staged").get("progress")
    assert len(lab.status("staged")["progress"]["stage"]) == 128, "bounded, whatever the worker says"


def test_a_new_checkpoint_is_told_at_once_whatever_progress_was_written_before(lab: Any) -> None:
    lab.create("run")
    worker = lab.execute("run")
    for step in (100, 200, 300):
        worker.scalars(step)
        worker.checkpoint(step)
        began = time.monotonic()
        while (lab.status("run").get("checkpoint") or {}).get("step") != step:
            assert time.monotonic() - began < 60, lab.status("run")
            time.sleep(0.1)


def test_an_idle_gpu_is_told_once_and_shown_while_it_lasts(lab: Any) -> None:
    gpus = {"gpus": {"requested": 1, "mandatory": True}}
    lab.create("idle", resources=gpus)
    lab.create("busy", resources=gpus, envId="BabyAI-GoToObj-v0")
    idle = lab.until("idle", fsmState="INIT", reason="Unschedulable")
    told = conditions(idle)["GPUUnused"]
    assert told["status"] == "True"
    assert "ppo on CartPole-v1 computes on the CPU" in told["message"]
    assert "GPUUnused" not in conditions(lab.until("busy", fsmState="INIT", reason="Unschedulable"))
    lab.start_pod("idle")
    assert lab.events("idle").count("GPUUnused") == 1
    assert "GPUUnused" not in lab.events("busy")


# -- requirement sets


@pytest.fixture(scope="module")
def stocked(make_operator: Any) -> Any:
    """An operator with a table of images and a wheel cache."""
    settings = {"images": "atari=atari:1,atari+minigrid=both:1", "wheel_cache_claim": "wheels"}
    return make_operator("stocked", operator_class="stocked", **settings).start()


def test_what_can_not_be_installed_is_a_fault_with_the_installers_words(stocked: Any, make_lab: Any) -> None:
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    lab = make_lab(stocked.gateway_port, restricted, operator_class="stocked")
    lab.create("image", requirements=["minigrid"])
    lab.create("install", requirements=["jax"], retry={"limit": 1, "backoffSeconds": 1})
    lab.until("image", attempt=1)
    (pod,) = lab.pods("image")
    assert pod["spec"]["containers"][0]["image"] == "both:1"
    for attempt in (1, 2):
        lab.until("install", fsmState="INIT", attempt=attempt)
        said = "ERROR: No matching distribution found for jax\nerror: the wheel cache does not hold the packages of jax"
        done = {"exitCode": 1, "reason": "Error", "message": said, "startedAt": now(), "finishedAt": now()}
        failed = {"name": "requirements", "ready": False, "restartCount": 0, "image": "", "imageID": ""}
        lab.set_pod("install", phase="Failed", initContainerStatuses=[{**failed, "state": {"terminated": done}}])
    end = lab.until("install", fsmState="TERM")
    assert (end["outcome"], end["reason"], end["attempt"]) == ("failed", "DependencyInstallFailed", 2)
    assert end["message"].startswith("Requirement sets could not be installed: ")
    assert end["message"].endswith("error: the wheel cache does not hold the packages of jax")
    assert [step["to"] for step in end["transitions"]] == ["INIT", "FAULT", "INIT", "FAULT", "TERM"], "it never ran"


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

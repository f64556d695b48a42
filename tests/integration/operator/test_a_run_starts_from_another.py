"""`from.run`: nothing starts before the source run's status vouches for a checkpoint, and what it vouches for travels."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cleanrl_protocol.podconfig import decode

SHA = "a" * 64
CHECKPOINT = {"path": "checkpoints/500", "step": 500, "time": "2026-01-01T00:00:00Z", "sha256": SHA}


def finish(lab: Any, name: str, checkpoint: int = 0, **spec: Any) -> dict[str, Any]:
    lab.create(name, **spec)
    lab.start_pod(name)
    lab.end_pod(name, outcome="completed", checkpoint=checkpoint)
    return dict(lab.until(name, fsmState="TERM"))


def test_the_digest_of_the_sources_status_reaches_the_worker(lab: Any) -> None:
    source = finish(lab, "earlier", checkpoint=500)
    lab.create("later", mode="resume", **{"from": {"run": "earlier"}})
    lab.until("later", fsmState="INIT", attempt=1)
    (pod,) = lab.pods("later")
    extras = decode(pod["metadata"]["annotations"]["mosaic.dev/config"]).worker_config["extras"]
    assert (extras["checkpoint_path"], extras["checkpoint_sha256"]) == ("/source/checkpoints/500", SHA)
    mount = next(each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["mountPath"] == "/source")
    assert (mount["readOnly"], mount["subPath"]) == (True, f"runs/{source['runId']}")


def test_a_second_attempt_starts_though_its_source_is_gone(lab: Any) -> None:
    source = finish(lab, "earlier", checkpoint=500)
    lab.create("later", mode="resume", retry={"limit": 1, "backoffSeconds": 1}, **{"from": {"run": "earlier"}})
    lab.until("later", attempt=1)
    lab.start_pod("later")
    lab.delete("earlier")
    lab.end_pod("later", exit_code=1)
    lab.until("later", fsmState="INIT", attempt=2)
    (pod,) = [pod for pod in lab.pods("later") if pod["metadata"]["labels"]["mosaic.dev/attempt"] == "2"]
    extras = decode(pod["metadata"]["annotations"]["mosaic.dev/config"]).worker_config["extras"]
    assert (extras["checkpoint_path"], extras["checkpoint_sha256"]) == ("/source/checkpoints/500", SHA)
    mount = next(each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["mountPath"] == "/source")
    assert mount["subPath"] == f"runs/{source['runId']}"


@pytest.mark.parametrize(
    ("sentence", "spec"),
    [
        ("there is no such run in this namespace", {"mode": "resume", "from": {"run": "nobody"}}),
        ("ended without a checkpoint", {"mode": "resume", "from": {"run": "empty"}}),
        ("was trained with ppo, not with dqn", {"mode": "resume", "algo": "dqn", "from": {"run": "empty"}}),
        (
            "trained on CartPole-v1, not on Acrobot-v1",
            {"mode": "resume", "envId": "Acrobot-v1", "from": {"run": "empty"}},
        ),
        ("names the run itself", {"mode": "resume", "from": {"run": "later"}}),
    ],
)
def test_what_can_never_start_ends_with_a_sentence(lab: Any, sentence: str, spec: dict[str, Any]) -> None:
    finish(lab, "empty")
    lab.create("later", **spec)
    end = lab.until("later", fsmState="TERM", outcome="failed")
    assert (end["reason"], end.get("attempt", 0)) == ("BadConfig", 0)
    assert sentence in end["message"]
    assert lab.pods("later") == []


def test_a_source_that_still_trains_is_waited_for(lab: Any) -> None:
    lab.create("source")
    worker = lab.execute("source")
    lab.create("later", mode="policyEval", totalTimesteps=None, **{"from": {"run": "source"}})
    waiting = lab.until("later", fsmState="INIT", reason="WaitingForSource")
    assert "first checkpoint of source" in waiting["message"]
    assert (lab.pods("later"), waiting.get("retries", 0)) == ([], 0)
    worker.checkpoint(500)
    lab.until("later", attempt=1)


def test_a_checkpoint_that_the_source_has_replaced_meanwhile_gives_way_to_the_newest(lab: Any) -> None:
    lab.create("source")
    worker = lab.execute("source")
    worker.checkpoint(500)
    retry = {"limit": 1, "backoffSeconds": 1}
    lab.create("later", mode="resume", retry=retry, **{"from": {"run": "source"}})
    lab.until("later", attempt=1)
    lab.start_pod("later")
    worker.checkpoint(900)
    while lab.status("source")["checkpoint"]["step"] < 900:
        time.sleep(0.05)
    lab.end_pod("later", exit_code=2, outcome="failed", why="NoCheckpoint", message="there is no checkpoint")
    lab.until("later", fsmState="INIT", attempt=2)
    (pod,) = [pod for pod in lab.pods("later") if pod["metadata"]["labels"]["mosaic.dev/attempt"] == "2"]
    extras = decode(pod["metadata"]["annotations"]["mosaic.dev/config"]).worker_config["extras"]
    assert extras["checkpoint_path"] == "/source/checkpoints/900"


def test_a_run_of_another_namespace_is_no_source(lab: Any, make_lab: Any, operator: Any) -> None:
    other = make_lab(operator.gateway_port)
    finish(other, "earlier", checkpoint=500)
    lab.create("later", mode="resume", **{"from": {"run": "earlier"}})
    assert "no such run" in lab.until("later", fsmState="TERM")["message"]

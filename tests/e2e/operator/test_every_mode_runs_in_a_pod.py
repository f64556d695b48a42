"""On a real node: what can be done with a run besides plain training, applied as manifests, and what a person then sees."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

SMALL = {"resources": {"cpus": {"requested": "300m"}, "memory": "1Gi"}, "retry": {"limit": 1}}
STAGES = [{"envId": "MiniGrid-Empty-5x5-v0", "steps": 256}, {"envId": "MiniGrid-Empty-6x6-v0"}]
PHASES = """#!/usr/bin/env bash
# @description: two phases
# @phases: 2
set -euo pipefail
echo "@phase: warm up"
cleanrl-worker --config "$MOSAIC_CONFIG_FILE" --env-id CartPole-v1 --total-timesteps 1024
echo "@phase: hard part"
cleanrl-worker --config "$MOSAIC_CONFIG_FILE" --env-id {second} --total-timesteps 1024
"""
READ = """
import csv, json, pathlib
folder = pathlib.Path(".")
found = {"manifest": json.loads((folder / "analytics.json").read_text())}
found["events"] = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
if (folder / "eval_summary.json").exists():
    found["summary"] = json.loads((folder / "eval_summary.json").read_text())
    found["episodes"] = list(csv.DictReader((folder / "eval_episodes.csv").open()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs(module_runs: Any) -> Any:
    """One namespace with all the runs of this file: each test waits for its own."""
    runs = module_runs
    scripts = {"good.sh": PHASES.format(second="Acrobot-v1"), "bad.sh": PHASES.format(second="NoSuchLevel-v0")}
    runs.kubectl("create", "configmap", "scripts", *(f"--from-literal={key}={text}" for key, text in scripts.items()))
    runs.apply("source", totalTimesteps=2048, **SMALL)
    params = {"num-envs": 4, "num-steps": 64, "update-epochs": 1}
    asked = {"envId": "MiniGrid-Empty-6x6-v0", "totalTimesteps": 1024, "algoParams": params, **SMALL}
    runs.apply("lessons", mode="curriculum", curriculum={"schedule": STAGES}, **asked)
    for name in ("good", "bad"):
        script = {"configMapRef": {"name": "scripts"}, "key": f"{name}.sh"}
        runs.apply(f"script-{name}", mode="script", script=script, totalTimesteps=1024, **SMALL)
    runs.apply("dry", dryRun=True, mode="curriculum", curriculum={"preset": "babyai-doorkey"}, **asked)
    return runs


@pytest.fixture(scope="module")
def source(runs: Any) -> dict[str, Any]:
    """The status of a finished run, from which the others start."""
    status = ended(runs, "source")
    again = {"from": {"run": "source"}, **SMALL}
    runs.apply("more", mode="resume", totalTimesteps=1024, **again)
    runs.apply("judged", mode="policyEval", evaluation={"episodes": 20}, totalTimesteps=None, **again)
    runs.apply("played", mode="interactive", totalTimesteps=None, **again)
    return status


def ended(runs: Any, name: str, outcome: str = "completed") -> dict[str, Any]:
    """The status of a run once it is over and its manifest is known."""
    status = runs.reach(name, lambda seen: seen.get("fsmState") == "TERM", seconds=240)
    assert status["outcome"] == outcome, runs.story(name, status)
    status = runs.reach(name, lambda seen: bool((seen.get("analytics") or {}).get("manifestDigest")))
    return dict(status)


def left(runs: Any, name: str) -> Any:
    """What the run left on its claim."""
    return json.loads(runs.read(name, READ))


def said(found: Any, event: str) -> list[dict[str, Any]]:
    return [each["payload"] for each in found["events"] if each["event"] == event]


def test_a_dry_run_says_what_would_run(runs: Any) -> None:
    status = ended(runs, "dry")
    assert status["reason"] == "DryRun"
    assert "MiniGrid-DoorKey-16x16-v0" in status["message"]
    assert "EXEC" not in [each["to"] for each in status["transitions"]]
    assert not (status.get("progress") or {}).get("step")


def test_the_stage_of_a_curriculum_is_in_the_status(runs: Any) -> None:
    status = ended(runs, "lessons")
    assert status["progress"]["stage"] == f"2/2 {STAGES[1]['envId']}"
    assert status["progress"]["step"] == 1024
    stages = said(left(runs, "lessons"), "stage_started")
    assert [(each["index"], each["name"]) for each in stages] == list(enumerate(each["envId"] for each in STAGES))


def test_training_is_extended_from_another_runs_checkpoint(runs: Any, source: dict[str, Any]) -> None:
    status = ended(runs, "more")
    assert source["checkpoint"]["step"] == 2048
    assert status["progress"]["step"] == status["checkpoint"]["step"] == 2048 + 1024
    assert status["progress"]["percent"] == 100
    (loaded,) = said(left(runs, "more"), "checkpoint_loaded")
    assert loaded["sha256"] == source["checkpoint"]["sha256"]


def test_a_policy_is_evaluated_from_another_runs_checkpoint(runs: Any, source: dict[str, Any]) -> None:
    status = ended(runs, "judged")
    found = left(runs, "judged")
    summary, episodes = found["summary"]["overall"], found["episodes"]
    assert len(episodes) == summary["episodes"] == 20
    assert sum(float(row["return"]) for row in episodes) / 20 == pytest.approx(summary["avg_return"])
    assert status["progress"]["episodicReturn"] == float(f"{summary['avg_return']:.6g}")
    assert "20 episodes" in status["message"]
    assert source["checkpoint"]["path"] in found["summary"]["policy_path"]


@contextlib.contextmanager
def attached(runs: Any, pod: str) -> Iterator[Callable[[str], dict[str, Any]]]:
    """A conversation through kubectl attach: a line in, the next answer out."""
    with subprocess.Popen(
        runs.cluster.kubectl_command("-n", runs.namespace, "attach", "-i", "-q", f"pod/{pod}", "-c", "worker"),
        env=runs.cluster.client_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as kubectl:

        def ask(line: str) -> dict[str, Any]:
            assert kubectl.stdin
            assert kubectl.stdout
            kubectl.stdin.write(line + "\n")
            kubectl.stdin.flush()
            return dict(json.loads(kubectl.stdout.readline()))

        try:
            yield ask
        finally:
            kubectl.kill()


@pytest.mark.usefixtures("source")
def test_a_policy_is_played_through_kubectl_attach(runs: Any) -> None:
    pod = runs.reach("played", lambda seen: seen.get("fsmState") == "EXEC")["podName"]
    with attached(runs, pod) as ask:
        assert ask('{"cmd": "init"}')["type"] == "init"
        ready = ask('{"cmd": "reset", "seed": 7}')
        assert (ready["type"], ready["seed"], ready["observation_shape"]) == ("ready", 7, [4])
        step = ask('{"cmd": "step"}')
        assert (step["type"], step["step_index"], step["reward"]) == ("step", 1, 1.0)
        assert "Invalid JSON" in ask("once upon a time")["message"]
    with attached(runs, pod) as ask:  # who has left may come back
        assert ask('{"cmd": "step"}')["step_index"] == 2
        assert ask('{"cmd": "stop"}')["type"] == "stopped"
        status = ended(runs, "played")
    assert status["message"] == "The conversation is over; commands answered: 6."


def test_the_phases_of_a_script_are_in_the_status(runs: Any) -> None:
    status = ended(runs, "script-good")
    assert status["progress"]["stage"] == "2/2 hard part"
    assert status["message"] == "good.sh ended with exit code 0; phases done: 2."
    stages = said(left(runs, "script-good"), "stage_started")
    assert [each["name"] for each in stages] == ["warm up", "hard part"]


def test_a_phase_that_fails_ends_the_run_with_its_name(runs: Any) -> None:
    status = ended(runs, "script-bad", "failed")
    assert status["reason"] == "BadConfig", "its worker refused it, so it was not tried again"
    assert "phase 2 (hard part)" in status["message"]
    assert "NoSuchLevel-v0" in status["message"]
    assert "FAULT" in [each["to"] for each in status["transitions"]]

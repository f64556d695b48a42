"""The modes that are not an algorithm's: scripts phase by phase, dry runs in place, and a policy played over stdin."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HEAD = """#!/usr/bin/env bash
# @description: a test
# @phases: 2
# @total_timesteps: 1024
set -euo pipefail
test -f "$MOSAIC_CONFIG_FILE"
"""
PHASE = 'cleanrl-worker --config "$MOSAIC_CONFIG_FILE" --env-id {env_id} --total-timesteps {steps}\n'


def script(folder: Path, body: str, header: str = HEAD) -> dict[str, Any]:
    path = folder / "phases.sh"
    path.write_bytes((header + body).encode())  # line ends stay as they are
    return {"mode": "script", "script_path": str(path), "algo_params": {"num_steps": 64}}


def test_a_scripts_workers_are_its_phases(run: Any, tmp_path: Path) -> None:
    body = PHASE.format(env_id="CartPole-v1", steps=512) + PHASE.format(env_id="Acrobot-v1", steps=512)
    ended = run("ppo", "CartPole-v1", None, script(tmp_path, body))
    assert ended.code == 0, ended.process.stderr
    stages = ended.payloads("stage_started")
    assert [(stage["index"], stage["count"], stage["name"]) for stage in stages] == [
        (0, 2, "CartPole-v1"),
        (1, 2, "Acrobot-v1"),
    ]
    assert stages[1]["step"] == 512
    (completed,) = ended.payloads("run_completed")
    assert (completed["step"], completed["phases"], completed["mode"]) == (1024, 2, "script")
    saved = ended.payloads("checkpoint_saved")[-1]
    assert saved["path"].startswith("phases/2/checkpoints/step-")
    assert (ended.folder / saved["path"] / "manifest.json").exists()
    assert {path.name.split("__")[0] for path in (ended.folder / "tensorboard").iterdir()} == {
        "CartPole-v1",
        "Acrobot-v1",
    }


def test_a_failing_phase_fails_the_run_with_its_name(run: Any, tmp_path: Path) -> None:
    body = PHASE.format(env_id="CartPole-v1", steps=512) + PHASE.format(env_id="Nowhere-v0", steps=512)
    ended = run("ppo", "CartPole-v1", None, script(tmp_path, body + "echo not reached\n"))
    assert ended.code == 2, "refused, like any run with this environment"
    (failed,) = ended.payloads("run_failed")
    assert failed["reason"] == "PhaseFailed"
    assert failed["message"].startswith("phases.sh ended with exit code 2 in phase 2 (Nowhere-v0): ")
    assert "gymnasium can't make it" in failed["message"]
    assert ended.manifest["outcome"] == "failed"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (
            "echo '@phase: one'\nnosuchprogram\n",
            1,
            "exit code 127 in phase 1 .one.: .*nosuchprogram: command not found",
        ),
        ("false\n", 1, r"exit code 1 before its first phase; it printed nothing on stderr"),
        ("if then\n", 2, "is no bash script that can be run: .*syntax error near"),
        ("echo one\r\necho two\r\n", 2, "has Windows line ends, which bash can't read: convert it"),
    ],
)
def test_a_script_that_does_not_work_says_why(run: Any, tmp_path: Path, body: str, code: int, said: str) -> None:
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    ended = run("ppo", "CartPole-v1", None, script(folder, body))
    assert ended.code == code
    told = ended.payloads("run_failed")[0]["message"] if ended.events else ended.process.stderr
    assert re.search(said, told)


def test_phases_that_are_no_workers_have_names_too(run: Any, tmp_path: Path) -> None:
    ended = run("ppo", "CartPole-v1", None, script(tmp_path, "echo '@phase: collect'\necho '@phase: fit'\nexit 7\n"))
    assert [stage["name"] for stage in ended.payloads("stage_started")] == ["collect", "fit"]
    assert "ended with exit code 7 in phase 2 (fit)" in ended.payloads("run_failed")[0]["message"]


@pytest.mark.parametrize(("header", "total"), [(HEAD, 1024), (HEAD.replace("# @total", "# total"), None)])
def test_only_a_scripts_header_knows_how_many_steps_it_takes(
    run: Any, tmp_path: Path, header: str, total: int | None
) -> None:
    said = {"training_started": {"step": 0}, "scalars": {"step": 64, "values": {}}}
    lines = [json.dumps({"event": name, "payload": payload}) for name, payload in said.items()]
    body = "".join(f"echo '{line}'\n" for line in lines)
    ended = run("ppo", "CartPole-v1", 64, script(tmp_path, body, header))
    assert ended.code == 0, ended.process.stderr
    assert {figures["total"] for figures in ended.payloads("scalars")} == {total}


@pytest.mark.parametrize("named", ["", ' --run-dir "$MOSAIC_RUN_DIR/phases/1"'])
def test_a_script_that_was_stopped_goes_on_in_the_phase_it_was_in(
    run: Any, stop_when: Any, tmp_path: Path, named: str
) -> None:
    """The second phase waits for a file, so that the stop surely falls into it; the first is not done again, but heard of."""
    body = PHASE.format(env_id="CartPole-v1", steps=512).replace(" --env-id", f"{named} --env-id")
    body += f'while [ ! -e "{tmp_path}/go" ]; do sleep 0.1; done\n' + PHASE.format(env_id="Acrobot-v1", steps=512)
    extras = script(tmp_path, body.replace(" --env-id", ' --run-id "phase-$RANDOM" --env-id'))  # other names each time
    log = tmp_path / "run" / "events.jsonl"
    stop_when("ppo", "CartPole-v1", extras, lambda: log.exists() and '"checkpoint_saved"' in log.read_text())

    (tmp_path / "go").touch()
    first = (tmp_path / "run" / "phases" / "1" / "events.jsonl").read_text()
    ended = run("ppo", "CartPole-v1", None, extras, "--continue")
    assert ended.code == 0, ended.process.stderr
    assert (tmp_path / "run" / "phases" / "1" / "events.jsonl").read_text() == first
    assert [stage["name"] for stage in ended.payloads("stage_started")][-2:] == ["CartPole-v1", "Acrobot-v1"]
    assert ended.payloads("run_completed")[-1]["step"] == 1024


def dry(folder: Path, **config: Any) -> subprocess.CompletedProcess[str]:
    (folder / "config.json").write_text(json.dumps({"run_id": "dry", "dry_run": True, **config}))
    words = ["--config", "config.json", "--run-dir", str(folder / "run"), "--record-path", str(folder / "record")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cleanrl_worker.cli", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


def test_what_the_descriptor_gives_a_script_its_phases_have(tmp_path: Path) -> None:
    body = 'cleanrl-worker --config "$MOSAIC_CONFIG_FILE" --total-timesteps 64 --dry-run > "$MOSAIC_RUN_DIR/said"\n'
    ended = dry(
        tmp_path,
        algo="ppo",
        env_id="CartPole-v1",
        dry_run=False,
        resources={"gpus": {"requested": 1}},
        artifacts={"tensorboard": {"enabled": False}, "wandb": {"enabled": True}},
        extras=script(tmp_path, body),
    )
    assert ended.returncode == 0, ended.stderr
    phase = json.loads((tmp_path / "run" / "said").read_text())
    assert {"--cuda", "--track"} <= set(phase["command"])
    assert phase["config"]["tensorboard"] is False


def test_a_dry_run_in_place_reports_what_would_run_and_runs_nothing(tmp_path: Path) -> None:
    ended = dry(
        tmp_path, algo="ppo", env_id="CartPole-v1", total_timesteps=1000, extras={"algo_params": {"gamma": 0.9}}
    )
    assert ended.returncode == 0, ended.stderr
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["event"] for event in events] == ["run_started", "run_completed"]
    completed = events[-1]["payload"]
    assert (completed["dry_run"], completed["reason"], completed["outcome"]) == (True, "DryRun", "completed")
    summary = completed["summary"]
    assert summary["module"] == "cleanrl_worker.algorithms.ppo"
    assert "--gamma=0.9" in summary["command"]
    assert summary["config"]["total_timesteps"] == 1000
    assert "Discrete(2)" in summary["environments"]["CartPole-v1"]["action"]
    record = json.loads((tmp_path / "record").read_text())
    assert (record["outcome"], record["reason"]) == ("completed", "DryRun")
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    assert json.loads((tmp_path / "run" / "analytics.json").read_text())["outcome"] == "completed"


def test_a_dry_run_finds_an_environment_that_is_not_there(tmp_path: Path) -> None:
    ended = dry(tmp_path, algo="ppo", env_id="CartPole-v99", total_timesteps=1000)
    assert ended.returncode == 2
    record = json.loads((tmp_path / "record").read_text())
    assert (record["outcome"], record["reason"]) == ("failed", "BadConfig")
    assert "CartPole-v99" in record["message"]
    assert not (tmp_path / "run").exists()


def test_a_dry_run_takes_a_foreign_scripts_own_environment_on_trust(tmp_path: Path) -> None:
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "own.py").write_text("raise SystemExit('a dry run runs nothing')\n")
    extras = {"upstream_dir": str(tmp_path)}
    ended = dry(tmp_path, algo="cleanrl.own", env_id="RegisteredThere-v0", total_timesteps=1000, extras=extras)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "record").read_text())["reason"] == "DryRun"


def test_a_dry_run_reads_the_checkpoint(tmp_path: Path, trained: Callable[[str], Path]) -> None:
    extras = {"mode": "resume_training", "checkpoint_path": str(trained("dqn")), "checkpoint_sha256": "0" * 64}
    ended = dry(tmp_path, algo="dqn", env_id="CartPole-v1", total_timesteps=1000, extras=extras)
    assert ended.returncode == 2
    assert "holds no checkpoint with the sha256 0000" in ended.stderr


def test_a_policy_is_played_through_the_supervisor(run: Any, trained: Callable[[str], Path]) -> None:
    commands = [{"cmd": "step"}, {"cmd": "reset", "seed": 3}, {"cmd": "step"}, {"cmd": "stop"}]
    lines = ["garbage", *(json.dumps(command) for command in commands)]
    extras = {"mode": "interactive", "policy_path": str(trained("sac_continuous_action"))}
    ended = run("sac_continuous_action", "Pendulum-v1", None, extras, stdin="\n".join(lines) + "\n")
    assert ended.code == 0, ended.process.stderr
    answers = [json.loads(line) for line in ended.process.stdout.splitlines()]
    assert [answer["type"] for answer in answers] == ["init", "error", "error", "ready", "step", "stopped"]
    assert all("event" not in answer for answer in answers), "events must not get between the answers"
    assert isinstance(answers[4]["action"], list)
    payload = answers[4]["render_payload"]
    assert len(payload["rgb"]) == payload["height"]
    told = [json.loads(line) for line in ended.process.stderr.splitlines() if line.startswith("{")]
    assert [event["event"] for event in told if event["event"] != "heartbeat"] == ["run_started", "run_completed"]
    assert told[-1]["payload"]["mode"] == "interactive"
    assert ended.manifest["outcome"] == "completed"


def test_the_end_of_stdin_ends_the_command_too(tmp_path: Path, trained: Callable[[str], Path]) -> None:
    (model,) = trained("dqn").glob("runs/*/*.cleanrl_model")
    words = ["--interactive", "--run-id", "r", "--env-id", "CartPole-v1", "--algo", "dqn", "--policy-path", str(model)]
    command = [sys.executable, "-m", "cleanrl_worker.cli", *words]
    ended = subprocess.run(
        command, input='{"cmd":"reset"}', capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line)["type"] for line in ended.stdout.splitlines()] == ["init", "ready"]

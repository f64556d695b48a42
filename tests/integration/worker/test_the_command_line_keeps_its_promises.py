"""Flags, dry runs, exit codes, the progress line, upstream scripts and secrets, through the real command."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
Cli = Callable[..., "subprocess.CompletedProcess[str]"]

HEAVY = ("torch", "gymnasium", "numpy", "jax", "wandb", "tensorboard", "syllabus", "envpool", "grpc")


@pytest.fixture
def cli(worker_env: dict[str, str], tmp_path: Path) -> Cli:
    def call(*flags: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cleanrl_worker.cli", *flags]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env={**worker_env, **(env or {})}, timeout=60
        )

    return call


@pytest.mark.parametrize(
    "flags",
    [
        ["--help"],
        ["--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "2048", "--dry-run"],
        [
            "--algo",
            "ppo",
            "--env-id",
            "CartPole-v1",
            "--total-timesteps",
            "2048",
            "--dry-run",
            "--extras",
            '{"curriculum_schedule": [{"env_id": "BabyAI-GoToLocal-v0"}]}',
        ],
    ],
)
def test_help_and_dry_runs_import_nothing_heavy(worker_env: dict[str, str], tmp_path: Path, flags: list[str]) -> None:
    program = (
        "import sys\n"
        "from cleanrl_worker.cli import main\n"
        "try:\n    code = main(sys.argv[1:])\n"
        "except SystemExit as ended:\n    code = ended.code\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
        "sys.exit(code)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *flags], capture_output=True, text=True, cwd=tmp_path, env=worker_env
    )
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is written either"


def test_help_does_not_even_load_pydantic(worker_env: dict[str, str]) -> None:
    program = "import sys\nfrom cleanrl_worker.cli import build_parser\nassert 'pydantic' not in sys.modules\n"
    assert subprocess.run([sys.executable, "-c", program], env=worker_env).returncode == 0


def test_a_dry_run_shows_module_command_and_configuration(cli: Cli) -> None:
    ended = cli("--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "2048", "--seed", "0", "--dry-run")
    shown = json.loads(ended.stdout)
    assert shown["module"] == "cleanrl_worker.algorithms.ppo"
    assert shown["command"][1:] == [
        *("-m", "cleanrl_worker.launcher", "cleanrl_worker.algorithms.ppo"),
        *("--env-id=CartPole-v1", "--total-timesteps=2048", "--seed=0", "--no-cuda"),
    ]
    assert shown["config"]["seed"] == 0
    assert shown["runnable"] is True


def test_a_summary_is_the_configuration_alone(cli: Cli, tmp_path: Path) -> None:
    nested = {
        "metadata": {"worker": {"config": {"run_id": "r1", "algo": "dqn", "env_id": "A-v0", "total_timesteps": 5}}}
    }
    (tmp_path / "config.json").write_text(json.dumps(nested))
    ended = cli("--config", "config.json", "--algo", "ppo", "--dry-run", "--emit-summary")
    assert ended.returncode == 0
    shown = json.loads(ended.stdout)
    assert (shown["run_id"], shown["algo"], shown["env_id"]) == ("r1", "ppo", "A-v0"), "--algo ppo overrides"
    assert ended.stdout == json.dumps(shown, indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--config", "nowhere.json"], 1, "Config path does not exist: nowhere.json"),
        (["--extras", "{"], 1, "Failed to parse --extras JSON"),
        (["--extras", "[]"], 1, "--extras must be a JSON object"),
        ([], 2, "algo"),
        (["--algo", "ppo", "--env-id", "X-v0", "--total-timesteps", "0"], 2, "total_timesteps"),
        (["--algo", "pppo", "--env-id", "X-v0", "--total-timesteps", "9"], 2, "did you mean ppo"),
        (["--algo", "plugin.none", "--env-id", "X-v0", "--total-timesteps", "9"], 2, "plugin.none"),
        (["--algo", "cleanrl.ppo", "--env-id", "X-v0", "--total-timesteps", "9"], 2, "CLEANRL_UPSTREAM_DIR"),
        (["--interactive", "--env-id", "X-v0"], 1, "--run-id, --policy-path"),
        (
            [
                "--algo",
                "ppo",
                "--env-id",
                "X-v0",
                "--total-timesteps",
                "9",
                "--extras",
                '{"mode": "policy_eval", "policy_path": "m"}',
            ],
            2,
            "there is no policy at m; give the path of a model file or a checkpoint",
        ),
        (
            [
                "--algo",
                "plugin.standin",
                "--env-id",
                "X-v0",
                "--total-timesteps",
                "9",
                "--extras",
                '{"mode": "resume_training", "checkpoint_path": "gone"}',
            ],
            2,
            "no checkpoint at gone",
        ),
        (["--config", "c" * 300], 1, "Config path does not exist: ccc"),
        (
            ["--algo", "ppo", "--env-id", "X-v0", "--total-timesteps", "9", "--metrics-port", "70000"],
            2,
            "expected a port, got 70000",
        ),
        *(
            (["--algo", algo, "--env-id", "X-v0", "--total-timesteps", "9", "--extras", json.dumps(extras)], 2, words)
            for algo, extras, words in (
                ("ppo", {"mode": "policy_eval", "policy_path": "p" * 300}, "there is no policy at ppp"),
                ("ppo", {"mode": "resume", "checkpoint_path": "p" * 300}, "there is no checkpoint at ppp"),
                ("ppo", {"mode": "script", "script_path": "p" * 300}, "there is no script ppp"),
                ("cleanrl.ppo", {"upstream_dir": "p" * 300}, "There is no CleanRL checkout at /"),
                ("ppo", {"agent_id": "a\0"}, "extras.agent_id: must not contain a NUL character"),
                ("cleanrl.ppo", {"algo_params": {"a\0": 1}}, "must not contain a NUL character"),
                ("cleanrl.ppo", {"algo_params": {"\ud800": 1}}, "expected text that is valid Unicode"),
            )
        ),
        (
            [
                "--algo",
                "plugin.standin",
                "--env-id",
                "X-v0",
                "--total-timesteps",
                "9",
                "--extras",
                '{"requirements": ["atary"]}',
            ],
            2,
            "atari",
        ),
    ],
)
def test_what_can_not_run_says_why_before_anything_starts(
    cli: Cli, tmp_path: Path, flags: list[str], code: int, words: str
) -> None:
    ended = cli(*flags)
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    assert not (tmp_path / "var").exists()


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (["--total-timestep", "9"], "did you mean --total-timesteps?"),
        (["--continu"], "did you mean --continue?"),
        (["--learning-rate", "1e-3"], """--extras '{"algo_params": {"learning-rate": 0.001}}'"""),
        (["--num_envs=8", "--gamma", "0.9"], """--extras '{"algo_params": {"num_envs": 8}}'"""),
        (["--no-anneal-lr"], """--extras '{"algo_params": {"anneal-lr": false}}'"""),
        (["--exp-name", "mine"], """--extras '{"algo_params": {"exp-name": "mine"}}'"""),
        (["ppo"], "'ppo' belongs to no flag"),
    ],
)
def test_a_flag_that_is_none_of_the_workers_is_answered_with_what_to_write(
    cli: Cli, flags: list[str], remedy: str
) -> None:
    ended = cli("--algo", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "9", *flags)
    assert ended.returncode == 2
    assert remedy in ended.stderr.splitlines()[-1]


def test_a_missing_requirement_set_is_named_with_its_command(cli: Cli, tmp_path: Path, plugin_path: Path) -> None:
    """A Python that can't find ale_py stands in for one where it is not installed."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'ale_py' else real(name, *rest)\n"
    )
    ended = cli(
        *("--algo", "plugin.standin", "--env-id", "X-v0", "--total-timesteps", "9"),
        *("--extras", '{"requirements": ["atari"]}'),
        env={"PYTHONPATH": f"{tmp_path / 'hide'}:{plugin_path}"},
    )
    assert ended.returncode == 2, ended.stderr
    assert "ale_py" in ended.stderr
    assert "cleanrl_worker.tools.install_extras --set atari" in ended.stderr


def test_a_dry_run_of_what_is_not_there_fails(cli: Cli) -> None:
    ended = cli("--algo", "plugin.none", "--env-id", "X-v0", "--total-timesteps", "9", "--dry-run")
    assert ended.returncode == 2
    assert json.loads(ended.stdout)["runnable"] is False
    assert "plugin.none" in ended.stderr


@pytest.mark.parametrize(
    ("extras", "module"),
    [
        ({"mode": "policy_eval", "policy_path": "m"}, "cleanrl_worker.modes.policy_eval"),
        ({"mode": "interactive", "policy_path": "m"}, "cleanrl_worker.modes.interactive"),
        ({"mode": "script", "script_path": "quick_test.sh"}, "cleanrl_worker.modes.script"),
        ({"curriculum_schedule": "BABYAI_GOTO_CURRICULUM"}, "cleanrl_worker.algorithms.ppo"),
    ],
)
def test_a_dry_run_of_every_mode_says_what_it_would_start(cli: Cli, extras: dict[str, str], module: str) -> None:
    flags = ["--algo", "ppo", "--env-id", "X-v0", "--total-timesteps", "9", "--extras", json.dumps(extras)]
    ended = cli(*flags, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["runnable"] is True
    assert summary["module"] == module
    assert module in summary["command"]


def test_a_dry_run_names_a_script_that_is_not_there(cli: Cli) -> None:
    flags = ["--algo", "ppo", "--env-id", "X-v0", "--extras", '{"mode": "script", "script_path": "gone.sh"}']
    ended = cli(*flags, "--dry-run")
    assert ended.returncode == 2
    assert "there is no script gone.sh" in ended.stderr


def test_a_refused_run_leaves_a_record(cli: Cli, tmp_path: Path) -> None:
    record = tmp_path / "record"
    ended = cli("--algo", "nope", "--run-id", "r9", "--record-path", str(record))
    assert ended.returncode == 2
    left = json.loads(record.read_text())
    assert (left["runId"], left["outcome"], left["reason"], left["exitCode"]) == ("r9", "failed", "BadConfig", 2)


def test_a_terminal_gets_a_progress_line_and_a_pipe_none(start: Start) -> None:
    main, terminal = pty.openpty()
    run = start(steps=60, step_seconds=0.05, stdout=terminal)
    os.close(terminal)
    seen = b""
    while True:
        try:
            chunk = os.read(main, 4096)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    assert run.wait() == 0, run.stderr
    os.close(main)
    text = seen.decode()
    assert "/60  " in text
    assert "%" in text
    assert "steps/s" in text
    assert "return" in text
    assert "left" in text
    assert '"event":"run_completed"' in text
    piped = start(steps=10, step_seconds=0.05)
    assert piped.wait() == 0
    assert all(line.startswith("{") for line in piped.stdout.splitlines())
    assert "steps/s" not in piped.stderr


def test_an_upstream_script_runs_as_it_is(start: Start, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "cleanrl").mkdir(parents=True)
    (checkout / "cleanrl_utils").mkdir()
    (checkout / "cleanrl_utils" / "helper.py").write_text("WORD = 'helped'\n")
    (checkout / "cleanrl" / "my_algo.py").write_text(
        "import os, sys\n"
        "from dataclasses import dataclass\n"
        "from cleanrl_utils.helper import WORD\n"
        "@dataclass\n"
        "class Args:\n"
        "    exp_name: str = os.path.basename(__file__)[: -len('.py')]\n"
        "if __name__ == '__main__':\n"
        "    print(WORD, Args().exp_name, sys.argv[1:], 'CLEANRL_LINK_FD' in os.environ)\n"
        "    sys.exit(int(os.environ.get('CODE', '0')))\n"
    )
    env = {"CLEANRL_UPSTREAM_DIR": str(checkout)}
    run = start("--seed", "3", algo="cleanrl.my_algo", env=env, learning_rate=0.1, flag=False, on=True, many=[1, 2])
    assert run.wait() == 0, run.stderr
    printed = (run.folder / "logs" / "cleanrl.stdout.log").read_text()
    assert printed.startswith("helped my_algo ['--env-id=Nowhere-v0', '--total-timesteps=5', '--seed=3', ")
    assert "'--learning-rate=0.1', '--no-flag', '--on', '--many=1', '--many=2'" in printed
    assert printed.rstrip().endswith("False"), "a foreign script never sees the link"
    failed = start(algo="cleanrl.my_algo", env={**env, "CODE": "7"})
    assert failed.wait() == 7


def test_the_steps_of_a_foreign_script_are_counted(start: Start, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "cleanrl").mkdir(parents=True)
    (checkout / "cleanrl" / "walk.py").write_text(
        "import time\n"
        "import gymnasium as gym\n"
        "env = gym.wrappers.RecordEpisodeStatistics(gym.make('CartPole-v1'))\n"
        "env.reset(seed=1)\n"
        "for step in range(300):\n"
        "    *_, terminated, truncated, info = env.step(step % 2)\n"
        "    if terminated or truncated:\n"
        "        env.reset()\n"
        "    time.sleep(0.01)\n"
    )
    run = start(algo="cleanrl.walk", steps=300, env={"CLEANRL_UPSTREAM_DIR": str(checkout)})
    assert run.wait() == 0, run.stderr
    assert [name for name in run.names() if name != "heartbeat"][:3] == ["run_started", "training_started", "scalars"]
    scalars = [event["payload"] for event in run.events() if event["event"] == "scalars"]
    assert 0 < scalars[-1]["step"] <= 300
    assert scalars[-1]["values"]["charts/episodic_return"] > 0


def test_secrets_are_used_and_never_written(start: Start, tmp_path: Path) -> None:
    secret, other = "s3cr3t-value-of-a-key", "another-secret-token"
    config = {
        "run_id": "quiet",
        "algo": "plugin.standin",
        "env_id": "E-v0",
        "total_timesteps": 3,
        "extras": {
            "track_wandb": True,
            "wandb_api_key": secret,
            "wandb_https_proxy": "http://me:pass-of-proxy@proxy:1",
            "notes": f"the key is {secret}",
            "algo_params": {"hf_token": other, "fail_at": 2},
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = start("--config", str(tmp_path / "config.json"), "-v", "--record-path", str(tmp_path / "record"), fail_at=2)
    assert run.wait() == 1
    written = run.stdout + run.stderr + (tmp_path / "record").read_text()
    for path in run.folder.rglob("*"):
        if path.is_file():
            written += path.read_text(errors="replace")
    for hidden in (secret, other, "pass-of-proxy"):
        assert hidden not in written
    dry = start("--config", str(tmp_path / "config.json"), "--dry-run")
    assert dry.wait() == 0
    for hidden in (secret, "pass-of-proxy"):
        assert hidden not in dry.stdout

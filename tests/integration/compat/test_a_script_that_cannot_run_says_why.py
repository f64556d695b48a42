"""Through the command line, as a person runs it: a foreign script in bad surroundings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cleanrl_worker.telemetry import read_events


def run_cli(tmp_path: Path, source: str, *helpers: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    checkout = tmp_path / "checkout"
    for name, text in (("cleanrl/script.py", source), *helpers):
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environ = {**os.environ, "CLEANRL_UPSTREAM_DIR": str(checkout), "CLEANRL_RUN_DIR": str(tmp_path / "run")}
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "cleanrl.script", "--env-id", "CartPole-v1"]
    command += ["--total-timesteps", "10", "--run-id", "bad-surroundings"]
    return subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)


def events(tmp_path: Path) -> list[dict[str, Any]]:
    return list(read_events(tmp_path / "run" / "events.jsonl"))


def test_a_missing_module_is_named_with_its_command_before_anything_starts(tmp_path: Path) -> None:
    helper = ("cleanrl_utils/helper.py", "import cv2_of_another_world\n")
    done = run_cli(tmp_path, "print('started')\nimport cleanrl_utils.helper\n", helper)
    assert done.returncode == 2, done.stderr
    sentence = (
        "helper.py imports cv2_of_another_world, which is not installed: python -m pip install cv2_of_another_world"
    )
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "logs" / "cleanrl.stdout.log").exists(), "the script was started"


def test_a_script_that_raises_fails_once_with_its_last_words(tmp_path: Path) -> None:
    source = "print('started', flush=True)\nraise RuntimeError('the reactor is cold')\n"
    done = run_cli(tmp_path, source)
    assert done.returncode == 1
    assert (tmp_path / "run" / "logs" / "cleanrl.stdout.log").read_text().count("started") == 1
    last = events(tmp_path)[-1]
    assert last["event"] == "run_failed"
    assert "RuntimeError: the reactor is cold" in json.dumps(last["payload"])


def test_a_script_that_exits_keeps_its_code(tmp_path: Path) -> None:
    done = run_cli(tmp_path, "import sys\nprint('no more coal', file=sys.stderr)\nsys.exit(9)\n")
    assert done.returncode == 9
    last = events(tmp_path)[-1]
    assert last["event"] == "run_failed"
    assert "no more coal" in json.dumps(last["payload"])

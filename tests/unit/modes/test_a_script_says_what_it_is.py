"""Training scripts: their headers, and the course of a script as its output tells it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanrl_worker.link import ChildLink
from cleanrl_worker.modes import script as script_mode
from cleanrl_worker.modes.script import Course, environment
from cleanrl_worker.script_header import SHIPPED, Script, ScriptError, parse, read

TEXT = """#!/usr/bin/env bash
# @description: two: phases
#   @env_family:minigrid
# @phases: 2
# @total_timesteps: 300_000
PHASE1_ENV="MiniGrid-Empty-5x5-v0"
export PHASE2_ENV='MiniGrid-Empty-6x6-v0'
LEVEL3_ENV=MiniGrid-Empty-5x5-v0
cat "$MOSAIC_CONFIG_FILE"
"""


def test_the_header_and_the_environments_are_read() -> None:
    script = parse(TEXT, Path("a.sh"))
    assert (script.description, script.env_family, script.phases) == ("two: phases", "minigrid", 2)
    assert script.total_timesteps == 300_000
    assert script.environments == ("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-6x6-v0")
    assert script.warnings == ()


def test_the_header_ends_after_thirty_lines() -> None:
    assert parse("\n" * 30 + "# @phases: 2\n", Path("a.sh")).phases is None
    assert parse("\n" * 29 + "# @phases: 2\n", Path("a.sh")).phases == 2
    assert parse("# @total_timesteps: 3e5\n", Path("a.sh")).total_timesteps == 300_000


def test_a_script_that_takes_nothing_from_the_run_is_warned_about() -> None:
    warnings = parse("echo hello\n", Path("a.sh")).warnings
    assert "#!/usr/bin/env bash" in warnings[0]
    assert "MOSAIC_CONFIG_FILE" in warnings[1]


@pytest.mark.parametrize(
    "line", ["# @phases: two", "# @phases: 0", "# @phases:", "# @total_timesteps: -5", "# @phases: ²", "# @phases: 2_"]
)
def test_a_number_that_is_none_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ScriptError, match=r"a\.sh, line 2: @\w+ must be a whole number of at least 1"):
        parse(f"#!/bin/bash\n{line}\n", Path("a.sh"))


def test_what_is_no_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"there is no script .*nowhere\.sh; give the path of a file, or one of curr"):
        read(tmp_path / "nowhere.sh")
    with pytest.raises(ScriptError, match="is not a file"):
        read(tmp_path)
    (tmp_path / "binary.sh").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScriptError, match="is no text"):
        read(tmp_path / "binary.sh")


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.sh")), ids=lambda path: path.name)
def test_every_shipped_script_describes_itself(path: Path) -> None:
    script = read(path.name)
    assert script.path == path
    assert os.access(path, os.X_OK)
    assert script.description
    assert script.env_family in ("minigrid", "babyai")
    assert script.phases == len(script.environments)
    assert script.total_timesteps
    assert script.warnings == ()


def test_there_are_scripts_for_goto_doorkey_and_a_quick_test() -> None:
    names = {path.name for path in SHIPPED.glob("*.sh")}
    assert names == {"curriculum_babyai_goto.sh", "curriculum_doorkey.sh", "quick_test.sh"}


def course(**fields: Any) -> Course:
    return Course(Script(Path("a.sh"), **fields), Path("/run"))


def event(name: str, **payload: Any) -> str:
    return json.dumps({"event": name, "payload": payload, "run_id": "r", "seq": 1, "timestamp": 0.0})


def started(env_id: str, number: int) -> str:
    return event("run_started", env_id=env_id, run_dir=f"/run/phases/{number}")


def test_each_worker_is_a_phase_and_steps_add_up() -> None:
    seen = course(phases=2, total_timesteps=500)
    (first,) = seen.hear(started("A-v0", 1))
    assert first == {"kind": "stage_started", "index": 0, "count": 2, "name": "A-v0", "step": 0}
    (began,) = seen.hear(event("training_started", step=0))
    assert began["kind"] == "training_started"
    (figures,) = seen.hear(event("scalars", step=200, sps=9.0, episodes=3, values={"x": 1.0}))
    assert (figures["step"], figures["total"]) == (200, 500)
    assert figures["values"] == {"x": 1.0, "script/phase": 0.0}
    (second,) = seen.hear(started("B-v0", 2))
    assert (second["index"], second["name"], second["step"]) == (1, "B-v0", 200)
    assert seen.hear(event("training_started", step=200)) == []
    (figures,) = seen.hear(event("scalars", step=300, values={}))
    assert figures["step"] == 300, "an extended worker's own count goes on from the first one's"


def test_a_script_may_name_its_phases_itself() -> None:
    seen = course(phases=2)
    assert seen.hear("@phase: warm up")[0]["name"] == "warm up"
    assert seen.hear(started("A-v0", 1)) == [], "a worker is then part of a phase"
    assert seen.hear("@phase: the rest")[0]["index"] == 1
    assert seen.where == "in phase 2 (the rest)"


def test_checkpoints_lie_where_the_run_finds_them() -> None:
    seen = course()
    seen.hear(started("A-v0", 1))
    (saved,) = seen.hear(event("checkpoint_saved", path="checkpoints/step-1", step=1, sha256="0"))
    assert saved["path"] == "phases/1/checkpoints/step-1"


def test_the_last_failure_belongs_to_its_phase() -> None:
    seen = course()
    seen.hear(started("A-v0", 1))
    seen.hear(event("run_failed", message="no such thing"))
    assert seen.failure == "no such thing"
    seen.hear(started("A-v0", 2))
    assert seen.failure is None


def test_a_worker_runs_until_it_says_how_it_ended_and_failures_are_remembered() -> None:
    seen = course()
    for number, ending in enumerate(("run_completed", "run_failed", "run_cancelled"), 1):
        seen.hear(started(f"{ending}-v0", number))
        assert seen.running == 1
        seen.hear(event(ending))
        assert seen.running == 0
    assert seen.failed == ["run_failed-v0"]


def test_what_a_script_leaves_in_the_background_is_not_waited_for_unless_it_is_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A monitor that holds the script's output open held the run for ever."""
    monkeypatch.setattr(script_mode, "_LEFT_BEHIND_SECONDS", 0.0)
    path = tmp_path / "left.sh"
    worker = f"(echo '{started('A-v0', 1)}'; until [ -e go ]; do sleep 0.05; done; echo '{event('run_completed')}')"
    path.write_text(f"sleep 600 & echo $! > monitor\n{worker} &\nuntil [ -e on ]; do sleep 0.05; done\n")
    seen = Course(Script(path), tmp_path)
    bash = script_mode._Bash(Script(path), dict(os.environ), seen, ChildLink(None))

    def let_go() -> None:
        while not seen.running:
            time.sleep(0.01)
        (tmp_path / "on").touch()
        (tmp_path / "go").touch()

    threading.Thread(target=let_go, daemon=True).start()
    try:
        assert bash.run() == 0
    finally:
        os.kill(int((tmp_path / "monitor").read_text()), signal.SIGKILL)
    assert (seen.phase, seen.running) == (0, 0)
    assert '"run_completed"' in capfd.readouterr().out


@given(st.text() | st.dictionaries(st.text(), st.integers() | st.lists(st.integers())).map(json.dumps))
def test_whatever_a_script_prints_is_survived(line: str) -> None:
    for fact in course().hear(line):
        assert fact["kind"] == "stage_started"


def test_the_script_finds_its_environment_and_not_the_supervisors_own() -> None:
    base = {"CLEANRL_METRICS_PORT": "1", "CLEANRL_RUN_DIR": "/run", "CLEANRL_RUN_ID": "r", "WANDB_MODE": "online"}
    env = environment(base, Path("/run"), Path("/run/config/base_config.json"))
    assert "CLEANRL_METRICS_PORT" not in env
    assert "CLEANRL_RUN_DIR" not in env
    expected = {
        "MOSAIC_CONFIG_FILE": "/run/config/base_config.json",
        "MOSAIC_RUN_DIR": "/run",
        "MOSAIC_CUSTOM_SCRIPTS_DIR": "/run/config",
        "CLEANRL_RUN_ID": "r",
        "TRACK_TENSORBOARD": "1",
        "TRACK_WANDB": "1",
        "WANDB_MODE": "online",
    }
    assert expected.items() <= env.items()

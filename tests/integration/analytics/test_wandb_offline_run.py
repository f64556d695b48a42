"""A real W&B run without a key: kept offline, found, and named with the command that uploads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from cleanrl_worker import analytics, wandb_mode

SCRIPT = """
import wandb
run = wandb.init(config={"seed": 1})
run.log({"charts/episodic_return": 21.0}, step=1)
run.finish()
"""


def test_a_name_that_no_project_can_have_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cleanrl_worker.algorithms.ppo", "--track", "--wandb-project-name", "a/b"]
    environ = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Invalid project name 'a/b'" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_run_without_a_key_is_kept_offline_and_can_be_uploaded_later(tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    inherited["HOME"] = str(tmp_path / "home")
    run_dir = tmp_path / "run"
    (run_dir / "wandb").mkdir(parents=True)
    extras = {"track_wandb": True, "wandb_project_name": "cleanRL", "wandb_entity": "team"}
    plan = wandb_mode.resolve(extras, inherited, run_dir, "01JD0000000000000000000000")
    assert plan.mode == "offline"

    environment = {**inherited, **plan.environment}
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=run_dir, env=environment, check=True, capture_output=True)
    analytics.write_manifest(run_dir, {"run_id": "r", "extras": extras}, outcome="completed", wandb=plan.manifest())

    wandb = json.loads((run_dir / "analytics.json").read_text())["artifacts"]["wandb"]
    assert wandb["run_path"] == "team/cleanRL/01JD0000000000000000000000"
    (run,) = wandb["runs"]
    assert run["offline"]
    assert wandb["sync_command"] == f"wandb sync {run['path']}"
    assert list((run_dir / run["path"]).glob("*.wandb")), "what `wandb sync` uploads is there"

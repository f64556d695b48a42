"""A script without any code of ours, and without a `gym.make` that we could watch, shows progress all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import ModuleType

SCRIPT = """
import argparse, time
from torch.utils.tensorboard import SummaryWriter
parser = argparse.ArgumentParser()
parser.add_argument("--env-id"); parser.add_argument("--total-timesteps", type=int); parser.add_argument("--seed")
args = parser.parse_known_args()[0]
writer = SummaryWriter(f"runs/{args.env_id}__script__1__{int(time.time())}", flush_secs=1)
writer.add_text("hyperparameters", "|param|value|")
for step in range(100, args.total_timesteps + 1, 100):
    writer.add_scalar("charts/episodic_return", step / 10, step)
    writer.add_scalar("charts/episodic_length", 25, step)
    writer.add_scalar("losses/value_loss", 0.5, step)
    writer.add_scalar("charts/SPS", 1234, step)
    writer.flush()
    time.sleep(0.1)
time.sleep(600)
"""


def test_scalars_of_an_upstream_script_reach_metrics_and_the_event_log(observatory: ModuleType, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "cleanrl").mkdir(parents=True)
    (checkout / "cleanrl" / "strange.py").write_text(SCRIPT)
    port = observatory.free_port()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("CLEANRL_", "MOSAIC_"))}
    environ |= {"CLEANRL_UPSTREAM_DIR": str(checkout), "CLEANRL_SCALARS_SECONDS": "0.5", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "cleanrl.strange", "--env-id", "Nowhere-v0"]
    command += ["--total-timesteps", "1000", "--run-dir", str(tmp_path / "run"), "--metrics-port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)

    def page() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    try:
        done = "cleanrl_worker_env_steps_total 1000.0"
        observatory.until(lambda: done in page(), "its steps never showed", (tmp_path / "log").read_text)
        told = page()
    finally:
        observatory.end(worker)
    for line in (
        "cleanrl_worker_progress_ratio 1.0",
        "cleanrl_worker_episode_return 100.0",
        "cleanrl_worker_episode_length_steps 25.0",
        "cleanrl_worker_steps_per_second 1234.0",
        "cleanrl_worker_episodes_total 10.0",
        'cleanrl_worker_loss{name="value_loss"} 0.5',
        "cleanrl_worker_rolling_return ",
    ):
        assert f"\n{line}" in told
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    scalars = [event["payload"] for event in events if event["event"] == "scalars"]
    assert scalars[-1]["step"] == 1000
    assert scalars[-1]["values"]["charts/episodic_return"] == 100.0

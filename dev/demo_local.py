"""The demo without a cluster: train ppo on CartPole through the worker alone, and show what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
STEPS = 100_000
BARS = "▁▂▃▄▅▆▇█"


def run() -> int:
    """Run the worker as a user would, and read its event log as a user's tools would."""
    run_dir = PROJECT / "var" / "demo" / time.strftime("%Y%m%d-%H%M%S")
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "ppo", "--env-id", "CartPole-v1"]
    command += ["--total-timesteps", str(STEPS), "--seed", "1", "--run-dir", str(run_dir)]
    command += ["--extras", json.dumps({"algo_params": {"save_model": True}})]
    say(f"Training ppo on CartPole-v1 for {STEPS:,} steps on the CPU; about half a minute.\n")
    started = time.monotonic()
    code = subprocess.run(command, cwd=PROJECT, stdout=subprocess.DEVNULL, check=False).returncode
    if code != 0:
        say(f"The run failed with exit code {code}. What happened: {relative(run_dir / 'logs')}\n")
        return code
    returns = episode_returns(run_dir / "events.jsonl")
    say(f"\nDone in {time.monotonic() - started:.0f} s. Mean return of the episodes over time (500 is perfect):\n")
    say(f"  {curve(returns)}  {returns[-1]:.0f} at the end\n" if returns else "  no finished episode was reported\n")
    say(
        f"""
What to look at next:
  the learning curve     .venv/bin/tensorboard --logdir {relative(run_dir / "tensorboard")}
  the analytics manifest {relative(run_dir / "analytics.json")}
  the policy             {", ".join(map(relative, sorted(run_dir.glob("runs/*/*.cleanrl_model")))) or "not saved"}
  every event            {relative(run_dir / "events.jsonl")}
  another algorithm      .venv/bin/cleanrl-worker --algo dqn --env-id CartPole-v1 --total-timesteps 50000
"""
    )
    return 0


def episode_returns(log: Path) -> list[float]:
    """The headline return in each scalar event of a run's log, oldest first."""
    returns = []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        value = event.get("payload", {}).get("values", {}).get("charts/episodic_return")
        if event.get("event") == "scalars" and value is not None:
            returns.append(float(value))
    return returns


def curve(values: list[float], width: int = 60) -> str:
    """A line of block characters, scaled from zero to the largest value."""
    size = max(1, -(-len(values) // width))
    means = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    top = max([*means, 1e-9])
    return "".join(BARS[min(len(BARS) - 1, int(max(0.0, mean) / top * len(BARS)))] for mean in means)


def relative(path: Path) -> str:
    """A path as a person in the project's folder would type it."""
    return str(path.relative_to(PROJECT))


def say(text: str) -> None:
    """Write for a person, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()

"""The demo without a cluster: train ppo on CartPole through the worker alone, and show what came of it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
RUNS = PROJECT / "var" / "demo"
STEPS = 100_000
BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 40
READ_RETURNS = """
import json, sys
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
runs = EventMultiplexer(size_guidance={"scalars": 0}).AddRunsFromDirectory(sys.argv[1]).Reload()
tag = "charts/episodic_return"
names = [name for name, tags in runs.Runs().items() if tag in tags["scalars"]]
print(json.dumps([event.value for name in names for event in runs.Scalars(name, tag)]))
"""
"""What a Python with TensorBoard runs to list the return of every episode below a folder."""


def run() -> int:
    """Run the worker as a user would, and read its event log as a user's tools would."""
    run_dir = RUNS / time.strftime("%Y%m%d-%H%M%S")
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", "ppo", "--env-id", "CartPole-v1"]
    command += ["--total-timesteps", str(STEPS), "--seed", "1", "--run-dir", relative(run_dir)]
    command += ["--extras", json.dumps({"algo_params": {"save_model": True}})]
    say(f"Training ppo on CartPole-v1 for {STEPS:,} steps on the CPU; about half a minute.\n")
    started = time.monotonic()
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL) as worker:
        try:
            code = worker.wait()
        except KeyboardInterrupt:  # the worker has heard it too, and saves where it is
            worker.wait()
            again = [".venv/bin/cleanrl-worker", *command[3:], "--continue"]
            say(f"\nInterrupted. It goes on where it was with\n  {shlex.join(again)}\n`make demo-down` removes it.\n")
            return 130
    if code != 0:
        say(f"The run failed with exit code {code}. What happened: {relative(run_dir / 'logs')}\n")
        return code
    command = [sys.executable, "-c", READ_RETURNS, str(run_dir / "tensorboard")]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    say(f"\nDone in {time.monotonic() - started:.0f} s.\n")
    say(f"The return of its episodes over time (500 is perfect): {told(json.loads(answer.splitlines()[-1]))}\n")
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


def told(returns: list[float]) -> str:
    """The whole learning curve, and where it ends: a small run is over before anybody has looked at it twice."""
    recent = returns[-20:]
    return f"{curve(returns, CURVE_WIDTH)} {sum(recent) / len(recent):.0f} at the end" if recent else "no episode ended"


def curve(values: list[float], width: int) -> str:
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

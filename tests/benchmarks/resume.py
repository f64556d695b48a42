"""Bitwise resume at length, and what checkpoints cost.

    python tests/benchmarks/resume.py [--only ppo:CartPole-v1] [--steps 20000] [--work build/resume] [--out docs/benchmarks]

For each case: a run in one go; a run that is stopped half way, and continued by a new process; the last checkpoints of both
are compared bit by bit. The second table column group is what one checkpoint takes: seconds of CPU in all threads, the part of
it that training waits for, and their share of the default interval. A finished case is kept in the work folder, so a second
call goes on where the first was stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jobs import environment, saying_when_stopped
from records import origins
from reporting import commit, machine

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

DEFAULT_INTERVAL = 300.0
OFF = ("--learning-starts", "1000")
CASES: dict[str, tuple[str, ...]] = {
    "ppo:CartPole-v1": (),
    "ppo_continuous_action:Pendulum-v1": (),
    "ppo_continuous_action:HalfCheetah-v5": (),
    "rpo_continuous_action:Pendulum-v1": (),
    "ppo_gru:MiniGrid-Empty-5x5-v0": ("--update-epochs", "1"),
    "pqn:CartPole-v1": (),
    "dqn:CartPole-v1": OFF,
    "c51:CartPole-v1": OFF,
    "ddpg_continuous_action:Pendulum-v1": OFF,
    "ddpg_continuous_action:HalfCheetah-v5": OFF,
    "td3_continuous_action:Pendulum-v1": OFF,
    "sac_continuous_action:Pendulum-v1": OFF,
    "ppo_atari:PongNoFrameskip-v4": ("--update-epochs", "1"),
}

PLAYED = """
import importlib, json, sys, time
from cleanrl_worker.training.run import Run
from cleanrl_worker.training.checkpoints import CheckpointStore

name, stop_at, flags = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
tick, save = Run.tick, CheckpointStore.save
costs = []

def stopping_tick(self, step):
    if 0 < stop_at <= self.step + len(step.rewards) and not self.link.requests:
        self.link.requests.append({"cmd": "stop"})
    tick(self, step)

def timed_save(self, step, state, meta, reason, wait=False):
    cpu, wall = time.process_time(), time.monotonic()
    save(self, step, state, meta, reason, wait=False)
    waited = time.monotonic() - wall
    self.wait()
    costs.append({"cpu": time.process_time() - cpu, "waited": waited, "bytes": self.last.bytes})

Run.tick, CheckpointStore.save = stopping_tick, timed_save
code = importlib.import_module(f"cleanrl_worker.algorithms.{name}").main(flags)
print("COSTS", json.dumps(costs), flush=True)
sys.exit(code)
"""


def play(case: str, folder: Path, steps: int, stop_at: int, **extra: str) -> list[dict[str, float]]:
    algo, env_id = case.split(":")
    folder.mkdir(parents=True, exist_ok=True)
    environ = environment(folder, CLEANRL_CHECKPOINT_EVERY_SECONDS="0", **extra)
    flags = ["--env-id", env_id, "--total-timesteps", str(steps), "--no-cuda", *CASES[case]]
    command = [sys.executable, "-c", PLAYED, algo, str(stop_at), *flags]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("COSTS "))
    costs: list[dict[str, float]] = json.loads(line.removeprefix("COSTS "))
    return costs


def compare(case: str, work: Path, steps: int) -> dict[str, Any]:
    """Play the case both ways, or read what an earlier call found at this commit."""
    folder = work / case.replace(":", "-")
    result = folder / "result.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        if found["commit"] == commit() and "date" in found:
            return found
    from bitwise import different

    from cleanrl_worker.training.checkpoints import newest_valid

    shutil.rmtree(folder, ignore_errors=True)
    costs = play(case, folder / "whole", steps, stop_at=0)
    costs += play(case, folder / "halves", steps, stop_at=steps // 2)
    middle = newest_valid(folder / "halves" / "checkpoints")
    costs += play(case, folder / "halves", steps, stop_at=0, CLEANRL_CONTINUE="1")
    whole, halves = (newest_valid(folder / name / "checkpoints") for name in ("whole", "halves"))
    assert middle is not None
    assert whole is not None
    assert halves is not None
    found = {
        "cut": middle.step,
        "steps": halves.step,
        "different": different({**whole.state, "tensorboard": 0}, {**halves.state, "tensorboard": 0}),
        "cpu": max(cost["cpu"] for cost in costs),
        "waited": max(cost["waited"] for cost in costs),
        "bytes": max(cost["bytes"] for cost in costs),
        "commit": commit(),
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    for name in ("whole", "halves"):
        shutil.rmtree(folder / name)
    result.write_text(json.dumps(found))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--work", type=Path, default=Path("build/resume"))
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    args = parser.parse_args()
    rows, good, every = [], True, []
    for number, case in enumerate(args.only, 1):
        found = compare(case, args.work.resolve(), args.steps)
        same = not found["different"]
        good &= same
        every.append(found)
        algo, env_id = case.split(":")
        verdict = "equal" if same else f"DIFFERENT: {', '.join(found['different'][:3])}"
        rows.append(
            f"| {algo} | {env_id} | {found['cut']:,} | {found['steps']:,} | {verdict} | {found['bytes'] / 1e6:.2f} | "
            f"{1e3 * found['cpu']:.0f} | {1e3 * found['waited']:.1f} | {100 * found['cpu'] / DEFAULT_INTERVAL:.3f} % |"
        )
        print(f"[{number}/{len(args.only)}] {rows[-1]}", flush=True)
    head = [
        "# Resume and checkpoints",
        "",
        (
            "A run that was stopped half way and continued by a new process, beside the same run in one go: their last "
            "checkpoints (weights, optimizers, random numbers, replay, normalisers, environments, counters) are compared bit "
            "by bit. The costs are of the dearest checkpoint of the case; the share is of the default interval of "
            f"{DEFAULT_INTERVAL:.0f} s. `python tests/benchmarks/resume.py` reruns it."
        ),
        "",
        *origins(every),
        "",
        "| algorithm | environment | cut at | steps | states | MB | CPU ms | training waits ms | share of CPU |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "resume.md").write_text("\n".join([*head, *rows]) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main, "the cases that had ended are kept"))

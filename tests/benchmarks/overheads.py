"""What everything around the algorithm costs: FastLane, telemetry and TensorBoard, each as a share of CPU time.

    python tests/benchmarks/overheads.py [--only ppo dqn] [--seconds 20] [--page docs/benchmarks/overheads.md]

Each algorithm trains in a process of its own, as under a supervisor: with the line to it, event files and ten frames a second.
The CPU time inside the calls of each part, its threads included, is added up and divided by the CPU time between the first and
the last step. Nothing is compared with another run; the clock's own calls count as part of what they time, so the shares are a
little too large, and frames come by the clock, so run it on a quiet machine. What a checkpoint costs is measured by resume.py.
`supervisor` is measured apart: the CPU time of the worker's command line beside that of its algorithm, by the kernel's count.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from jobs import end_by_exception, saying_when_stopped
from reporting import cpu_seconds, table_page

from cleanrl_worker.link import ENV_FD, read_lines

PARTS = ("FastLane", "telemetry", "TensorBoard")


@dataclass(frozen=True)
class Case:
    algo: str
    env_id: str
    steps_per_second: int
    """About, for the length of the run."""
    flags: tuple[str, ...] = ()


CASES = (
    Case("ppo", "CartPole-v1", 40_000),
    Case("dqn", "CartPole-v1", 18_000, ("--learning-starts", "1000")),
    Case("sac_continuous_action", "Pendulum-v1", 180, ("--learning-starts", "500")),
    Case("ppo", "MiniGrid-Empty-5x5-v0", 2_000),
    Case("ppo_atari", "BreakoutNoFrameskip-v4", 300),
)

TIMED = """
import functools, importlib, json, sys, threading, time
from cleanrl_worker.fastlane.publisher import Publisher
from cleanrl_worker.link import ChildLink
from cleanrl_worker.training.run import Run
from cleanrl_worker.training.writer import EventWriter

spent, inside = dict.fromkeys(("FastLane", "telemetry", "TensorBoard"), 0.0), threading.local()

def count(part, owner, *names):
    for name in names:
        def timed(*args, _inner=getattr(owner, name), **more):
            if getattr(inside, "part", None):  # whoever called it pays for it
                return _inner(*args, **more)
            inside.part, began = part, time.thread_time()
            try:
                return _inner(*args, **more)
            finally:
                spent[part] += time.thread_time() - began
                inside.part = None
        setattr(owner, name, timed)

count("FastLane", Publisher, "step", "episode", "scalars", "frame_due", "frame")
count("telemetry", Run, "_tell", "_print_progress", "note")
count("telemetry", ChildLink, "emit", "_write_loop")
count("TensorBoard", EventWriter, "scalars", "flush")

start, close = Run.start, Run.finish
clock = {}

def timed_start(self):
    start(self)
    spent.update(dict.fromkeys(spent, 0.0))
    clock.update(cpu=time.process_time(), wall=time.monotonic())

def timed_finish(self, **_):
    cpu, wall = time.process_time() - clock["cpu"], time.monotonic() - clock["wall"]
    self.link.close()  # its writer's time is known when it ends
    print("MEASURED", json.dumps({"cpu": cpu, "wall": wall, "steps": self.step, **spent}), flush=True)

Run.start, Run.finish = timed_start, timed_finish
sys.exit(importlib.import_module(f"cleanrl_worker.algorithms.{sys.argv[1]}").main(sys.argv[2:]))
"""


def inside(case: Case, seconds: float, folder: Path) -> dict[str, float]:
    """The CPU seconds of the algorithm's process and of each part."""
    ours, theirs = socket.socketpair()
    drain = threading.Thread(target=lambda: [None for _ in read_lines(ours)], daemon=True)
    drain.start()
    os.set_inheritable(theirs.fileno(), True)
    environ = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        ENV_FD: str(theirs.fileno()),
        "CLEANRL_RUN_ID": f"overheads-{os.getpid()}",
        "CLEANRL_RUN_DIR": str(folder),
        "CLEANRL_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "CLEANRL_TENSORBOARD_DIR": str(folder / "tensorboard"),
        "GYM_GUI_FASTLANE_ONLY": "1",
    }
    steps = int(case.steps_per_second * seconds)
    flags = ["--env-id", case.env_id, "--total-timesteps", str(steps), "--no-cuda", *case.flags]
    command = [sys.executable, "-c", TIMED, case.algo, *flags]
    done = subprocess.run(
        command, cwd=folder, env=environ, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False
    )
    theirs.close()
    ours.close()
    if done.returncode:
        raise SystemExit(f"{case.algo} failed:\n{done.stderr[-2000:]}")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("MEASURED "))
    measured: dict[str, float] = json.loads(line.removeprefix("MEASURED "))
    return measured


def supervised(case: Case, seconds: float, folder: Path) -> float:
    """The supervisor's CPU time as a share of its algorithm's, from the first step on."""
    config = {
        "run_id": f"overheads-{os.getpid()}",
        "algo": case.algo,
        "env_id": case.env_id,
        "total_timesteps": int(case.steps_per_second * seconds),
        "extras": {"tensorboard_dir": "tensorboard", "algo_params": flags_of(case)},
    }
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "MOSAIC_RUN_DIR": str(folder / "run")}
    command = [sys.executable, "-m", "cleanrl_worker.cli", "--config", str(file)]
    worker = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with worker, ExitStack() as until_it_ends:
        until_it_ends.callback(worker.terminate)
        assert worker.stdout is not None
        for line in worker.stdout:
            if '"training_started"' in line:
                break
        children = [int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()]
        before, after = (cpu_seconds(worker.pid), sum(map(cpu_seconds, children))), (0.0, 0.0)
        threading.Thread(target=worker.stdout.read, daemon=True).start()
        while worker.poll() is None and all(Path(f"/proc/{pid}").exists() for pid in children):
            try:
                after = (cpu_seconds(worker.pid), sum(map(cpu_seconds, children)))
            except OSError:  # one of them has just ended
                break
            time.sleep(0.2)
        worker.wait(120)
    return (after[0] - before[0]) / max(after[1] - before[1], 1e-9)


def flags_of(case: Case) -> dict[str, str]:
    names = (flag.removeprefix("--").replace("-", "_") for flag in case.flags[::2])
    return dict(zip(names, case.flags[1::2], strict=True))


COLUMNS = ("algorithm", "environment", "steps/CPU s", *PARTS, "all of these", "supervisor")


def cells(case: Case, seconds: float) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        measured = inside(case, seconds, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        beside = supervised(case, seconds, Path(folder))
    shares = [measured[part] / measured["cpu"] for part in PARTS]
    rate = measured["steps"] / measured["cpu"]
    return (case.algo, case.env_id, f"{rate:,.0f}", *(f"{share:.2%}" for share in [*shares, sum(shares), beside]))


def page(table: list[tuple[str, ...]], seconds: float) -> str:
    about = (
        f"Shares of the algorithm's CPU time, over about {seconds:g} CPU seconds each. "
        "`python tests/benchmarks/overheads.py --page docs/benchmarks/overheads.md` measures again and says how."
    )
    return table_page("What everything around the algorithm costs", about, COLUMNS, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[case.algo for case in CASES])
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds of each run, about")
    parser.add_argument("--page", type=Path, help="a file for the table in Markdown")
    args = parser.parse_args()
    end_by_exception()
    print("  ".join(COLUMNS), flush=True)
    table = []
    for case in CASES:
        if case.algo in args.only:
            table.append(cells(case, args.seconds))
            print("  ".join(table[-1]), flush=True)
    if args.page:
        args.page.write_text(page(table, args.seconds))


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

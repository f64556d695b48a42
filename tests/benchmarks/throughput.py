"""Environment steps per CPU second of every algorithm, on one core, beside a fixed calibration loop.

    python tests/benchmarks/throughput.py [--only ppo dqn] [--seconds 20] [--page docs/benchmarks/throughput.md]

Each algorithm runs in a process of its own with default flags, but for those that its row in the table names: off policy
`--learning-starts`, so that what is measured is learning, and smaller rollouts where one of the default size takes minutes.
Only the time between the first and the last step counts, in CPU seconds; the warm-up of off-policy algorithms does not, nor
does what JAX compiles at the first update.
The calibration loop, a small torch network forward and backward, runs right before and after; `ratio` is steps per calibration
loop, which is comparable between machines and busy hours. Algorithms with layers of 256 are bound by the core's matrix
products: for these, a product of two 256x256 matrices is timed every two seconds of the run, and `of bound` is the share of
the steps per second that this rate would allow if products were all there is (a neighbour's load slows both).
With `--page` the table is written there as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jobs import end_by_exception, saying_when_stopped
from reporting import table_page


@dataclass(frozen=True)
class Row:
    algo: str
    env_id: str
    upstream: float
    least: float
    goal: float
    guess: int
    """Steps for a first run, from which the length of the measured one follows."""
    flags: tuple[str, ...] = ()
    gflop: float = 0.0
    """Billions of operations in the matrix products of one step, where those are the bound."""
    skip: int = 0
    """Steps that do not count, at the beginning."""
    needs_teacher: bool = False


OFF = ("--learning-starts", "1000")
SOON = ("--learning-starts", "100", "--buffer-size", "10000")
SHORT = ("--num-steps", "32")
SMALL = ("--num-envs", "16", "--num-steps", "64")
ROWS = (
    Row("ppo", "CartPole-v1", 3_700, 14_000, 25_000, 30_000),
    Row("pqn", "CartPole-v1", 5_600, 16_000, 25_000, 30_000),
    Row("dqn", "CartPole-v1", 2_270, 8_000, 14_000, 12_000, OFF, skip=1000),
    Row("c51", "CartPole-v1", 1_070, 3_500, 6_000, 6_000, OFF, skip=1000),
    Row("ppo_continuous_action", "Pendulum-v1", 965, 3_000, 8_000, 8_192),
    Row("rpo_continuous_action", "Pendulum-v1", 808, 2_700, 7_000, 8_192),
    Row("ddpg_continuous_action", "Pendulum-v1", 141, 220, 260, 1_500, OFF, 0.255, 1000),
    Row("td3_continuous_action", "Pendulum-v1", 88, 140, 165, 1_400, OFF, 0.40, 1000),
    Row("sac_continuous_action", "Pendulum-v1", 46, 95, 112, 1_300, OFF, 0.58, 1000),
    Row("ppo_gru", "MiniGrid-MemoryS7-v0", 0, 0, 0, 2_048),
    *(
        Row(algo, env_id, 0, 0, 0, guess, flags, skip=skip, needs_teacher=algo.startswith("qdagger"))
        for algo, env_id, guess, flags, skip in (
            ("ppo_atari", "BreakoutNoFrameskip-v4", 2_048, (), 0),
            ("ppo_atari_multigpu", "BreakoutNoFrameskip-v4", 2_048, (), 0),
            ("ppo_atari_lstm", "BreakoutNoFrameskip-v4", 2_048, (), 0),
            ("ppo_atari_envpool", "Breakout-v5", 2_048, (), 0),
            ("ppo_atari_envpool_xla_jax", "Breakout-v5", 768, SHORT, 256),
            # Two steps a second on a CPU: it has a rollout that ends.
            ("ppo_atari_envpool_xla_jax_scan", "Breakout-v5", 96, ("--num-envs", "2", "--num-steps", "16"), 32),
            ("ppo_pettingzoo_ma_atari", "pong_v3", 4_096, (), 0),
            ("ppo_procgen", "starpilot", 1_024, SMALL, 0),
            ("ppg_procgen", "starpilot", 1_024, ("--num-envs", "8", "--num-steps", "64", "--n-iteration", "2"), 0),
            ("ppo_rnd_envpool", "MontezumaRevenge-v5", 2_048, (*SMALL, "--num-iterations-obs-norm-init", "1"), 0),
            ("pqn_atari_envpool", "Breakout-v5", 2_048, (), 0),
            ("pqn_atari_envpool_lstm", "Breakout-v5", 2_048, (), 0),
            ("dqn_jax", "CartPole-v1", 12_000, OFF, 1_200),
            ("c51_jax", "CartPole-v1", 6_000, OFF, 1_200),
            ("ddpg_continuous_action_jax", "Pendulum-v1", 2_000, OFF, 1_200),
            ("td3_continuous_action_jax", "Pendulum-v1", 2_000, OFF, 1_200),
            ("dqn_atari", "BreakoutNoFrameskip-v4", 600, SOON, 100),
            ("c51_atari", "BreakoutNoFrameskip-v4", 600, SOON, 100),
            ("rainbow_atari", "BreakoutNoFrameskip-v4", 600, SOON, 100),
            ("sac_atari", "BeamRiderNoFrameskip-v4", 400, SOON, 100),
            ("dqn_atari_jax", "BreakoutNoFrameskip-v4", 600, SOON, 140),
            ("c51_atari_jax", "BreakoutNoFrameskip-v4", 600, SOON, 140),
            ("qdagger_dqn_atari_impalacnn", "BreakoutNoFrameskip-v4", 300, SOON, 140),
            ("qdagger_dqn_atari_jax_impalacnn", "BreakoutNoFrameskip-v4", 300, SOON, 140),
        )
    ),
)
LESSONS = ("--teacher-eval-episodes", "1", "--teacher-steps", "100", "--offline-steps", "1")

MEASURED = """
import importlib, json, sys, time
import numpy as np
from cleanrl_worker.training.run import Run

start, finish = Run.start, Run.finish
clock = {}
square = np.random.default_rng(0).random((256, 256), np.float32)
products = {"count": 0, "cpu": 0.0, "next": 0.0}

def multiply():
    began, out = time.process_time(), np.empty_like(square)
    for _ in range(50):
        np.dot(square, square, out=out)
    took = time.process_time() - began
    clock["cpu"] += took  # this is not part of the run
    products.update(count=products["count"] + 50, cpu=products["cpu"] + took, next=time.process_time() + 2.0)

def timed_start(self):
    start(self)
    clock.update(cpu=time.process_time(), wall=time.monotonic())

def attend(self, inner=Run.attend):
    inner(self)
    if self.step >= skip and "from" not in clock:
        clock.update({"from": self.step, "cpu": time.process_time(), "wall": time.monotonic()})
    if "from" in clock and time.process_time() >= products["next"]:
        multiply()

def timed_finish(self, **_):
    print("MEASURED", json.dumps({
        "steps": self.step - clock.get("from", 0),
        "cpu": time.process_time() - clock["cpu"],
        "wall": time.monotonic() - clock["wall"],
        "gflops": products["count"] * 2 * 256**3 / products["cpu"] / 1e9 if products["cpu"] else 0.0,
    }), flush=True)

name, skip, flags = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
Run.start, Run.finish = timed_start, timed_finish
if skip:
    Run.attend = attend
sys.exit(importlib.import_module(f"cleanrl_worker.algorithms.{name}").main(flags))
"""

CALIBRATION = """
import time, torch
torch.manual_seed(0)
torch.set_num_threads(1)
Linear, Tanh = torch.nn.Linear, torch.nn.Tanh
net = torch.nn.Sequential(Linear(8, 64), Tanh(), Linear(64, 64), Tanh(), Linear(64, 2))
x = torch.randn(128, 8)
def loop(n):
    began = time.process_time()
    for _ in range(n):
        net.zero_grad()
        net(x).square().mean().backward()
    return n / (time.process_time() - began)
loop(200)
print(max(loop(500) for _ in range(5)))
"""


def python(*arguments: str, folder: str) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CLEANRL_CHECKPOINT_EVERY_SECONDS": "300"}
    environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), environ.get("PYTHONPATH", "")])
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[2:])} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def measure(row: Row, steps: int, folder: str) -> dict[str, float]:
    flags = ["--env-id", row.env_id, "--total-timesteps", str(steps), *row.flags]
    if "jax" not in row.algo:
        flags.append("--no-cuda")
    if row.needs_teacher:
        flags += [*LESSONS, "--teacher-model-path", make_teacher(Path(folder))]
    output = python("-c", MEASURED, row.algo, str(row.skip), *flags, folder=folder)
    (line,) = (line for line in output.splitlines() if line.startswith("MEASURED "))
    result: dict[str, float] = json.loads(line.removeprefix("MEASURED "))
    return result


def make_teacher(folder: Path) -> str:
    """A value network for Breakout that knows nothing."""
    import torch

    from cleanrl_worker.agents.atari_values import QNetwork

    path = folder / "dqn_atari.cleanrl_model"
    torch.save(QNetwork(actions=4).state_dict(), path)
    return str(path)


def calibrate(folder: str) -> float:
    return float(python("-c", CALIBRATION, folder=folder))


COLUMNS = (
    *("algorithm", "environment", "steps/CPU s", "upstream", "least", "goal"),
    *("calibration/s", "ratio", "GFLOP/s", "of bound", "verdict", "flags"),
)
WIDTHS = (32, 22, 11, 8, 7, 7, 13, 7, 8, 8, 7, 0)


def figures(row: Row, seconds: float) -> tuple[str, ...]:
    """Measure a row; its cells, in the order of COLUMNS."""
    with tempfile.TemporaryDirectory() as folder:
        before = calibrate(folder)
        first = measure(row, row.guess, folder)
        result = measure(row, max(row.guess, row.skip + int(first["steps"] / first["cpu"] * seconds)), folder)
        calibration = (before + calibrate(folder)) / 2
    rate = result["steps"] / result["cpu"]
    bound = (f"{result['gflops']:.1f}", f"{rate * row.gflop / result['gflops']:.2f}") if row.gflop else ("", "")
    verdict = "" if not row.least else "goal" if rate >= row.goal else "ok" if rate >= row.least else "BELOW"
    expected = (f"{n:,.0f}" if n else "" for n in (row.upstream, row.least, row.goal))
    return (
        *(row.algo, row.env_id, f"{rate:,.0f}", *expected),
        *(f"{calibration:,.0f}", f"{rate / calibration:.3f}", *bound, verdict, " ".join(row.flags)),
    )


def page(table: list[tuple[str, ...]], seconds: float) -> str:
    about = (
        f"One core, default flags but for those named, about {seconds:g} CPU seconds each; upstream, least and goal were set "
        "on another machine (a core of 74 GFLOP/s), so read `ratio` and `of bound` beside them. `python "
        "tests/benchmarks/throughput.py --page docs/benchmarks/throughput.md` measures again and explains the columns."
    )
    return table_page("Environment steps per CPU second", about, COLUMNS, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[row.algo for row in ROWS])
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds of each measurement, about")
    parser.add_argument("--page", type=Path, help="a file for the table in Markdown")
    args = parser.parse_args()
    end_by_exception()

    def show(cells: tuple[str, ...]) -> None:
        print(" ".join(f"{cell:{'<' if n < 2 else '>'}{WIDTHS[n]}}" for n, cell in enumerate(cells)), flush=True)

    show(COLUMNS)
    table = []
    for row in ROWS:
        if row.algo in args.only:
            table.append(figures(row, args.seconds))
            show(table[-1])
    if args.page:
        args.page.write_text(page(table, args.seconds))


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

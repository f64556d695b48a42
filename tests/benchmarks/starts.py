"""Seconds from the worker's command line to `training_started`, for every algorithm on its own default environment and flags.

    python tests/benchmarks/starts.py [--only ppo dqn_jax] [--page docs/benchmarks/starts.md]

Each algorithm is launched as a pod launches it: the worker's CLI with a configuration file and the handshake with a gateway on
this machine. It is stopped as soon as it trains. `wall` is what a user waits; `CPU` is what all processes of the run had used
by then, which a busy machine does not change much. Warm means that Python's compiled modules and the files are in the
machine's caches: the first launch of the first algorithm that imports a library may not be, so run it twice.

JAX compiles its functions at the first update, after `training_started`, each announced in the log; what was compiled before
comes from the cache on disk (`JAX_COMPILATION_CACHE_DIR`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from jobs import saying_when_stopped
from reporting import table_page

from cleanrl_protocol.localgateway import LocalGateway
from cleanrl_worker.telemetry import read_events
from cleanrl_worker.tools import schemas

MOST = 15.0
LONGEST = 180.0
"""Seconds after which a launch counts as failed."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Start:
    algo: str
    env_id: str
    wall: float
    cpu: float
    failure: str = ""


def cpu_seconds(root: int) -> float:
    """What a process and all its descendants, the ended ones included, have used."""
    stats: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        stats[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    family = {root}
    while grown := {pid for pid, (parent, _) in stats.items() if parent in family} - family:
        family |= grown
    return sum(stats[pid][1] for pid in family if pid in stats)


def make_teacher(folder: Path) -> str:
    """A value network for Breakout that knows nothing."""
    import torch

    from cleanrl_worker.agents.atari_values import QNetwork

    path = folder / "teacher.cleanrl_model"
    torch.save(QNetwork(actions=4).state_dict(), path)
    return str(path)


def launch(algo: str, env_id: str, gateway: LocalGateway, folder: Path) -> Start:
    """Start the algorithm, wait until it trains, and stop it."""
    run = folder / "run"
    params = {"teacher_model_path": make_teacher(folder)} if algo.startswith("qdagger") else {}
    total = schemas.generate()["algorithms"][algo]["total_timesteps"]
    config = {
        "run_id": f"start-{algo.replace('_', '-')}",
        "algo": algo,
        "env_id": env_id,
        "seed": 1,
        "total_timesteps": total,
        "extras": {"algo_params": params},
    }
    (folder / "config.json").write_text(json.dumps(config))
    command = [*(sys.executable, "-m", "cleanrl_worker.cli", "--config", "config.json"), "--grpc"]
    environ = os.environ | {"CLEANRL_RUN_DIR": str(run), "OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    with (folder / "log.txt").open("w") as log:
        began = time.monotonic()
        worker = subprocess.Popen(
            [*command, "--grpc-target", gateway.target], cwd=folder, env=environ, stdout=log, stderr=log
        )
        cpu = 0.0
        try:
            while time.monotonic() - began < LONGEST and worker.poll() is None:
                events = read_events(run / "events.jsonl") if (run / "events.jsonl").exists() else ()
                started = [event["timestamp"] for event in events if event["event"] == "training_started"]
                if started:
                    cpu = cpu_seconds(worker.pid)
                    return Start(algo, env_id, time.monotonic() - began, cpu)
                time.sleep(0.05)
            failure = (folder / "log.txt").read_text()[-1500:] or "it never trained"
            return Start(algo, env_id, time.monotonic() - began, cpu, failure)
        finally:
            worker.send_signal(signal.SIGTERM)
            try:
                worker.wait(60)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def page(starts: list[Start]) -> str:
    about = (
        f"Seconds from the worker's command line to `training_started`, default flags; at most {MOST:g}, warm. "
        "`python tests/benchmarks/starts.py --page docs/benchmarks/starts.md` measures again."
    )
    rows = [
        (start.algo, start.env_id, f"{start.wall:.1f}", f"{start.cpu:.1f}", f"{MOST:g}", verdict(start))
        for start in starts
    ]
    return table_page(
        "From launch to training", about, ("algorithm", "environment", "wall, s", "CPU, s", "at most", "met"), rows
    )


def verdict(start: Start) -> str:
    return "FAILED" if start.failure else "yes" if start.wall <= MOST else "NO"


def main() -> int:
    known = {name: facts["env_id"] for name, facts in schemas.generate()["algorithms"].items()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=sorted(known), default=sorted(known), metavar="ALGORITHM")
    parser.add_argument("--page", type=Path, help="a file for the table in Markdown")
    args = parser.parse_args()
    gateway = LocalGateway().start()
    starts = []
    print(f"{'algorithm':32} {'environment':28} {'wall, s':>8} {'CPU, s':>8}", flush=True)
    try:
        for algo in args.only:
            with tempfile.TemporaryDirectory() as folder:
                start = launch(algo, known[algo], gateway, Path(folder))
            starts.append(start)
            print(f"{algo:32} {start.env_id:28} {start.wall:8.1f} {start.cpu:8.1f}  {verdict(start)}", flush=True)
            if start.failure:
                print(start.failure, flush=True)
    finally:
        gateway.stop()
    print(f"slowest of {len(starts)}: {max(start.wall for start in starts):.1f} s")
    if args.page:
        args.page.write_text(page(starts))
    return 0 if all(verdict(start) == "yes" for start in starts) else 1


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

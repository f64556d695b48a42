"""One TensorBoard over many runs: memory, and time to the first page and to all curves.

    python tests/benchmarks/tensorboard_scale.py [--runs 100] [--points 1000] [flags of TensorBoard]

Each run has ten curves. The target: 100 runs within 300 MiB, and the first page in less than 5 s on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from jobs import saying_when_stopped

from cleanrl_worker.training.writer import EventWriter

TAGS = [f"losses/figure_{number}" for number in range(9)] + ["charts/episodic_return"]
MEMORY_TARGET, PAGE_TARGET = 300, 5.0
PATIENCE = 600.0


def make_runs(folder: Path, runs: int, points: int) -> None:
    """Runs as workers leave them: one is written, the others are its copies."""
    first = folder / "01JD0000000000000000000000"
    writer = EventWriter(first / "tensorboard" / "CartPole-v1__ppo__1")
    for step in range(points):
        writer.scalars(dict.fromkeys(TAGS, float(step)), step * 100)
    writer.close()
    for number in range(runs):
        run = folder / f"01JD{number:022}"
        if number:
            shutil.copytree(first, run)
        manifest = {"run_id": run.name, "algo": "ppo", "env_id": "CartPole-v1", "seed": number}
        (run / "analytics.json").write_text(json.dumps({**manifest, "tensorboard_dir": "tensorboard"}))


def family(pid: int) -> list[int]:
    """A process with all that it has started."""
    started = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(each for child in started for each in family(child))]


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a process now, and at its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    now, peak = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now, peak


def ask(url: str) -> Any:
    """An answer, or None while there is none."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except OSError:
        return None


def measure(runs: int, points: int, flags: list[str]) -> bool:
    """Print the table; whether the targets were met."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"writing {runs} runs of {len(TAGS)} curves with {points} points", file=sys.stderr)
        make_runs(Path(folder), runs, points)
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "cleanrl_worker.sidecar", "--all-runs", folder, "--", "--port", "0"]
        began = time.monotonic()
        with log.open("wb") as output:
            sidecar = subprocess.Popen([*command, "--host", "127.0.0.1", *flags], stdout=output, stderr=output)
        try:
            found = first = None
            while first is None:
                found = found or re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
                first = ask(found[0]) and time.monotonic() - began if found else None
                if time.monotonic() - began > PATIENCE:
                    raise TimeoutError(log.read_text()[-2000:])
                time.sleep(0.1)
            assert found is not None
            loaded = 0
            while loaded < runs:
                tags = json.loads(ask(f"{found[0]}/data/plugin/scalars/tags") or "{}")
                loaded = sum(len(each) == len(TAGS) for each in tags.values())
                if time.monotonic() - began > PATIENCE:
                    raise TimeoutError(f"{loaded} of {runs} runs were loaded")
                time.sleep(0.5)
            all_loaded = time.monotonic() - began
            held = [memory_mib(pid) for pid in family(sidecar.pid)]
            now, peak = (sum(each) for each in zip(*held, strict=True))
        finally:
            sidecar.send_signal(signal.SIGTERM)
            sidecar.wait(60)
    print(f"first page after         {first:8.1f} s")
    print(f"all curves after         {all_loaded:8.1f} s")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU, until it was ended  {used.ru_utime + used.ru_stime:8.1f} s")
    print(f"all processes hold       {now:8.0f} MiB, at their peak {peak:.0f}")
    met = first < PAGE_TARGET and peak < MEMORY_TARGET
    if runs == 100:
        print(f"target {PAGE_TARGET:.0f} s and {MEMORY_TARGET} MiB: {'met' if met else 'MISSED'}")
    return met or runs != 100


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--points", type=int, default=1000)
    arguments, flags = parser.parse_known_args()
    return 0 if measure(arguments.runs, arguments.points, flags) else 1


if __name__ == "__main__":
    raise SystemExit(saying_when_stopped(main))

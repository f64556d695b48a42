"""Environment steps per CPU second beside Stable-Baselines3, in the same run: same networks, same batches, same schedule.

    python tests/benchmarks/peers.py [--only ppo dqn] [--rounds 3] [--seconds 8] [--page docs/benchmarks/peers.md]

The peer is installed from the package registry into a folder of its own in the cache, without its dependencies, which are the
project's. Ours and the peer's take turns on one thread each, so that what else the machine does meets both; the figures are
medians over the rounds. What comes before learning starts does not count, for either. `python tests/benchmarks/throughput.py`
measures all algorithms, without a peer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import throughput
from jobs import end_by_exception
from reporting import table_page

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "dev"))
from bootstrap import cache_folder, find_uv  # noqa: E402 - dev/ is no package

VERSION = "2.9.2"
PINS = (f"stable-baselines3=={VERSION}", "cloudpickle==3.1.2")


@dataclass(frozen=True)
class Peer:
    """The class of Stable-Baselines3 that is the same algorithm, and what makes it take CleanRL's defaults."""

    name: str
    options: dict[str, Any]
    layers: tuple[int, ...]
    envs: int = 1


ON_POLICY = {"n_epochs": 10, "learning_rate": 3e-4, "n_steps": 2048, "batch_size": 64}
OFF_POLICY = {"buffer_size": 1_000_000, "batch_size": 256, "learning_starts": 1000, "train_freq": 1}
PEERS = {
    "ppo": Peer(
        "PPO",
        {"n_steps": 128, "batch_size": 128, "n_epochs": 4, "learning_rate": 2.5e-4, "ent_coef": 0.01},
        (64, 64),
        envs=4,
    ),
    "dqn": Peer(
        "DQN",
        {
            "buffer_size": 10_000, "batch_size": 128, "learning_starts": 1000, "train_freq": 10, "learning_rate": 2.5e-4,
            "target_update_interval": 500,
        },
        (120, 84),
    ),
    "ppo_continuous_action": Peer("PPO", ON_POLICY, (64, 64)),
    "ddpg_continuous_action": Peer("DDPG", {**OFF_POLICY, "learning_rate": 3e-4}, (256, 256)),
    "td3_continuous_action": Peer("TD3", {**OFF_POLICY, "learning_rate": 3e-4, "policy_delay": 2}, (256, 256)),
    "sac_continuous_action": Peer("SAC", OFF_POLICY, (256, 256)),
}  # fmt: skip

MEASURED = """
import json, sys, time
import stable_baselines3, torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

name, env_id, envs, steps, skip, layers, options = (json.loads(part) for part in sys.argv[1:])
torch.set_num_threads(1)

class Clock(BaseCallback):
    began = None
    def _on_step(self):
        if self.began is None and self.num_timesteps > skip:
            self.began = self.num_timesteps, time.process_time()
        return True

clock = Clock()
model = getattr(stable_baselines3, name)(
    "MlpPolicy", make_vec_env(env_id, n_envs=envs, seed=1), seed=1, device="cpu", policy_kwargs={"net_arch": layers}, **options
)
model.learn(steps, callback=clock)
since, cpu = clock.began
print("MEASURED", json.dumps({"steps": model.num_timesteps - since, "cpu": time.process_time() - cpu}))
"""


def install() -> Path:
    """The folder with the peer's package, made when it is not there."""
    folder = cache_folder() / f"peers-{VERSION}-py{sys.version_info[0]}.{sys.version_info[1]}"
    if not (folder / "stable_baselines3").is_dir():
        command = [find_uv(), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
        subprocess.run([*command, "--target", str(folder), *PINS], check=True)
    return folder


def theirs(peer: Peer, row: throughput.Row, steps: int, packages: Path, folder: str) -> float:
    """The peer's steps per CPU second."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages)}
    parts = (peer.name, row.env_id, peer.envs, steps, row.skip, list(peer.layers), peer.options)
    command = [sys.executable, "-c", MEASURED, *(json.dumps(part) for part in parts)]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"Stable-Baselines3's {peer.name} failed:\n{done.stderr[-2000:]}")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("MEASURED "))
    found = json.loads(line.removeprefix("MEASURED "))
    return float(found["steps"] / found["cpu"])


def ours(row: throughput.Row, steps: int, folder: str) -> float:
    """Our steps per CPU second."""
    found = throughput.measure(row, steps, folder)
    return found["steps"] / found["cpu"]


COLUMNS = ("algorithm", "environment", "ours", "Stable-Baselines3", "times", "least and most")


def compare(algo: str, rounds: int, seconds: float, packages: Path) -> tuple[str, ...]:
    """One row: both, by turns."""
    (row,) = (row for row in throughput.ROWS if row.algo == algo)
    peer = PEERS[algo]
    with tempfile.TemporaryDirectory() as folder:
        # A short one of each tells how many steps fill the seconds.
        lengths = {
            "ours": row.skip + int(seconds * ours(row, row.guess, folder)),
            "theirs": row.skip + int(seconds * theirs(peer, row, row.guess, packages, folder)),
        }
        pairs = [
            (ours(row, lengths["ours"], folder), theirs(peer, row, lengths["theirs"], packages, folder))
            for _ in range(rounds)
        ]
    times = [mine / other for mine, other in pairs]
    return (
        algo,
        row.env_id,
        f"{statistics.median(mine for mine, _ in pairs):,.0f}",
        f"{statistics.median(other for _, other in pairs):,.0f}",
        f"{statistics.median(times):.1f}",
        f"{min(times):.1f} to {max(times):.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[*PEERS], default=[*PEERS])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="CPU seconds of each measurement, about")
    parser.add_argument("--page", type=Path, help="a file for the table in Markdown")
    args = parser.parse_args()
    end_by_exception()
    packages = install()
    print(" ".join(f"{cell:<24}" for cell in COLUMNS), flush=True)
    table = []
    for algo in args.only:
        table.append(compare(algo, args.rounds, args.seconds, packages))
        print(" ".join(f"{cell:<24}" for cell in table[-1]), flush=True)
    if args.page:
        about = (
            f"Steps per CPU second on one thread, ours and Stable-Baselines3 {VERSION} by turns: medians of {args.rounds} "
            f"rounds of about {args.seconds:g} CPU seconds, `times` with its extremes. The peer has CleanRL's defaults "
            "(layers, batches, how often it learns); what comes before learning starts is left out. "
            "`python tests/benchmarks/peers.py --page docs/benchmarks/peers.md` measures again."
        )
        args.page.write_text(table_page("Beside Stable-Baselines3", about, COLUMNS, table))


if __name__ == "__main__":
    main()

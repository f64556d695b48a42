"""Stable-Baselines3 as a peer: its class of the same algorithm, made to take CleanRL's defaults.

It is installed from the package registry into a folder of its own in the cache, without its dependencies, which are the
project's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import throughput
from peer_folders import peer_folder, uv

NAME, VERSION = "Stable-Baselines3", "2.9.2"
PINS = (f"stable-baselines3=={VERSION}", "cloudpickle==3.1.2")


@dataclass(frozen=True)
class Peer:
    """The class that is the same algorithm, and what makes it do the same work."""

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
    folder = peer_folder(VERSION)
    if not (folder / "stable_baselines3").is_dir():
        uv("pip", "install", "--no-deps", "--python", sys.executable, "--target", str(folder), *PINS)
    return folder


def measure(row: throughput.Row, steps: int, packages: Path, folder: str) -> float:
    """Steps per CPU second, over so many steps after its start."""
    peer = PEERS[row.algo]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(packages)}
    parts = (peer.name, row.env_id, peer.envs, row.skip + steps, row.skip, list(peer.layers), peer.options)
    command = [sys.executable, "-c", MEASURED, *(json.dumps(part) for part in parts)]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{NAME}'s {peer.name} failed:\n{done.stderr[-2000:]}")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("MEASURED "))
    found = json.loads(line.removeprefix("MEASURED "))
    return float(found["steps"] / found["cpu"])

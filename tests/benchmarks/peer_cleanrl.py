"""Upstream CleanRL as a peer: the scripts of its release as they are, with the libraries that they were written for.

They have an environment of their own in the cache: gym and gymnasium of the release's time, torch and TensorBoard as the
project has them, so that what differs is the scripts and their environments' libraries. A script can't be asked when it begins
to learn, and nothing in it is changed: each measurement is two runs, and a short one's CPU time is taken off a long one's.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import throughput
from peer_folders import peer_folder, uv
from reporting import child_cpu_seconds

NAME, VERSION = "CleanRL", "1.2.0"
LIBRARIES = (
    "gym==0.23.1", "gymnasium==0.28.1", "numpy==1.26.4", "pygame==2.6.1", "matplotlib", "pandas", "cloudpickle",
    "setuptools<81", f"torch=={version('torch').partition('+')[0]}", f"tensorboard=={version('tensorboard')}",
)  # fmt: skip
"""setuptools for the `distutils` that the scripts import; the release's own pins are older than this Python."""
LATEST_PYTHON = (3, 12)


@dataclass(frozen=True)
class Script:
    """How a script is run: what it steps between two looks at its flags, and whose replay buffer it takes."""

    rollout: int = 1
    stable_baselines: str = "2.0.0"
    """The release that speaks the script's interface: gym's up to 1.2, gymnasium's from 2.0 on."""


GYM = "1.2.0"
SCRIPTS = {
    "ppo": Script(rollout=512),
    "dqn": Script(),
    "c51": Script(stable_baselines=GYM),
    "ppo_continuous_action": Script(rollout=2048),
    "rpo_continuous_action": Script(rollout=2048),
    "ddpg_continuous_action": Script(),
    "td3_continuous_action": Script(stable_baselines=GYM),
    "sac_continuous_action": Script(stable_baselines=GYM),
}


def install() -> Path:
    """The folder with everything that the scripts need, made when it is not there."""
    if sys.version_info[:2] > LATEST_PYTHON:
        raise SystemExit(
            f"the libraries that {NAME} {VERSION} was written for have no builds for this Python: run this with Python 3.11 "
            "or 3.12, or without this peer (--peers Stable-Baselines3)"
        )
    folder = peer_folder(f"cleanrl-{VERSION}")
    python = str(folder / "bin" / "python")
    done = folder / "installed"
    wanted = "\n".join(LIBRARIES)
    if done.exists() and done.read_text() == wanted:
        return folder
    uv("venv", "--clear", "--python", sys.executable, str(folder))
    uv("pip", "install", "--python", python, *LIBRARIES)
    # Their own requirements name an older Python, and libraries that these scripts do not use.
    alone = ("pip", "install", "--python", python, "--no-deps", "--target")
    uv(*alone, str(folder / "scripts"), f"cleanrl=={VERSION}")
    for release in {script.stable_baselines for script in SCRIPTS.values()}:
        uv(*alone, str(folder / f"stable-baselines3-{release}"), f"stable-baselines3=={release}")
    done.write_text(wanted)
    return folder


def measure(row: throughput.Row, steps: int, packages: Path, folder: str) -> float:
    """The script's environment steps per CPU second, over about so many steps after its start."""
    script = SCRIPTS[row.algo]
    short = _whole(script, row.skip + max(script.rollout, row.guess // 10))
    long = short + _whole(script, steps)
    return (long - short) / (_cpu(row, long, packages, folder) - _cpu(row, short, packages, folder))


def _whole(script: Script, steps: int) -> int:
    """So many steps in whole rollouts: a script leaves out the rest."""
    return max(1, round(steps / script.rollout)) * script.rollout


def _cpu(row: throughput.Row, steps: int, packages: Path, folder: str) -> float:
    script = SCRIPTS[row.algo]
    where = (packages / f"stable-baselines3-{script.stable_baselines}", packages / "scripts")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, where))}
    file = packages / "scripts" / "cleanrl" / f"{row.algo}.py"
    flags = ["--env-id", row.env_id, "--total-timesteps", str(steps), "--cuda", "False", *row.flags]
    code, cpu, said = child_cpu_seconds([str(packages / "bin" / "python"), str(file), *flags], folder, environ)
    if code:
        raise SystemExit(f"{NAME}'s {row.algo} failed:\n{said[-2000:]}")
    return cpu

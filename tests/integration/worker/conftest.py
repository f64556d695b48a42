"""Real workers around a small algorithm that needs no torch, registered like any plug-in."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# A background job of a shell hands down an ignored SIGINT, which workers would inherit and respect. It is taken back here and
# not between fork and exec, since gRPC's threads, which a gateway of ours may have started in this process, abort such a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
SECONDS = 60
"""How long anything may take before the test calls it a hang."""


@dataclass
class Run:
    """One worker process and its run folder."""

    process: subprocess.Popen[str]
    folder: Path
    output: tuple[str, str] = field(default=("", ""))

    def wait(self) -> int:
        self.output = self.process.communicate(timeout=SECONDS)
        return self.process.returncode

    @property
    def stdout(self) -> str:
        return self.output[0]

    @property
    def stderr(self) -> str:
        return self.output[1]

    def events(self) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def names(self) -> list[str]:
        return [event["event"] for event in self.events()]

    def last(self) -> dict[str, Any]:
        return self.events()[-1]

    def manifest(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "analytics.json").read_text())
        return loaded

    def until(self, condition: Callable[[], object]) -> None:
        wait_for(lambda: condition() or self.process.poll() is not None)
        assert condition(), f"the worker ended first: {self.process.communicate()}"

    def child(self) -> int:
        """The algorithm's process. It may not have got further than being started."""
        self.until(lambda: _launched(self.process.pid))
        return _launched(self.process.pid)[0]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _launched(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        try:
            if b"cleanrl_worker.launcher" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
        except OSError:
            continue
    return found


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def look() -> SimpleNamespace:
    """Ways to look at processes: `is_alive(pid)`, `children(pid)`, `wait_for(condition)`."""
    return SimpleNamespace(is_alive=is_alive, children=children, wait_for=wait_for)


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like an installed distribution with the stand-in algorithm in it."""
    folder = tmp_path_factory.mktemp("plugins")
    shutil.copy(HERE / "standin.py", folder)
    info = folder / "standin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cleanrl_worker.algorithms]\nstandin = standin\n")
    return folder


@pytest.fixture(scope="session")
def worker_env(plugin_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CLEANRL_", "MOSAIC_", "WANDB_", "GYM_GUI_")) and name != "PYTHONDONTWRITEBYTECODE"
    }
    return {
        **inherited,
        "PYTHONPATH": str(plugin_path),
        "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("bytecode")),
        "CLEANRL_HEARTBEAT_SECONDS": "0.2",
        "CLEANRL_SCALARS_SECONDS": "0.2",
    }


@pytest.fixture
def start(worker_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start a worker on the stand-in; keyword arguments are its parameters. Nothing outlives the test."""
    runs: list[Run] = []

    def begin(
        *flags: str,
        steps: int = 5,
        folder: Path | None = None,
        env: dict[str, str] | None = None,
        algo: str = "plugin.standin",
        stdout: Any = subprocess.PIPE,
        **parameters: Any,
    ) -> Run:
        folder = folder or tmp_path / f"run-{len(runs)}"
        command = [sys.executable, "-m", "cleanrl_worker.cli", "--algo", algo, "--env-id", "Nowhere-v0"]
        command += ["--total-timesteps", str(steps), "--run-dir", str(folder)]
        command += ["--extras", json.dumps({"algo_params": parameters}), *flags]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**worker_env, **(env or {})},
            start_new_session=True,
        )
        runs.append(Run(process, folder))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()

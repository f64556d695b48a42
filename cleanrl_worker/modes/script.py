"""Run a bash script of several phases: `python -m cleanrl_worker.launcher cleanrl_worker.modes.script --script-path ...`.

A phase begins with each worker that the script starts (it says so on stdout: a line with the event `run_started`), or where
the script itself prints `@phase: <name>`; a script may use either. Steps, returns and checkpoints of the workers become those
of the run. What the workers leave lies in folders of their own under `phases/`; a script that is started again after it was cut
off starts them again in the same order, and each of them continues, or ends at once when it had completed.

The script must end with 0. If it does not, the run fails, and its message names the phase and, where a worker said why, the
reason. Workers that it left in the background are waited for; what else it left there is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from cleanrl_worker import processes, script_header
from cleanrl_worker.link import ChildLink
from cleanrl_worker.modes.child import supervised
from cleanrl_worker.runfolder import PHASES_DIR
from cleanrl_worker.script_header import Script, ScriptError
from cleanrl_worker.training.errors import BadConfig, RunEnded, Stopped

_MARK = re.compile(r"@phase:\s*(\S.*?)\s*")
_NOT_FOR_PHASES = ("CLEANRL_METRICS_PORT", "CLEANRL_METRICS_HOST", "CLEANRL_RUN_DIR", "CLEANRL_ATTEMPT")
"""The supervisor's own affairs: a worker of a phase that used them too would be in its way."""
_LEFT_BEHIND_SECONDS = 30.0
"""How long a worker in the background may take to say that it has started, when the script itself is over."""


class PhaseFailed(RunEnded):
    """The script ended in one of its phases."""

    exit_code = 1
    reason = "PhaseFailed"


class Course:
    """What is known of the script from what it prints. Pure: lines in, facts for the supervisor out."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.script = script
        self.folder = folder
        self.phase = -1
        self.name = ""
        self.marked = False
        """The script names its phases itself: its workers are parts of them."""
        self.running = 0
        """Workers that have said that they started, and not yet how they ended."""
        self.failed: list[str] = []
        """Phases of which a worker failed, whatever the script made of it."""
        self.failure: str | None = None
        self.refused = False
        """The last worker of the phase refused its configuration."""
        self._done = self._latest = 0
        self._worker_folder = ""
        self._first = 0
        """Where the current worker began to count its steps."""
        self._started = False

    @property
    def count(self) -> int:
        return max(self.script.phases or len(self.script.environments), self.phase + 1)

    @property
    def step(self) -> int:
        return self._done + self._latest

    @property
    def where(self) -> str:
        return "before its first phase" if self.phase < 0 else f"in phase {self.phase + 1} ({self.name})"

    def hear(self, line: str) -> list[dict[str, Any]]:
        mark = _MARK.fullmatch(line)
        if mark is not None:
            self.marked = True
            return [self._begin(mark[1][:200])]
        if not line.startswith("{"):
            return []
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return []
        payload = event.get("payload") if isinstance(event, dict) else None
        return self._event(event.get("event"), payload) if isinstance(payload, dict) else []

    def _begin(self, name: str) -> dict[str, Any]:
        self.phase += 1
        self.name = name
        self.failure, self.refused = None, False
        return {"kind": "stage_started", "index": self.phase, "count": self.count, "name": name, "step": self.step}

    def _event(self, name: Any, payload: dict[str, Any]) -> list[dict[str, Any]]:
        if name in ("run_completed", "run_failed", "run_cancelled"):
            self.running = max(0, self.running - 1)
        if name == "run_started":
            self.running += 1
            self._done, self._latest = self.step, 0
            self._worker_folder = str(payload.get("run_dir") or "")
            return [] if self.marked else [self._begin(str(payload.get("env_id"))[:200])]
        if name == "training_started" and isinstance(payload.get("step"), int):
            self._first = payload["step"]
            started, self._started = self._started, True
            return [] if started else [{"kind": "training_started", "step": self.step, "resumed": False}]
        if name == "scalars" and isinstance(payload.get("step"), int):
            self._latest = max(self._latest, payload["step"] - self._first)
            fact = {"kind": "scalars", "step": self.step, "total": self.script.total_timesteps}
            values = payload.get("values")
            values = {**(values if isinstance(values, dict) else {}), "script/phase": float(self.phase)}
            return [{**fact, "sps": payload.get("sps"), "episodes": payload.get("episodes"), "values": values}]
        if name == "checkpoint_saved" and isinstance(payload.get("path"), str):
            return [{"kind": "checkpoint_saved", **payload, "path": self._inside(payload["path"])}]
        if name == "run_failed":
            self.failed.append(self.name)
            self.failure = str(payload.get("message") or "")[:2000]
            self.refused = payload.get("reason") == BadConfig.reason
        return []

    def _inside(self, path: str) -> str:
        """A worker's path, relative to the run's folder instead of its own."""
        folder = Path(self._worker_folder)
        return str(folder.relative_to(self.folder) / path) if folder.is_relative_to(self.folder) else path


def environment(base: dict[str, str], folder: Path, config: Path) -> dict[str, str]:
    """What the script finds in its environment, over what the run's process has."""
    env = {name: value for name, value in base.items() if name not in _NOT_FOR_PHASES}
    wandb = env.get("WANDB_MODE", "offline")
    given = {
        "MOSAIC_CONFIG_FILE": str(config),
        "MOSAIC_RUN_DIR": str(folder),
        "MOSAIC_CUSTOM_SCRIPTS_DIR": str(folder / "config"),
        PHASES_DIR: str(folder / "phases"),
        "CLEANRL_RECORD_PATH": str(folder / "phases" / "record.json"),
        "TRACK_TENSORBOARD": "0" if env.get("CLEANRL_TENSORBOARD") == "0" else "1",
        "TRACK_WANDB": "1" if wandb == "online" else "0",
        "WANDB_MODE": wandb,
        "PYTHON": sys.executable,
    }
    path = env.get("PATH", os.defpath).split(os.pathsep)
    scripts = str(Path(sys.executable).parent)  # so that `cleanrl-worker` and `python` are those of this installation
    given["PATH"] = os.pathsep.join([scripts, *(entry for entry in path if entry != scripts)])
    return {**env, **given}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="script", description=__doc__.partition(":")[0], allow_abbrev=False)
    parser.add_argument("--script-path", required=True, help="a bash script, or the name of a shipped one")
    args = parser.parse_args(argv)
    return supervised("script", lambda link: _run(args.script_path, link))


def _run(given: str, link: ChildLink) -> int:
    folder = Path(os.environ.get("CLEANRL_RUN_DIR") or Path.cwd()).absolute()
    try:
        script = script_header.read(given)
    except ScriptError as error:
        raise BadConfig(f"{error}.") from error
    link.emit("hello", algo="script", pid=os.getpid(), supports=["pause"])
    for warning in script.warnings:
        link.emit("note", level="warning", message=warning)
    _check_syntax(script)
    course = Course(script, folder)
    env = environment(dict(os.environ), folder, _base_config(folder))
    (folder / "phases" / ".count").unlink(missing_ok=True)
    bash = _Bash(script, env, course, link)
    status = bash.run()
    if status != 0:
        said = course.failure or bash.last_words
        reason = f": {said}" if said else "; it printed nothing on stderr"
        failed = PhaseFailed(f"{script.path.name} ended with exit code {status} {course.where}{reason}")
        if course.refused:  # as with any run: to try again what was refused is of no use
            failed.exit_code = BadConfig.exit_code
        raise failed
    missing = (script.phases or 0) - (course.phase + 1)
    if missing > 0:
        link.emit("note", level="warning", message=f"{script.path.name} ended with 0, {missing} phases were not seen")
    result = {"mode": "script", "phases": course.phase + 1}
    link.emit("scalars", step=course.step, total=script.total_timesteps, sps=None, values={}, episodes=None)
    message = f"{script.path.name} ended with exit code 0; phases done: {course.phase + 1}"
    message += f", of which failed: {', '.join(course.failed)[:1000]}." if course.failed else "."
    link.emit("finished", step=course.step, model=None, result=result, message=message)
    return 0


def _check_syntax(script: Script) -> None:
    """A mistake in the last phase is better found before the first."""
    checked = subprocess.run(["bash", "-n", str(script.path.absolute())], capture_output=True, check=False)
    if checked.returncode != 0:
        said = checked.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise BadConfig(f"{script.path.name} is no bash script that can be run: {said}.")


def _base_config(folder: Path) -> Path:
    """The run's configuration as the script may use it for its phases: they train, whatever mode the run has."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        config = {}
    names = (
        "run_id",
        "algo",
        "env_id",
        "total_timesteps",
        "seed",
        "worker_id",
        "extras",
        "gpus",
        "tensorboard",
        "wandb",
    )
    base = {name: config[name] for name in names if config.get(name) is not None}
    own = ("mode", "script_path", "curriculum_schedule", "policy_path", "checkpoint_path", "checkpoint_sha256")
    extras = {name: value for name, value in dict(base.get("extras") or {}).items() if name not in own}
    base["extras"] = {
        **extras,
        "tensorboard_dir": str(folder / "tensorboard"),
    }  # one place for the curves of all phases
    (folder / "config").mkdir(exist_ok=True)
    path = folder / "config" / "base_config.json"
    path.write_text(json.dumps(base, indent=2) + "\n")
    return path


class _Bash:
    """The script's process. Lines come from a thread, requests from the link; one loop serves both."""

    def __init__(self, script: Script, env: dict[str, str], course: Course, link: ChildLink) -> None:
        self.script, self.env, self.course, self.link = script, env, course, link
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.stopping = False
        self.last_words = ""
        """The last line on stderr, from the script or from what it started."""

    def run(self) -> int:
        (self.course.folder / "phases").mkdir(exist_ok=True)
        process = subprocess.Popen(
            ["bash", str(self.script.path.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.course.folder,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()
        errors = threading.Thread(target=self._read_errors, args=(process.stderr,), daemon=True)
        errors.start()
        heard = time.monotonic()
        while True:
            while self.link.requests:
                self._obey(self.link.requests.popleft().get("cmd"), process.pid)
            if process.poll() is None or self.course.running or self.stopping:
                heard = time.monotonic()
            elif time.monotonic() - heard > _LEFT_BEHIND_SECONDS:
                self._say_what_is_left()
                break
            try:
                line = self.lines.get(timeout=0.1)
            except queue.Empty:
                continue
            if line is None:
                break
            print(line, flush=True)
            for fact in self.course.hear(line):
                self.link.emit(fact.pop("kind"), **fact)
        status = process.wait()
        errors.join(timeout=5)  # what a forgotten child may still hold open is not waited for
        if self.stopping:
            self.link.emit("stopped", step=self.course.step, checkpoint=None)
            raise Stopped("stopped as requested")
        return 128 - status if status < 0 else status

    def _say_what_is_left(self) -> None:
        """A monitor or a server that holds the script's output open would hold the run for ever. Whoever started us ends it."""
        message = f"{self.script.path.name} is over; what it left running in the background is ended"
        self.link.emit("note", level="warning", message=message)

    def _read(self, stream: Any) -> None:
        for line in stream:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def _read_errors(self, stream: Any) -> None:
        for line in stream:
            print(line, end="", file=sys.stderr, flush=True)
            self.last_words = line.strip()[:2000] or self.last_words

    def _obey(self, command: Any, group: int) -> None:
        ours = frozenset[processes.Identity]()
        if command == "stop":
            self.stopping = True
            processes.signal_descendants(signal.SIGCONT, ours)
            # bash goes at once, its workers save first: the end of their output is the end of the script
            os.killpg(group, signal.SIGTERM)
        elif command == "pause":
            processes.signal_descendants(signal.SIGSTOP, ours)
            self.link.emit("paused", step=self.course.step, checkpoint=None)
        elif command == "resume":
            processes.signal_descendants(signal.SIGCONT, ours)
            self.link.emit("resumed", step=self.course.step)


if __name__ == "__main__":
    raise SystemExit(main())

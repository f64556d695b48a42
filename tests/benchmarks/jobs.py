"""One training run of a benchmark: in a folder of its own, continued when it was cut off, its curve read back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from devcluster import ClusterError
from devcluster.binaries.errors import BinaryError
from devcluster.progress import StepFailed

_running: set[subprocess.Popen[bytes]] = set()


def environment(folder: Path, **changes: str) -> dict[str, str]:
    """The variables of a run on one core that keeps everything in `folder`."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
        "CLEANRL_RUN_ID": "benchmark",
        "CLEANRL_RUN_DIR": str(folder),
        "CLEANRL_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "CLEANRL_TENSORBOARD_DIR": str(folder / "tensorboard"),
        "GYM_GUI_FASTLANE_ONLY": "0",
        **changes,
    }


def train(arguments: Sequence[str], folder: Path, **changes: str) -> None:
    """Run `python ARGUMENTS` in `folder`, or go on from its newest checkpoint. Prints into `log.txt` there."""
    folder.mkdir(parents=True, exist_ok=True)
    often = {"CLEANRL_CHECKPOINT_EVERY_SECONDS": "120", "CLEANRL_CHECKPOINT_KEEP": "2", "CLEANRL_CONTINUE": "1"}
    environ = environment(folder, **{**often, **changes})
    with (folder / "log.txt").open("a") as log:
        command = [sys.executable, *arguments]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
        _running.add(process)
        try:
            if code := process.wait():
                raise subprocess.CalledProcessError(code, command)
        finally:
            _running.discard(process)


@contextmanager
def stopping_together() -> Iterator[None]:
    """A command that is told to stop ends its runs too: they save a checkpoint and go on from it next time."""

    def stop(number: int, _: object) -> NoReturn:
        for process in list(_running):
            process.terminate()
        for process in list(_running):
            process.wait(60)
        os._exit(128 + number)  # threads that wait for runs would only say that these were stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_by_exception() -> None:
    """Have SIGTERM end this command as Ctrl-C does, so that `subprocess.run` ends what it started."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)


def saying_when_stopped(main: Callable[[], int | None], what_next: str = "nothing of what it had begun is kept") -> int:
    """The exit code of a command. Ctrl-C, and a machine that can't carry a cluster, get a sentence instead of a traceback."""
    try:
        return main() or 0
    except (ClusterError, BinaryError, StepFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nstopped; {what_next}", file=sys.stderr)
        return 130


def read_curve(folder: Path, tag: str = "charts/episodic_return") -> tuple[list[int], list[float]]:
    """Steps and values of a scalar, by TensorBoard's own reader; nothing when it was never written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = (folder / "tensorboard").iterdir()
    accumulator = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    events = accumulator.Scalars(tag) if tag in accumulator.Tags()["scalars"] else []
    return [event.step for event in events], [event.value for event in events]

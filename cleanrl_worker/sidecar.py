"""What runs beside the worker and outlives it: TensorBoard, and whoever finishes the analytics of a worker that was killed.

    python -m cleanrl_worker.sidecar --run-dir RUN --runs-dir RUNS --index-dir INDEX -- --logdir LOGS --port 6006
    python -m cleanrl_worker.sidecar --run-dir RUN --runs-dir RUNS --index-dir INDEX --without-tensorboard
    python -m cleanrl_worker.sidecar --all-runs RUNS -- --port 6006

What follows `--` is TensorBoard's. A container's first process gets no default signal handling, and TensorBoard installs its
own only after seconds of imports: a pod whose worker ended early would wait out its whole grace period, and hold its GPU for
it. So TensorBoard is a child, ended the moment the pod ends, and started before anything else is loaded: on a full node each
tenth of a second of work here is a second that its first page comes later. The kubelet stops a sidecar after the worker, and
that is when the manifest of a worker that could not write its own end is written; its digest is left as this container's last
message.

`--all-runs` shows every run of a claim in one TensorBoard, under names that people can read.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

log = logging.getLogger(__name__)

FIRST_LOOK, NEXT_LOOKS = 60.0, 600.0
"""Seconds after which the index is written: the worker has its manifest by then; and then from time to time."""
FIRST_RESTART, LAST_RESTART = 5.0, 300.0
"""Seconds before a TensorBoard that ended by itself is started again, at first and at most."""
ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
"""Of TensorBoard: it multiplies no matrices, and the threads that wait to cost a third of its start, on large machines more."""
LINK_SECONDS = 30.0
"""How often the names of all runs are looked at."""
_UNFIT = re.compile(r"[^A-Za-z0-9_.=-]+")


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop.

    TensorBoard's own end is this program's end, with the same exit code; with a run to finish it is started again instead,
    because a sidecar that waits to be restarted when the worker is killed would leave that run without its end.
    """
    stopped = threading.Event()
    child: subprocess.Popen[bytes] | None = None

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()
        if child is not None:
            child.kill()  # it only reads: nothing can be lost

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    args, tensorboard = parse(sys.argv[1:] if arguments is None else arguments)
    code, wait = 0, FIRST_RESTART
    with contextlib.ExitStack() as stack:
        if args.all_runs is not None:
            tensorboard += ["--logdir", str(stack.enter_context(readable_names(args.all_runs, stopped)))]
        if args.index_dir is not None:
            threading.Thread(target=keep_index, args=(args.runs_dir, args.index_dir, stopped), daemon=True).start()
        if args.without_tensorboard:
            stopped.wait()
        while not stopped.is_set():
            child = subprocess.Popen([sys.executable, "-m", "cleanrl_worker.board", *tensorboard], env=ENVIRONMENT)
            if stopped.is_set():  # the signal came between the handler and the start
                child.kill()
            code = child.wait()
            if args.run_dir is None:  # there is nothing else to do here: the kubelet sees the end, and starts it again
                break
            if not stopped.is_set():
                log.error("TensorBoard ended with exit code %d; it is started again in %.0f s", code, wait)
                stopped.wait(wait)
                wait = min(wait * 2, LAST_RESTART)
    told = stopped.is_set()
    stopped.set()
    if told:
        finish(args)
    return 0 if told else code


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own arguments, and TensorBoard's."""
    parser = argparse.ArgumentParser(prog="python -m cleanrl_worker.sidecar", allow_abbrev=False)
    parser.add_argument("--run-dir", type=Path, help="the run whose manifest is finished when its worker could not")
    parser.add_argument("--runs-dir", type=Path, help="the folder with all runs of the claim")
    parser.add_argument("--index-dir", type=Path, help="where their index.json goes; needs --runs-dir")
    parser.add_argument("--message-path", type=Path, help="where the digest of a finished manifest is left")
    parser.add_argument("--without-tensorboard", action="store_true", help="only wait, and finish the run's manifest")
    parser.add_argument("--all-runs", type=Path, help="show all runs in this folder, instead of TensorBoard's --logdir")
    args, rest = parser.parse_known_args(arguments)
    if args.without_tensorboard and (rest or args.all_runs is not None):
        parser.error("--without-tensorboard shows nothing: leave --all-runs and TensorBoard's own arguments out")
    if (args.index_dir is None) != (args.runs_dir is None):
        parser.error("--index-dir and --runs-dir go together")
    return args, [argument for argument in rest if argument != "--"]


def finish(args: argparse.Namespace) -> None:
    """The worker is gone: end its manifest if it did not, then the index. Each is tried on its own."""
    from cleanrl_worker import analytics

    if args.run_dir is not None:
        try:
            digest = analytics.finalise(args.run_dir)
            if digest is not None and args.message_path is not None:
                args.message_path.write_text(json.dumps({"manifestSha256": digest}))
        except OSError as error:
            log.error("the run's manifest can't be finished: %s", error)  # noqa: TRY400 - a sentence is enough
    if args.index_dir is not None:
        write_index(args.runs_dir, args.index_dir)


def keep_index(runs: Path, into: Path, stopped: threading.Event) -> None:
    """Write the index now and then, until told to stop."""
    wait = FIRST_LOOK
    while not stopped.wait(wait):
        write_index(runs, into)
        wait = NEXT_LOOKS


def write_index(runs: Path, into: Path) -> None:
    """The index of all runs; a claim that does not take it costs nothing else."""
    from cleanrl_worker import analytics

    try:
        analytics.rebuild_index(runs, into)
    except OSError as error:
        log.error("index.json can't be written: %s", error)  # noqa: TRY400 - a sentence is enough


@contextlib.contextmanager
def readable_names(runs: Path, stopped: threading.Event) -> Iterator[Path]:
    """A folder of links to the runs' TensorBoard folders, kept current; TensorBoard names runs by folders."""
    farm = Path(tempfile.mkdtemp(prefix="all-runs-"))

    def keep() -> None:
        while not stopped.wait(LINK_SECONDS):
            link_runs(runs, farm)

    try:
        link_runs(runs, farm)
        threading.Thread(target=keep, daemon=True).start()
        yield farm
    finally:
        shutil.rmtree(farm, ignore_errors=True)  # the links, not what they lead to


def link_runs(runs: Path, farm: Path) -> None:
    """Bring the links to what is there. A run that has no events yet gets its link when it has."""
    from cleanrl_worker import analytics

    wanted: dict[str, Path] = {}
    try:
        for entry in analytics.indexed(runs):
            folder = runs / entry["path"]
            logs = folder / (entry["tensorboard_dir"] or "tensorboard")
            if logs.is_dir() and logs.resolve().is_relative_to(folder.resolve()):  # not out of its folder by a link
                name = readable(entry)
                wanted[name if name not in wanted else f"{name}__{len(wanted)}"] = only_folder(logs)
    except OSError as error:
        log.warning("%s can't be read: %s", runs, error)
        return
    with os.scandir(farm) as entries:
        present = {entry.name: Path(entry.path).readlink() for entry in entries}
    for name in [name for name, target in present.items() if wanted.get(name) != target]:
        (farm / name).unlink(missing_ok=True)
        del present[name]
    for name in wanted.keys() - present.keys():
        (farm / name).symlink_to(wanted[name], target_is_directory=True)


def only_folder(logs: Path) -> Path:
    """The folder that holds all of a run's events: algorithms make one of their own in the run's, with a longer name."""
    with os.scandir(logs) as entries:
        first = [entry for _, entry in zip(range(2), entries, strict=False)]
    return logs / first[0].name if len(first) == 1 and first[0].is_dir(follow_symlinks=False) else logs


def readable(entry: dict[str, object]) -> str:
    """A run's name for people: algorithm, environment, seed, and enough of its id to tell it from others."""
    parts = [entry["algo"], entry["env_id"], f"seed={entry['seed']}" if entry["seed"] is not None else None]
    told = "__".join(_UNFIT.sub("-", str(part))[:60] for part in parts if part)
    ident = _UNFIT.sub("-", str(entry["path"]))
    return f"{told}__{ident[-8:]}" if told else ident


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sys.exit(main())

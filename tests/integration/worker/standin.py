"""A small algorithm without torch, registered as a plug-in by the tests. Its flags choose how it behaves."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cleanrl_worker.link import ChildLink


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-id")
    parser.add_argument("--total-timesteps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--nan-at", type=int, default=-1)
    parser.add_argument("--exit-at", type=int, default=-1)
    parser.add_argument("--noise", type=int, default=0, help="bytes printed on stdout each step")
    parser.add_argument("--grandchild", action="store_true", help="start a process with a session of its own")
    parser.add_argument("--deaf", action="store_true", help="obey no request and no SIGTERM")
    parser.add_argument("--silent", action="store_true", help="never speak to the supervisor")
    parser.add_argument("--frames", action="store_true", help="publish to FastLane")
    parser.add_argument("--fill", type=int, default=0, help="bytes written to the run's folder each step")
    args, _ = parser.parse_known_args()

    link = ChildLink(None) if args.silent else ChildLink.from_env()
    if args.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.grandchild:
        orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path("grandchild.pid").write_text(str(orphan.pid))
    publisher = None
    if args.frames:
        from cleanrl_worker.fastlane.publisher import Publisher

        publisher = Publisher.from_env()
    link.emit("hello", algo="standin", pid=os.getpid(), supports=["pause", "checkpoint"])
    start = newest_step() if os.environ.get("CLEANRL_CONTINUE") == "1" else 0
    link.emit("training_started", step=start, resumed=start > 0)
    print("stepping", flush=True)
    paused = False
    step = start
    while step < args.total_timesteps:
        while link.requests and not args.deaf:
            command = link.requests.popleft()["cmd"]
            if command == "checkpoint":
                save(link, step, "request")
            elif command == "pause":
                link.emit("paused", step=step, checkpoint=save(link, step, "request"))
                paused = True
            elif command == "resume":
                link.emit("resumed", step=step)
                paused = False
            elif command == "stop":
                link.emit("stopped", step=step, checkpoint=save(link, step, "stop"))
                link.close()
                return 0
        if paused:
            time.sleep(0.01)
            continue
        step += 1
        if publisher is not None:
            publisher.step(1, 1.0)
        if args.noise:
            print("x" * args.noise, step, flush=True)
        if args.fill:
            with Path("ballast").open("ab") as file:
                file.write(b"x" * args.fill)
        if step == args.fail_at:
            print("\nUserWarning: this line is noise\n", file=sys.stderr)
            raise RuntimeError(f"the stand-in fails at step {step}")
        if step == args.nan_at:
            link.emit("failing", reason="NaNLoss", message=f"loss is nan at step {step}", step=step)
            link.close()
            return 3
        if step == args.exit_at:
            link.close()
            return 0
        link.emit(
            "scalars",
            step=step,
            total=args.total_timesteps,
            sps=1.0 / max(args.step_seconds, 1e-3),
            values={"charts/episodic_return": float(step), "losses/value_loss": float("nan")},
            episodes=step,
        )
        time.sleep(args.step_seconds)
    save(link, step, "final")
    link.emit("finished", step=step, model=None)
    link.close()
    return 0


def save(link: ChildLink, step: int, reason: str) -> str:
    folder = Path(os.environ["CLEANRL_CHECKPOINT_DIR"]) / f"step-{step:012d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(str(step))
    path = str(folder.relative_to(os.environ["CLEANRL_RUN_DIR"]))
    sha256 = hashlib.sha256(str(step).encode()).hexdigest()
    link.emit("checkpoint_saved", path=path, step=step, sha256=sha256, bytes=1, seconds=0.0, reason=reason)
    return path


def newest_step() -> int:
    saved = sorted(Path(os.environ["CLEANRL_CHECKPOINT_DIR"]).glob("step-*"))
    return int(saved[-1].name.removeprefix("step-")) if saved else 0

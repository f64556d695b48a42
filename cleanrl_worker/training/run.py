"""One training run, as its algorithm sees it.

    def train(args: Args, run: Run) -> None:
        envs = run.make_envs(args.num_envs)
        agent, optimizer = ...
        run.keep(agent=agent, optimizer=optimizer)     # all that a checkpoint must hold
        run.start()                                    # fresh, or where the checkpoint left off; run.step says where
        while run.step < args.total_timesteps:
            step = envs.step(policy(envs.obs))
            ...                                        # put the transition where a checkpoint finds it
            run.tick(step)                             # counts, logs episodes, obeys requests, saves when due
            ...
            run.guard(loss=loss)                       # a NaN ends the run here
            run.scalars({"losses/td_loss": loss})
        run.finish(model=...)

    def main(argv=None) -> int:
        return launch(Args, train, argv)

A checkpoint is only ever taken inside `tick` (and `finish`), so everything that is kept must be consistent there, and whatever
a resumed process needs to go on must be among the things kept: a local variable that lives across `tick` is a bug. `run.rng`
is kept already, as are the generators of Python, NumPy and torch, the step, and the environments of `make_envs`.

Nothing here waits for anybody: the supervisor's link, the frames and the checkpoint's writing happen beside training. Without
a supervisor all of it works the same, with the run's files under `runs/{run_name}`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cleanrl_protocol.limits import DISK_FULL
from cleanrl_worker import schedule
from cleanrl_worker.fastlane.publisher import Publisher
from cleanrl_worker.link import ChildLink
from cleanrl_worker.runfolder import reason_of
from cleanrl_worker.training import checkpoints, hub, kept
from cleanrl_worker.training.checkpoints import BadCheckpoint, CheckpointStore, Loaded, Saved
from cleanrl_worker.training.envs import Envs, Step, video_folder
from cleanrl_worker.training.errors import BadConfig, Diverged, RunEnded, Stopped, Unkept
from cleanrl_worker.training.memory import keep_freed_memory
from cleanrl_worker.training.normalise import statistics_in
from cleanrl_worker.training.writer import EventWriter

SCALARS_EVERY = 1.0
PROGRESS_EVERY = 10.0
MIN_INTERVAL = 30.0
"""Seconds between checkpoints that nobody asked for, at least."""

LONGEST_EVALUATION = 1_000_000
"""Steps that the episodes of a finished model may take together. Ten Atari games have at most a quarter of it."""

ArgsType = TypeVar("ArgsType")
EnvsType = TypeVar("EnvsType")


def launch(args_type: type[ArgsType], train: Callable[[ArgsType, Run], None], argv: list[str] | None = None) -> int:
    """Parse the flags, train, and return the exit code: 0 finished or stopped, 2 bad flags, 3 diverged."""
    import tyro

    keep_freed_memory()
    link = ChildLink.from_env()
    try:
        args = tyro.cli(args_type, args=argv)
    except SystemExit as ended:
        if ended.code:
            link.emit("failing", reason="BadConfig", message="The flags were refused; the log has the details.")
        link.close()
        raise
    run: Run | None = None

    def failed(ended: RunEnded) -> int:
        print(f"{args.exp_name}: {ended}", file=sys.stderr, flush=True)  # type: ignore[attr-defined] # CommonArgs
        link.emit("failing", reason=ended.reason, message=str(ended), step=run.step if run is not None else None)
        return ended.exit_code

    code = 0
    try:
        try:
            run = Run(args, link)
            train(args, run)
        except Stopped:
            code = 128 + run.signal_number if run is not None and run.signal_number else 0
        except RunEnded as ended:  # told before anything is released, which may fail too
            code = failed(ended)
        finally:
            if run is not None:
                run.close()
    except OSError as error:  # of a curve, which is written from within the loop
        if reason_of(error) != DISK_FULL:
            raise
        code = code or failed(Unkept(DISK_FULL, f"{error}. Free space on the volume; the last good checkpoint stands."))
    finally:
        link.close()
    return code


class Run:
    """See the module. `args` is an algorithm's Args; its `total_timesteps` is set right for an extended run."""

    def __init__(self, args: Any, link: ChildLink | None = None) -> None:
        self.args = args
        self.algo: str = getattr(type(args), "exp_name", "") or args.exp_name
        """The algorithm, by the name that its flags begin with: the experiment may be called something else."""
        self.link = link or ChildLink(None)
        environ = os.environ
        run_id = environ.get("CLEANRL_RUN_ID", "")
        self.name = f"{args.env_id}__{args.exp_name}__{args.seed}__{run_id or int(time.time())}".replace("/", "-")
        self.folder = Path("runs") / self.name
        self.base = Path(environ.get("CLEANRL_RUN_DIR") or Path.cwd())
        place = self.base / "runs" if (self.base / "runs").is_dir() else self.base
        if not environ.get("CLEANRL_RUN_DIR") and not os.access(place, os.W_OK):
            raise BadConfig(
                f"results go into runs/ of {self.base}, which can't be written: change to a folder of yours."
            )
        tensorboard = environ.get("CLEANRL_TENSORBOARD_DIR")
        self.writer = EventWriter(
            Path(tensorboard) / self.name if tensorboard else self.folder,
            enabled=environ.get("CLEANRL_TENSORBOARD") != "0",
        )
        self.store = CheckpointStore(
            Path(environ.get("CLEANRL_CHECKPOINT_DIR") or self.folder / "checkpoints"),
            keep=_number(environ, "CLEANRL_CHECKPOINT_KEEP", 3),
            on_saved=self._saved,
            on_error=self._not_saved,
        )
        self._every_steps = _number(environ, "CLEANRL_CHECKPOINT_EVERY_STEPS", 0)
        self._every_seconds = _number(environ, "CLEANRL_CHECKPOINT_EVERY_SECONDS", 300)
        self.publisher = Publisher.from_env()
        self.signal_number = 0
        self.step = 0
        """Environment steps taken, over all environments."""
        self.episodes = 0
        self._attended = 0
        """Calls of `attend`: a sign of life also where learning takes no steps in the environments."""
        if args.seed < 0:
            raise BadConfig(f"--seed must be at least 0, not {args.seed}.")
        self.rng = np.random.default_rng(args.seed)
        """The generator for everything an algorithm draws in NumPy."""
        self.caveat: str | None = None
        """What is to be said of its end besides that all steps were done."""
        self.resumed = False
        self.envs: Any = None
        self._stage: int | None = None
        self._weights_path = Path()
        self._kept: dict[str, Any] = {}
        self._latest: dict[str, float] = {}
        self._wandb: Any = None
        self._handlers: dict[int, Any] = {}
        random.seed(args.seed)
        np.random.seed(args.seed % 2**32)  # environments of others may draw from the global generator
        if getattr(args, "cuda", False) or "torch" in sys.modules:  # JAX's algorithms have no such flag
            self._seed_torch()

        self.link.emit("hello", algo=self.algo, pid=os.getpid(), supports=["pause", "checkpoint"])
        self.verb, self._loaded, self._weights = self._find_checkpoint()
        if self.verb == "extend" and self._loaded is not None:
            args.total_timesteps += self._loaded.step
        elif self._loaded is not None and environ.get("CLEANRL_RESUME_PATH"):
            # A later attempt of an extended run: its checkpoints know the whole length, the flag only what was added.
            args.total_timesteps = int(self._loaded.meta["args"]["total_timesteps"])
        elif self._weights is not None:
            self.step = self._weights[1]
            args.total_timesteps += self.step
        now = time.monotonic()
        self._began_at = self._saved_at = self._told_at = self._printed_at = now
        self._began_step = self._saved_step = self._told_step = 0
        self._look_at = now

    # ---------------------------------------------------------------- setting up

    def make_envs(self, num_envs: int, **options: Any) -> Envs:
        """The run's environments (see `Envs.make`): seeded, recorded when asked for, and kept in checkpoints."""
        video = video_folder(self.name) if self.args.capture_video else None
        render = bool(self.publisher.shown_slots)
        if os.environ.get("CLEANRL_CURRICULUM"):
            options["schedule"] = _read_schedule(os.environ["CLEANRL_CURRICULUM"])
        seed = self.args.seed  # of every episode, where all are to be the same
        envs = Envs.make(self.args.env_id, num_envs, render=render, video=video, fixed_seed=seed, **options)
        self.envs = envs
        self.keep(envs=envs)
        return envs

    @property
    def env_ids(self) -> list[str]:
        """The environments that `make_envs` makes: of a curriculum all, in order."""
        given = os.environ.get("CLEANRL_CURRICULUM")
        return [stage.env_id for stage in _read_schedule(given)] if given else [self.args.env_id]

    @property
    def saved_agent(self) -> Any:
        """The weights that the run goes on from, as they were saved; None for a fresh run."""
        if self._loaded is not None:
            return self._loaded.state["kept"].get("agent")
        return None if self._weights is None else self._weights[0]

    def use_envs(self, envs: EnvsType) -> EnvsType:
        """Take environments that were made elsewhere (envpool, pettingzoo) as the run's own: reset, shown and kept."""
        if self.args.capture_video:
            self.note(
                f"Episodes of {self.args.env_id} can't be recorded: --capture-video has no effect.", level="warning"
            )
        self.envs = envs
        self.keep(envs=envs)
        return envs

    def keep(self, **things: Any) -> None:
        """Name what a checkpoint must hold: anything with `state_dict` and `load_state_dict`, NumPy arrays and torch
        tensors (restored in place), NumPy generators, and dicts of plain values or arrays (restored in place)."""
        for name, thing in things.items():
            if not kept.keepable(thing):
                raise TypeError(
                    f"{name}: a {type(thing).__name__} can't be kept; give it state_dict and load_state_dict"
                )
            self._kept[name] = thing

    def start(self) -> None:
        """Begin: reset the environments, then go to where the checkpoint left off if there is one."""
        self._check_args()
        if self.envs is not None:
            self.envs.reset(self.args.seed)
        if self._loaded is not None:
            self._restore(self._loaded)
        elif self._weights is not None:
            self._restore_weights(*self._weights)
        self._rewind_events()
        if self.args.track:
            self._track()
        if self.verb != "continue":
            self.writer.table("hyperparameters", dataclasses.asdict(self.args))
        self._catch_signals()
        self._began_at = self._saved_at = self._told_at = self._printed_at = time.monotonic()
        self._began_step = self._saved_step = self._told_step = self.step
        self.link.emit("training_started", step=self.step, resumed=self.resumed)
        self._show_stage()

    def _check_args(self) -> None:
        if os.environ.get("CLEANRL_CURRICULUM") and getattr(self.envs, "stages", None) is None:
            raise BadConfig(
                f"{self.algo} can't follow a curriculum: it makes its environments by itself. Use --algo ppo."
            )
        if hasattr(self.args, "upload_model"):
            hub.check(self.args)
        if self.args.total_timesteps < 1:
            raise BadConfig(f"--total-timesteps must be at least 1, not {self.args.total_timesteps}.")
        if self.verb == "extend" and hasattr(self.args, "num_iterations"):
            done = self.step if self._loaded is None else self._loaded.step
            batch = self.args.batch_size
            if self.args.num_iterations <= done // batch:
                least = batch * getattr(self.args, "n_iteration", 1)  # PPG's rollouts come in phases
                raise BadConfig(
                    f"--total-timesteps {self.args.total_timesteps - done} after the {done} that were done: not all of "
                    f"{least} steps would be taken, and nothing learned. Use at least {least}."
                )

    # ---------------------------------------------------------------- while training

    def tick(self, step: Step) -> None:
        """One step of all environments was taken and stored. Raises Stopped when the run is to end here."""
        self.count(step)
        self.attend()

    def count(self, step: Step, processes: int = 1) -> None:
        """The first half of `tick`: count the step, in each of so many processes, log its episodes, show a frame."""
        n = len(step.rewards)
        self.step += n * processes
        for episode in step.episodes:
            self.episode(episode.ret, episode.length, episode.stage)
        if step.episodes:
            self._show_stage()
        self.publisher.step(n, step.rewards)
        if self.publisher.frame_due():
            self._show_frame()

    def attend(self) -> None:
        """The second half of `tick`: obey requests, save when due, report. Everything kept must be consistent here."""
        self._attended += 1
        if self.link.requests or time.monotonic() >= self._look_at:
            self._look()

    def episode(self, ret: float, length: int, stage: int | None = None) -> None:
        """Log a finished episode at the current step. `tick` does so for the environments' own."""
        if not math.isfinite(ret):
            raise Diverged("NaNReturn", f"An episode's return is {ret} at step {self.step}. {self._last_good()}")
        self.episodes += 1
        self.publisher.episode(ret, length)
        figures = {"charts/episodic_return": ret, "charts/episodic_length": float(length)}
        if stage is not None:
            figures |= {"curriculum/stage": float(self._stage or 0), f"curriculum/return_{stage}": ret}
        self.scalars(figures)

    def _show_stage(self) -> None:
        """Tell which stage of the curriculum is the current one, if there is one and it is not told yet."""
        stages = getattr(self.envs, "stages", None)
        if stages is None or stages.stage == self._stage:
            return
        self._stage = index = stages.stage
        name, count = stages.name(index), len(stages.stages)
        self.scalars({"curriculum/stage": float(index)})
        print(f"{self.algo}: stage {index + 1} of {count} at step {self.step}: {name}", flush=True)
        self.link.emit("stage_started", index=index, count=count, name=name, step=self.step)

    def scalars(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars at the current step (or `step`) and remember them for the supervisor."""
        at = self.step if step is None else step
        self.writer.scalars(values, at)
        self._latest.update(values)
        if self._wandb is not None:
            self._wandb.log({**values, "global_step": at})

    def guard(self, **values: float) -> None:
        """End the run if a loss is no longer finite. Call it after each update and before the next `tick`, with numbers
        that are on the CPU anyway, so that no checkpoint holds what came of the bad update."""
        for name, value in values.items():
            if not math.isfinite(value):
                raise Diverged("NaNLoss", f"{name} is {value} at step {self.step}. {self._last_good()}")

    @property
    def restored(self) -> bool:
        """After `start`: whether all that is kept came out of a checkpoint. A model file only restores `agent`."""
        return self._loaded is not None

    @property
    def sps(self) -> int:
        """Environment steps per second since this process started to train."""
        return int((self.step - self._began_step) / max(time.monotonic() - self._began_at, 1e-9))

    def note(self, message: str, level: str = "info") -> None:
        """Say something to whoever reads the log and to the supervisor."""
        print(f"{self.algo}: {message}", file=sys.stderr if level == "warning" else sys.stdout, flush=True)
        self.link.emit("note", level=level, message=message)

    # ---------------------------------------------------------------- the end

    def finish(self, model: Callable[[], Any] | None = None) -> None:
        """Training is over: the last checkpoint, and with --save-model the model file and its evaluation.

        `model` returns what goes into the file: a state_dict, or what upstream saves for the algorithm; bytes (flax's) are
        written as they are.
        """
        self._print_progress(final=True)
        if self._checkpoint("final", wait=True) is None:
            raise self._unkept()
        path = None
        if model is not None and getattr(self.args, "save_model", False):
            path = self._save_model(model())
        self._tell(force=True)
        facts = {
            "step": self.step,
            "model": path and checkpoints.relative(path, self.base),
            **({"message": f"The run did all its steps. {self.caveat}"} if self.caveat else {}),
            **self._unfinished_course(),
        }
        self.link.emit("finished", **facts)

    def close(self) -> None:
        """Release everything. Safe to call at any time, once."""
        self.link.flush()  # how it ended is told by now; some environments crash the process when they are closed
        self.store.wait()
        self.writer.close()
        self.publisher.close()
        if self.envs is not None:
            self.envs.close()
        if self._wandb is not None:
            self._wandb.finish()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _save_model(self, model: Any) -> Path:
        path = self.write_model(model, f"{self.args.exp_name}.cleanrl_model")
        options = {
            name: getattr(self.args, name)
            for name in ("max_episode_steps", "procedural_generation", "view_size")
            if hasattr(self.args, name)
        }
        if not options.get("procedural_generation", True):  # what was learned on one level is played on it
            options["fixed_seed"] = self.envs.envs[0].get_wrapper_attr("fixed_seed")
        returns = self._evaluate(path, options)
        for index, ret in enumerate(returns):
            self.scalars({"eval/episodic_return": ret}, step=index)
        if self.args.upload_model:
            hub.upload(self.args, self.folder, path, returns)
        return path

    def _evaluate(self, path: Path, options: dict[str, Any]) -> list[float]:
        """The returns of ten episodes; none when they do not end. Requests are obeyed meanwhile: it may take minutes."""
        from cleanrl_worker.evals import evaluate

        taken = 0

        def on_step(count: int) -> None:
            nonlocal taken
            taken += count
            if taken > LONGEST_EVALUATION:
                raise _Endless
            self.attend()

        seed = self.args.seed + 10_000
        try:
            return evaluate(
                self.algo, path, self.args.env_id, episodes=10, seed=seed, on_step=on_step, **options
            ).returns
        except _Endless:
            self.note(
                f"The model is saved, but not evaluated: ten episodes were not over after {LONGEST_EVALUATION:,} steps. "
                f"{self.args.env_id} has no time limit that ends them: give it one, with --max-episode-steps where the "
                "algorithm has that flag, or where it is registered.",
                level="warning",
            )
            return []

    def write_model(self, model: Any, name: str) -> Path:
        """Write a model file into the run's folder, whole or not at all."""
        from cleanrl_worker.agents.loading import write_model

        path = self.folder / name.replace("/", "-")
        write_model(model, path)
        print(f"{self.algo}: model saved to {path}", flush=True)
        return path

    # ---------------------------------------------------------------- requests, checkpoints, reports

    def _look(self) -> None:
        """What need not be looked at in every step."""
        while self.link.requests:
            self._obey(self.link.requests.popleft())
        now = time.monotonic()
        self._look_at = now + 0.05
        if self._checkpoint_due(now):
            self._checkpoint("interval")
        if now - self._told_at >= SCALARS_EVERY:
            self._tell()
        if now - self._printed_at >= PROGRESS_EVERY:
            self._print_progress()

    def _checkpoint_due(self, now: float) -> bool:
        waited = now - self._saved_at
        if waited < MIN_INTERVAL or self.store.busy:
            return False
        by_steps = self._every_steps > 0 and self.step - self._saved_step >= self._every_steps
        return by_steps or (self._every_seconds > 0 and waited >= self._every_seconds)

    def _obey(self, request: dict[str, Any]) -> None:
        match request.get("cmd"):
            case "checkpoint":
                self._checkpoint("request", wait=True)
            case "stop":
                self._stop()
            case "pause":
                self._pause()
            case "resume":
                self.link.emit("resumed", step=self.step)
            case other:
                self.note(f"An unknown request was ignored: {other!r}", level="warning")

    def _stop(self) -> None:
        path = self._checkpoint("stop", wait=True)
        self._tell(force=True)
        self.link.emit("stopped", step=self.step, checkpoint=path)
        print(f"{self.algo}: stopped at step {self.step}, checkpoint {path}", flush=True)
        raise Stopped("stopped as requested")

    def _pause(self) -> None:
        """Checkpoint, then stand still until told otherwise."""
        path = self._checkpoint("request", wait=True)
        self._tell(force=True)
        self.link.emit("paused", step=self.step, checkpoint=path)
        paused_at = time.monotonic()
        while True:
            if not self.link.requests:
                if not self.link.connected and not self.signal_number:
                    raise RunEnded("The supervisor is gone while the run was paused; its checkpoint stands.")
                time.sleep(0.05)
                continue
            request = self.link.requests.popleft()
            if request.get("cmd") == "resume":
                break
            if request.get("cmd") != "pause":
                self._obey(request)
        waited = time.monotonic() - paused_at
        self._began_at += waited
        self._told_at += waited
        self.link.emit("resumed", step=self.step)

    def _checkpoint(self, reason: str, *, wait: bool = False) -> str | None:
        """Save the state. Returns the path of the newest checkpoint, relative to the run's folder, when `wait`."""
        self._saved_at, self._saved_step = time.monotonic(), self.step
        self.store.wait()
        before = self.store.last
        meta = {"algo": self.algo, "env_id": self.args.env_id, "args": _plain_args(self.args), **self._stage_names()}
        self.store.save(self.step, self._state(), meta, reason, wait=wait)
        if not wait or self.store.last is before:
            return None
        assert self.store.last is not None
        return checkpoints.relative(self.store.last.path, self.base)

    def _unfinished_course(self) -> dict[str, str]:
        """What to say of a curriculum that has run out of steps before its last stage."""
        stages = getattr(self.envs, "stages", None)
        if stages is None or stages.stage + 1 == len(stages.stages):
            return {}
        where = f"stage {stages.stage + 1} of {len(stages.stages)} ({stages.name(stages.stage)})"
        return {
            "message": f"The run did all its steps, and they ended in {where}: the later stages were never reached."
        }

    def _stage_names(self) -> dict[str, Any]:
        stages = getattr(self.envs, "stages", None)
        return {} if stages is None else {"stages": [stage.env_id for stage in stages.stages]}

    def _saved(self, saved: Saved) -> None:
        self.link.emit("checkpoint_saved", **checkpoints.saved_facts(saved, self.base))

    def _not_saved(self, message: str) -> None:
        print(f"{self.algo}: {message}", file=sys.stderr, flush=True)
        self.link.emit("checkpoint_failed", step=self.step, message=message)

    def _unkept(self) -> RunEnded:
        """All steps are done and what they came to is not on disk: that is no success."""
        error = self.store.refusal
        assert error is not None
        return Unkept(
            reason_of(error),
            f"All steps were done, and the final checkpoint at step {self.step} could not be written: {error}. "
            "The last good checkpoint stands; the steps since then have to be done again.",
        )

    def _state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "episodes": self.episodes,
            "random": kept.random_state(),
            "rng": dict(self.rng.bit_generator.state),
            "tensorboard": self.writer.position(),
            "kept": {name: kept.take(thing) for name, thing in self._kept.items()},
        }

    def _tell(self, force: bool = False) -> None:
        """The newest figures to the supervisor and the metrics."""
        now = time.monotonic()
        if not self._latest and not force:
            return
        rate = (self.step - self._told_step) / max(now - self._told_at, 1e-9)
        self._told_at, self._told_step = now, self.step
        self.publisher.scalars(self._latest)
        finite = {tag: float(value) for tag, value in self._latest.items() if math.isfinite(value)}
        self.link.emit(
            "scalars",
            step=self.step,
            total=self.args.total_timesteps,
            sps=rate,
            values=finite,
            episodes=self.episodes,
            attended=self._attended,
        )

    def _print_progress(self, final: bool = False) -> None:
        self._printed_at = time.monotonic()
        total = self.args.total_timesteps
        ret = self._latest.get("charts/episodic_return")
        shown = "" if ret is None else f"  return {ret:.2f}"
        print(
            f"{self.algo}: {'finished at ' if final else ''}step {self.step}/{total} ({100 * self.step / max(total, 1):.1f} %)"
            f"{shown}  {self.sps} steps/s",
            flush=True,
        )

    def _show_frame(self) -> None:
        envs = self.envs
        assert envs is not None
        self.publisher.frame(lambda: envs.render(self.publisher.shown_slots))

    def _last_good(self) -> str:
        self.store.wait()
        last = self.store.last
        where = last.path if last else (self._loaded.path if self._loaded is not None else None)
        if where is None:
            return "There is no checkpoint from before it: lower the learning rate and start again."
        shown = checkpoints.relative(where, self.base)
        return f"The last good checkpoint is {shown}: resume from it with a lower learning rate."

    # ---------------------------------------------------------------- resuming

    def _find_checkpoint(self) -> tuple[str, Loaded | None, tuple[Any, int] | None]:
        """What to resume from: (verb, full checkpoint, bare weights and their step)."""
        root = self.store.root
        if os.environ.get("CLEANRL_CONTINUE") == "1":
            loaded = checkpoints.newest_valid(root, note=lambda message: self.note(message, level="warning"))
            if loaded is not None:
                self._check_same_run(loaded)
                self.store.adopt(loaded)
                return "continue", loaded, None
            if (shelf := self.store.put_aside()) is not None:
                shown = checkpoints.relative(shelf, self.base)
                self.note(f"None of the checkpoints can be used; they are now in {shown}.", level="warning")
            if not os.environ.get("CLEANRL_RESUME_PATH"):
                self.note("There is no checkpoint to continue from: starting afresh.")
        given = os.environ.get("CLEANRL_RESUME_PATH")
        if not given:
            return "", None, None
        expected = os.environ.get("CLEANRL_CHECKPOINT_SHA256") or None
        try:
            found = checkpoints.find(Path(given), expected, lambda message: self.note(message, level="warning"))
        except (BadCheckpoint, OSError) as error:
            raise BadConfig(f"{error} Choose another checkpoint or model file.") from error
        if isinstance(found, Path):
            from cleanrl_worker.agents.loading import read_model, weights_and_step

            self._weights_path = found
            model = read_model(found)
            self._check_same_returns(found, model.get("args") if isinstance(model, dict) else None)
            return "extend", None, weights_and_step(model)
        self._check_same_run(found)
        return "extend", found, None

    def _check_same_run(self, loaded: Loaded) -> None:
        name = self.args.exp_name  # which stood in the algorithm's place once
        algo = name if loaded.meta.get("algo") == name else self.algo
        problem = checkpoints.mismatch(loaded, algo, self.args.env_id)
        if problem is not None:
            raise BadConfig(problem)
        self._check_same_returns(loaded.path, loaded.meta.get("args"))

    def _check_same_returns(self, path: Path, flags: Any) -> None:
        """C51's weights fit networks for other returns as well, and would mean other values there."""
        for name in ("v_min", "v_max"):
            was = flags.get(name) if isinstance(flags, dict) else None
            if isinstance(was, int | float) and was != (now := getattr(self.args, name, was)):
                flag = f"--{name.replace('_', '-')}"
                raise BadConfig(f"{path} was made with {flag} {was:g}, not {now:g}: use it with the same.")

    def _restore(self, loaded: Loaded) -> None:
        state = loaded.state
        for name, thing in self._kept.items():
            if name not in state["kept"]:
                self.note(f"The checkpoint has no {name}: it starts afresh.", level="warning")
                continue
            try:
                kept.put_back(thing, state["kept"][name])
            except (ValueError, KeyError, RuntimeError) as error:
                message = f"{name} of the checkpoint {loaded.path} does not fit this run: {error}"
                if self.verb == "continue" or name == "agent":
                    raise BadConfig(f"{message}. Use the flags it was made with.") from error
                self.note(f"{message}. It starts afresh.", level="warning")
        self.step, self.episodes = int(state["step"]), int(state["episodes"])
        self.rng.bit_generator.state = state["rng"]
        kept.put_random_state(state["random"])
        if self.envs is not None and self.envs.restarted:
            self.note(
                f"The state of {self.args.env_id} can't be restored: {len(self.envs.restarted)} of {self.envs.num_envs} "
                "environments begin a fresh episode. The curve continues, but not bit for bit.",
                level="warning",
            )
        self.resumed = True
        self.link.emit(
            "checkpoint_loaded",
            path=checkpoints.relative(loaded.path, self.base),
            step=self.step,
            sha256=loaded.sha256,
            verb=self.verb,
            weights_only=False,
        )

    def _rewind_events(self) -> None:
        """Leave of the curves what the checkpoint knows of. An attempt that saved none leaves nothing."""
        position = {} if self._loaded is None else self._loaded.state["tensorboard"]
        if self.verb == "continue" or any((self.writer.folder / name).exists() for name in position):
            assert self._loaded is not None
            self.writer.rewind(position, self._loaded.step)
        elif os.environ.get("CLEANRL_CONTINUE") == "1":
            self.writer.rewind({}, 0)

    def _restore_weights(self, weights: Any, step: int) -> None:
        from cleanrl_worker.agents.loading import load_into

        path = self._weights_path
        try:
            load_into(self._kept["agent"], weights, whole=True)
            statistics = statistics_in(weights) if getattr(self.envs, "obs_normaliser", None) is not None else None
            if statistics is not None:  # without them, the policy would not know what it is shown
                self.envs.go_on_with_normaliser(statistics)
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            laid_out = isinstance(error, KeyError | ValueError | RuntimeError)
            problem = (
                error if laid_out else f"they are a {type(weights).__name__}, which another algorithm may have saved"
            )
            raise BadConfig(
                f"The weights in {path} do not fit {self.algo} on {self.args.env_id}: {problem}. "
                "Give a model of the same algorithm, trained where observations and actions have the same shapes, and the "
                "flags that its network was made with."
            ) from error
        self.resumed = True
        also, lost = ("", "") if statistics is None else (", with the statistics of observations", "other ")
        self.note(
            f"{path} holds weights only{also}: optimizer, schedules, random numbers, {lost}statistics, replay and "
            "environments start afresh."
        )
        digest = checkpoints.file_sha256(path)
        shown = checkpoints.relative(path, self.base)
        self.link.emit("checkpoint_loaded", path=shown, step=step, sha256=digest, verb="extend", weights_only=True)

    # ---------------------------------------------------------------- the rest

    def _seed_torch(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(self.args.seed)
            torch.backends.cudnn.deterministic = getattr(self.args, "torch_deterministic", True)

    def _track(self) -> None:
        import wandb

        arguments: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT") or self.args.wandb_project_name,
            "entity": os.environ.get("WANDB_ENTITY") or self.args.wandb_entity,
            "config": dataclasses.asdict(self.args),
            "name": os.environ.get("WANDB_NAME") or self.name,
            "id": os.environ.get("WANDB_RUN_ID") or os.environ.get("CLEANRL_RUN_ID"),
            "resume": "allow",
        }
        try:
            self._wandb = wandb.init(**arguments)
        except wandb.Error as error:  # a wrong key, a project that is not ours, a server that answers nonsense
            self.note(f"W&B does not take the run ({type(error).__name__}); it is kept offline, and training goes on.")
            try:
                self._wandb = wandb.init(**arguments, mode="offline")
            except wandb.Error as refused:  # the client itself: a name that no project can have
                raise BadConfig(f"W&B's client does not take the run: {refused}.") from refused
        self._wandb.define_metric("*", step_metric="global_step")

    def _catch_signals(self) -> None:
        """TERM and INT ask for a stop; a second one ends the process in the usual way."""

        def ask(number: int, _frame: Any) -> None:
            self.signal_number = number
            self.link.requests.append({"cmd": "stop"})
            signal.signal(number, signal.SIG_DFL)

        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._handlers[number] = signal.signal(number, ask)
            except ValueError:  # not the main thread: whoever started us keeps the signals
                return


class _Endless(Exception):
    """An evaluation has taken more steps than it may."""


# ---------------------------------------------------------------- what is given, read


def _read_schedule(text: str) -> list[schedule.Stage]:
    try:
        return schedule.parse(json.loads(text))
    except ValueError as error:
        raise BadConfig(f"curriculum_schedule: {error}.") from error


def _plain_args(args: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(args).items() if not name.startswith("wandb_")}


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(float(environ.get(name, default)))
    except ValueError as error:
        raise BadConfig(f"{name} must be a number, not {environ[name]!r}.") from error

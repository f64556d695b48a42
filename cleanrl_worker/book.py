"""The run's records: events, manifest, termination record, progress line, health, all from what the child says.

`Book` is the supervisor's watcher. It runs in the supervisor's loop; only `run_state` is called from other threads.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cleanrl_protocol.limits import DISK_FULL, RUN_FOLDER
from cleanrl_protocol.record import MAX_TRANSITIONS, MAX_URL, CheckpointRef, TerminationRecord, Transition
from cleanrl_worker import analytics, bridge, record, telemetry, wandb_mode
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.fastlane import metrics
from cleanrl_worker.logs import DEFAULT_CAP, DEFAULT_KEEP
from cleanrl_worker.progress import ProgressLine
from cleanrl_worker.registry import Algorithm
from cleanrl_worker.runfolder import RunFolder
from cleanrl_worker.supervise import DEFAULT_GRACE_SECONDS, Ending, Exit
from cleanrl_worker.telemetry import EventLog

log = logging.getLogger(__name__)

DEFAULT_HEARTBEAT_SECONDS = 30.0
DEFAULT_SCALARS_SECONDS = 5.0
"""How often figures are reported, until the gateway says when it would like to have them."""
DEFAULT_STALL_SECONDS = 1800.0
"""Without a step for so long, `/healthz` fails. Generous: some algorithms learn for a long time between two rollouts."""
_MAX_SCALARS = 64
_LINK_SECONDS = 5.0
"""How often W&B's own lines are searched for the run's address, until it is there."""


@dataclass(frozen=True)
class RunOptions:
    """How this process runs, as opposed to what: none of it changes the result."""

    run_dir: Path | None = None
    go_on: bool = False
    """Continue an earlier start in the same folder."""
    force: bool = False
    """Start afresh in a folder that holds a finished run."""
    grpc_target: str | None = None
    record_path: Path | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    heartbeat_seconds: float = DEFAULT_HEARTBEAT_SECONDS
    scalars_seconds: float = DEFAULT_SCALARS_SECONDS
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    stall_seconds: float = DEFAULT_STALL_SECONDS
    log_cap: int = DEFAULT_CAP
    log_keep: int = DEFAULT_KEEP
    attempt: int = 1


@dataclass
class _Figures:
    """The newest of everything the child has said."""

    step: int | None = None
    attended: int | None = None
    """What it counts beside steps: learning may go on for hours without one."""
    total: int | None = None
    sps: float | None = None
    episodes: int | None = None
    values: dict[str, float] = field(default_factory=dict)
    rolling_return: float | None = None
    checkpoint: dict[str, Any] | None = None
    checkpoint_at: float | None = None
    status: str = "starting"
    stepped_at: float = field(default_factory=time.monotonic)

    @property
    def episode_return(self) -> float | None:
        return self.values.get("charts/episodic_return")


class Book:
    """Keeps the run's records: events, manifest, termination record, progress line, health. The supervisor's watcher."""

    def __init__(
        self,
        config: CleanRLWorkerConfig,
        options: RunOptions,
        folder: RunFolder,
        events: EventLog,
        progress: ProgressLine,
    ) -> None:
        self.config = config
        self.options = options
        self.folder = folder
        self.events = events
        self.session: Any = None
        self.command: list[str] = []
        self.requirements: list[str] = []
        self.wandb: dict[str, Any] = {}
        self.reproducibility: dict[str, Any] = {}
        self.module: str | None = None
        """What the launcher was told to start."""
        self.summary: dict[str, Any] = {}
        """What `run_completed` says besides: of a dry run, what would have run."""
        self._shown = config.to_dict()
        self._progress = progress
        # What counts something else than its own steps says how much of it there is, or that nobody knows.
        trains = config.mode not in ("policy_eval", "interactive", "script")
        self._figures = _Figures(total=config.total_timesteps if trains else None)
        self._times: dict[str, float] = {}
        self._transitions = [Transition(state="INIT", at=time.time())]
        self._manifest_sha256: str | None = None
        self._heartbeat_at = self._shared_at = self._linked_at = 0.0
        self._reported_at = -math.inf
        self._mute = False
        self._shared = metrics.MetricsReader(config.run_id)
        self._event_files: bridge.EventFiles | None = None
        self._scalars_waiting = False

    # -- the run's course

    def started(self, algorithm: Algorithm, go_on: bool) -> None:
        config = self.config
        now = time.monotonic()
        self._heartbeat_at = now + self.options.heartbeat_seconds
        self._times["started"] = time.time()
        self.module = algorithm.target
        self._mute = algorithm.kind != "own"
        if self._mute:
            self._figures.status = "running"
            self._event_files = bridge.EventFiles([self.folder.path / (config.tensorboard_dir or "runs")])
        self._enter("EXEC")
        self._emit(
            telemetry.RUN_STARTED,
            worker_type="cleanrl",
            algo=config.algo,
            env_id=config.env_id,
            seed=config.seed,
            total_timesteps=config.total_timesteps,
            module=self.module,
            mode=config.mode,
            run_dir=str(self.folder.path),
            continued=go_on,
            attempt=self.options.attempt,
            **({"dry_run": True} if config.dry_run else {}),
        )
        self.write_manifest()

    def hear(self, fact: dict[str, Any]) -> None:
        if fact["kind"] == "hello":
            self._mute = False
        handler = {
            "training_started": self._training_started,
            "scalars": self._scalars,
            "stage_started": self._stage_started,
            "eval_batch": self._eval_batch,
            "checkpoint_saved": self._checkpoint_saved,
            "checkpoint_failed": self._checkpoint_failed,
            "checkpoint_loaded": self._checkpoint_loaded,
            "paused": self._paused,
            "resumed": self._resumed,
            "note": self._note,
        }.get(fact["kind"])
        if handler is not None:
            handler(fact)

    def tick(self) -> None:
        now = time.monotonic()
        if self._mute and now >= self._shared_at:
            self._shared_at = now + 1.0
            self._look_at_shared_figures()
        if now >= self._linked_at:
            self._linked_at = now + _LINK_SECONDS
            self._look_for_link()
        if self._scalars_waiting and now >= self._report_at():
            self._emit_scalars(now)
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._heartbeat_interval()
            self._emit(
                telemetry.HEARTBEAT,
                status=self._figures.status,
                algo=self.config.algo,
                env_id=self.config.env_id,
                step=self._figures.step,
                sps=self._figures.sps,
            )
        figures = self._figures
        self._progress.draw(figures.step, figures.total, figures.sps, figures.episode_return, figures.status)

    def finish(self, ending: Ending, left: Exit | None) -> None:
        """The last event, manifest and record. Each is tried on its own: a full disk must not hide how it ended."""
        self._progress.clear()
        self._times["finished"] = time.time()
        # Figures come once a second: by them the same step was another at each attempt.
        self._figures.step = self._last_step(left)
        if ending.outcome == "failed":
            self._enter("FAULT")
        self._enter("TERM")
        actions: tuple[Callable[[], None], ...] = (
            lambda: self._look_at_shared_figures(last=True),
            self._look_for_link,
            self._flush_scalars,
            lambda: self._final_event(ending, left),
            lambda: self.write_manifest(ending),
        )
        told = ending.reason in (RUN_FOLDER, DISK_FULL)
        for action in actions:
            try:
                action()
            except OSError as error:
                if not told:
                    log.error("the run's folder can't be written: %s", error)  # noqa: TRY400 - a sentence is enough
                told = True
        self.write_record(ending)
        self._shared.close()

    def note(self, level: str, message: str) -> None:
        self._emit(telemetry.NOTE, level=level, message=message)
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", message)

    def _look_for_link(self) -> None:
        """W&B's client writes into its log where the run is, some time after it started."""
        if self.wandb.get("mode") == "online" and "url" not in self.wandb:
            self.linked(wandb_mode.logged_url(self.folder.path, str(self.wandb.get("run_id"))))

    def linked(self, url: str | None) -> None:
        """W&B has said where the run is."""
        if url and len(url) <= MAX_URL and url != self.wandb.get("url"):
            self.wandb["url"] = url
            self._emit(telemetry.WANDB_LINKED, url=url)
            self.write_manifest()

    def run_state(self) -> Any:
        """For the exporter, on its threads."""
        from cleanrl_worker.fastlane.exporter import RunState

        figures = self._figures
        silent = time.monotonic() - figures.stepped_at
        stalled = figures.status == "running" and figures.step is not None and silent > self.options.stall_seconds
        return RunState(
            healthy=not stalled,
            health_message=f"no step for {silent:.0f} s" if stalled else "ok",
            info={"run_id": self.config.run_id, "algo": self.config.algo, "env_id": self.config.env_id},
            step=figures.step,
            total_steps=figures.total,
            steps_per_second=figures.sps,
            episodes=figures.episodes,
            scalars=dict(figures.values),
            rolling_return=figures.rolling_return,
            checkpoint_at=figures.checkpoint_at,
        )

    # -- facts

    def _look_at_shared_figures(self, *, last: bool = False) -> None:
        """A script that does not speak to us counts its steps in shared memory, where its `gym.make` is ours, and says
        the rest to TensorBoard.
        """
        if not self._mute:
            return
        snapshot = self._shared.read() or metrics.Snapshot()
        told = self._event_files.poll(last=last) if self._event_files is not None else bridge.Figures()
        step = max(snapshot.env_steps, told.step or 0)
        if not step and not told.values:
            return
        if "training_started" not in self._times:
            self._training_started({"step": 0})
        values = {**snapshot.scalars, "charts/episodic_return": snapshot.episode_return, **told.values}
        self._figures.rolling_return = told.rolling_return
        self._scalars(
            {
                "step": step,
                "sps": told.steps_per_second if snapshot.step_rate_hz is None else snapshot.step_rate_hz,
                "episodes": snapshot.episodes or told.episodes,
                "values": values,
            }
        )

    def _training_started(self, fact: Mapping[str, Any]) -> None:
        self._figures.status = "running"
        self._figures.step = _whole(fact.get("step")) or 0
        self._figures.stepped_at = time.monotonic()
        self._times["training_started"] = time.time()
        self._emit(telemetry.TRAINING_STARTED, step=self._figures.step, resumed=bool(fact.get("resumed")))
        self.write_manifest()

    def _stage_started(self, fact: Mapping[str, Any]) -> None:
        """A stage of a curriculum or a phase of a script."""
        self._figures.stepped_at = time.monotonic()
        index, count = _whole(fact.get("index")), _whole(fact.get("count"))
        name = str(fact.get("name"))[:256]
        self._emit(telemetry.STAGE_STARTED, index=index, count=count, name=name, step=_whole(fact.get("step")))
        self.write_manifest()

    def _eval_batch(self, fact: Mapping[str, Any]) -> None:
        figures = {name: value for name, value in fact.items() if name != "kind"}
        named = {"algo": self.config.algo, "env_id": self.config.env_id}
        self._emit(telemetry.HEARTBEAT, status="policy_eval_batch", **named, **figures)
        self.write_manifest()

    def _scalars(self, fact: Mapping[str, Any]) -> None:
        figures = self._figures
        step = _whole(fact.get("step"))
        attended = _whole(fact.get("attended"))
        if step is not None and (step, attended) != (figures.step, figures.attended):
            figures.step, figures.attended, figures.stepped_at = step, attended, time.monotonic()
        figures.total = _whole(fact.get("total")) or figures.total
        figures.sps = _number(fact.get("sps"))
        figures.episodes = _whole(fact.get("episodes"))
        values = fact.get("values")
        for tag, value in list(values.items() if isinstance(values, dict) else ())[:_MAX_SCALARS]:
            number = _number(value)
            if number is not None and len(tag) <= 128 and (tag in figures.values or len(figures.values) < _MAX_SCALARS):
                figures.values[tag] = number
        self._scalars_waiting = True
        now = time.monotonic()
        if now >= self._report_at():
            self._emit_scalars(now)

    def _report_at(self) -> float:
        """When figures are due: at the moments that the gateway has asked for, else in our own time."""
        pace = self.session.pace if self.session is not None else None
        if pace is None or math.isinf(self._reported_at):
            return self._reported_at + self.options.scalars_seconds
        first, every = pace
        return float(first + every * max(0, math.floor((self._reported_at - first) / every) + 1))

    def _emit_scalars(self, now: float) -> None:
        self._reported_at = now
        self._scalars_waiting = False
        figures = self._figures
        self._emit(
            telemetry.SCALARS,
            step=figures.step,
            total=figures.total,
            sps=figures.sps,
            episodes=figures.episodes,
            values=dict(figures.values),
        )

    def _flush_scalars(self) -> None:
        if self._scalars_waiting:
            self._emit_scalars(time.monotonic())

    def _checkpoint_saved(self, fact: Mapping[str, Any]) -> None:
        names = ("path", "step", "sha256", "bytes", "seconds", "reason")
        self._figures.checkpoint = {name: fact.get(name) for name in names}
        self._figures.checkpoint_at = time.time()
        self._emit(telemetry.CHECKPOINT_SAVED, **self._figures.checkpoint)
        self.write_manifest()

    def _checkpoint_failed(self, fact: Mapping[str, Any]) -> None:
        """Training goes on without it; whoever looks at the run has to know that less and less of it is safe."""
        message = str(fact.get("message"))[:2000]
        self._emit(telemetry.CHECKPOINT_FAILED, step=_whole(fact.get("step")), message=message)
        log.warning("%s", message)

    def _checkpoint_loaded(self, fact: Mapping[str, Any]) -> None:
        names = ("path", "step", "sha256", "verb", "weights_only")
        self._emit(telemetry.CHECKPOINT_LOADED, **{name: fact.get(name) for name in names})
        self.write_manifest()

    def _paused(self, fact: Mapping[str, Any]) -> None:
        self._figures.status = "paused"
        self._enter("PAUSE")
        self._emit(telemetry.RUN_PAUSED, step=_whole(fact.get("step")), checkpoint=fact.get("checkpoint"))
        self.write_manifest()

    def _resumed(self, fact: Mapping[str, Any]) -> None:
        self._figures.status = "running"
        self._figures.stepped_at = time.monotonic()
        self._enter("EXEC")
        self._emit(telemetry.RUN_RESUMED, step=_whole(fact.get("step")))
        self.write_manifest()

    def _note(self, fact: Mapping[str, Any]) -> None:
        self.note("warning" if fact.get("level") == "warning" else "info", str(fact.get("message"))[:2000])

    # -- writing it down

    def _emit(self, event: str, **payload: Any) -> None:
        self._progress.clear()
        record_of_it = self.events.emit(event, **self.config.redactor.data(payload))
        if self.session is not None:
            self.session.publish(record_of_it)

    def _final_event(self, ending: Ending, left: Exit | None) -> None:
        facts: dict[str, Any] = {
            "status": ending.outcome,
            "outcome": ending.outcome,
            "reason": ending.reason,
            "message": ending.message,
            "module": self.module,
            "algo": self.config.algo,
            "env_id": self.config.env_id,
            "step": self._last_step(left),
        }
        if left is not None and left.survivors:
            facts["survivors"] = left.survivors
        if ending.outcome == "completed":
            said = left.said.get("finished", {}) if left else {}
            result = said.get("result")
            result = result if isinstance(result, dict) else {}
            self._emit(telemetry.RUN_COMPLETED, **{**result, **facts, **self.summary}, model=said.get("model"))
        elif ending.outcome == "failed":
            tail = left.stderr_tail if left is not None else []
            self._emit(
                telemetry.RUN_FAILED,
                **facts,
                error="\n".join([ending.message, *tail]),
                error_type="CalledProcessError" if left is not None else "OSError",
                return_code=ending.return_code,
                signal=ending.signal,
                command=self.command,
                stderr_log=str(self.folder.stderr_log),
            )
        else:
            saved = left is not None and "stopped" in left.said
            self._emit(telemetry.RUN_CANCELLED, **facts, return_code=ending.return_code, checkpoint_confirmed=saved)

    def _last_step(self, left: Exit | None) -> int | None:
        said = left.said if left is not None else {}
        for kind in ("finished", "stopped", "failing"):
            if (step := _whole(said.get(kind, {}).get("step"))) is not None:
                return step
        return self._figures.step

    def write_manifest(self, ending: Ending | None = None) -> None:
        self._manifest_sha256 = analytics.write_manifest(
            self.folder.path,
            self._shown,
            outcome=ending.outcome if ending else None,
            reason=ending.reason if ending else None,
            message=self.config.redactor.text(ending.message) if ending else None,
            times=self._times,
            requirements=self.requirements,
            reproducibility=self.reproducibility,
            wandb=self.wandb,
        )

    def write_record(self, ending: Ending) -> None:
        """Leave the termination record where the kubelet looks, or where it was asked for."""
        path = self.options.record_path
        if path is None and record.DEFAULT_PATH.is_file():
            path = record.DEFAULT_PATH
        if path is None:
            return
        try:
            record.write_termination_record(path, self._record(ending))
        except OSError as error:
            log.error("the termination record %s can't be written: %s", path, error)  # noqa: TRY400

    def _record(self, ending: Ending) -> TerminationRecord:
        checkpoint = None
        if self._figures.checkpoint is not None:
            with contextlib.suppress(ValidationError):  # a plug-in's checkpoint that is no file of the run's folder
                checkpoint = CheckpointRef.model_validate(self._figures.checkpoint)
        return TerminationRecord(
            run_id=self.config.run_id,
            attempt=self.options.attempt,
            outcome=ending.outcome,
            exit_code=ending.exit_code,
            signal=ending.signal,
            reason=ending.reason,
            message=self.config.redactor.text(ending.message),
            transitions=self._transitions[-MAX_TRANSITIONS:],
            last_event=self.events.last_seq,
            last_step=self._figures.step,
            checkpoint=checkpoint,
            manifest_sha256=self._manifest_sha256,
            wandb_url=self.wandb.get("url"),
        )

    def _enter(self, state: Any) -> None:
        self._transitions.append(Transition(state=state, at=time.time()))

    def _heartbeat_interval(self) -> float:
        asked = self.session.heartbeat_seconds if self.session is not None else 0
        return float(asked) or self.options.heartbeat_seconds


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number == number and abs(number) != float("inf") else None

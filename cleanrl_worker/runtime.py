"""One run, from a checked configuration to its manifest and termination record.

`CleanRLWorkerRuntime` brings the pieces together: it decides between starting, continuing and not starting at all,
makes folder, environment and command, turns the child's facts into events, and writes down how it ended. Supervision
itself is in `supervise`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from cleanrl_protocol.limits import DISK_FULL
from cleanrl_worker import (
    environment,
    flags,
    get_worker_metadata,
    preflight,
    processes,
    reproducibility,
    telemetry,
    wandb_mode,
)
from cleanrl_worker.book import Book, RunOptions
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.config_shape import SAFE_ID
from cleanrl_worker.fastlane import segment
from cleanrl_worker.modes import commands
from cleanrl_worker.progress import ProgressLine, terminal_of
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, Algorithm
from cleanrl_worker.runfolder import History, RunFolder, RunFolderError, reason_of
from cleanrl_worker.supervise import (
    DEADLINE_EXIT_CODE,
    Ending,
    Launch,
    Stop,
    Supervisor,
    judge,
)
from cleanrl_worker.telemetry import EventLog

__all__ = ["DEFAULT_ALGO_REGISTRY", "CleanRLWorkerRuntime", "FinishedRunError", "RunOptions", "plan"]

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
"""How long the end of a run waits for the gateway to have heard it all."""


class FinishedRunError(Exception):
    """The run's folder holds a run that has ended, or another one. The message names the ways on."""


@dataclass(frozen=True)
class Plan:
    """What would be started, without having touched anything."""

    config: CleanRLWorkerConfig
    findings: preflight.Findings
    folder: RunFolder
    command: list[str]

    @property
    def algorithm(self) -> Algorithm | None:
        return self.findings.algorithm

    def summary(self) -> dict[str, Any]:
        """For a dry run."""
        config = self.config.to_dict()
        target = self.algorithm.target if self.algorithm else DEFAULT_ALGO_REGISTRY.get(self.config.algo)
        return {
            "status": "dry-run",
            "module": target,
            "callable": f"{target}.main" if self.algorithm and not self.algorithm.foreign else None,
            "command": self.config.redactor.command(self.command),
            "config": config,
            "extras": config["extras"],
            "mode": self.config.mode,
            "run_dir": str(self.folder.path),
            "requirements": self.findings.requirements,
            "runnable": not self.findings.problems,
            "problems": self.findings.problems,
        }


def plan(config: CleanRLWorkerConfig, options: RunOptions, env: Mapping[str, str]) -> Plan:
    """Resolve a configuration to a command. Pure but for looking at what is installed."""
    findings = preflight.look(config, env)
    merged = {**env, **config.environment}
    folder = RunFolder.choose(config.run_id, config.mode, merged, options.run_dir)
    return Plan(config, findings, folder, _command(config, findings.algorithm))


def _command(config: CleanRLWorkerConfig, algorithm: Algorithm | None) -> list[str]:
    if algorithm is None:
        return []
    if config.mode in commands.MODULES:
        arguments = commands.arguments(config)
    else:
        arguments = flags.build(
            algorithm,
            env_id=config.trained_env_id,
            total_timesteps=config.total_timesteps,
            seed=config.seed,
            track=config.wandb,
            cuda=config.cuda,
            extras=config.extras,
        )
    return flags.check_command([sys.executable, "-m", "cleanrl_worker.launcher", algorithm.target, *arguments])


class CleanRLWorkerRuntime:
    """Runs one configuration. `run` is called once and returns how it ended; what can't start raises before it does."""

    def __init__(
        self,
        config: CleanRLWorkerConfig,
        options: RunOptions | None = None,
        *,
        env: Mapping[str, str] | None = None,
        stdout: TextIO | None = None,
        owns_process: bool = False,
    ) -> None:
        """`owns_process`: this process ends with the run, so late signals are nobody's."""
        self.config = config
        self.options = options or RunOptions()
        self._env = dict(os.environ if env is None else env)
        self._stdout = sys.stdout if stdout is None else stdout
        self._owns_process = owns_process

    def run(self) -> Ending:
        """Raises PreflightError, RunFolderError or FinishedRunError when the run can't be started."""
        planned = plan(self.config, self.options, self._env)
        if planned.findings.problems:
            raise preflight.PreflightError(planned.findings.problems)
        folder = planned.folder
        goes_on = folder.has_checkpoints and not self.options.force
        preflight.check_files(self.config, self._env, goes_on=goes_on)
        seen = preflight.try_out(self.config, planned.findings, self._env) if self.config.dry_run else {}
        lock = folder.take()
        try:
            history = folder.history()
            go_on = self._decide(history, folder)
            if go_on is None:
                self._named_as_before(planned, history)
                self._same_as_before(folder)
                return self._already_completed(folder)
            if not go_on and (history.starts or (self.options.force and folder.has_checkpoints)):
                log.info("what earlier starts left is now in %s", folder.set_aside())
                history = History()
            if go_on:
                planned = self._named_as_before(planned, history)
            folder.prepare(self.config.to_dict())
            if self.config.dry_run:
                return self._report(planned, seen)
            self._sweep()
            return self._run(planned, history, go_on)
        finally:
            os.close(lock)

    def _decide(self, history: History, folder: RunFolder) -> bool | None:
        """True: continue. False: from the start. None: there is nothing left to do."""
        asked = self.options.go_on or bool(flags.truth(self.config.extras.get("continue")))
        if self.options.force:
            return False
        if history.starts == 0:
            return asked or self._has_lost_its_events(folder)
        if history.unfinished:
            log.info("an earlier start of this run was cut off; going on from its newest checkpoint")
            return True
        if asked:
            return None if history.outcome == "completed" else True
        raise FinishedRunError(
            f"the run folder {folder.path} holds a run that has ended ({history.outcome}); choose another --run-id, "
            "go on with --continue (or CLEANRL_CONTINUE=1), or start afresh in it with --force"
        )

    def _named_as_before(self, planned: Plan, history: History) -> Plan:
        """What goes on keeps its name, which its curves are filed under. Raises FinishedRunError for another run's folder."""
        named = self.config.run_id
        made = self.config.run_id_made or planned.folder.is_phase
        before = history.run_id or (planned.folder.saved_run_id if made else None)
        if before is None or before == named or not re.fullmatch(SAFE_ID, before):
            return planned
        if not made:
            raise FinishedRunError(
                f"the run folder {planned.folder.path} holds the run {before}, and this one is {named}: choose another "
                f"--run-dir, go on with --run-id {before}, or start afresh in it with --force"
            )
        self.config = self.config.renamed(before)
        command = _command(self.config, planned.algorithm)
        return dataclasses.replace(planned, config=self.config, command=command)

    def _same_as_before(self, folder: RunFolder) -> None:
        """What has completed is no answer to who asks for something else. Raises FinishedRunError."""
        saved = folder.saved
        for name in ("algo", "env_id", "total_timesteps"):
            before, now = saved.get(name), getattr(self.config, name)
            if before is not None and before != now:
                raise FinishedRunError(
                    f"the run folder {folder.path} holds a run that has completed with {name} {before}, and this one "
                    f"says {now}: give this one a --run-dir of its own (extras.mode resume_training and "
                    "extras.checkpoint_path train on from there), or start afresh in it with --force"
                )

    def _has_lost_its_events(self, folder: RunFolder) -> bool:
        """Checkpoints without events: the machine died, and of the two only checkpoints are sure to be on its disk.

        A run that extends another's checkpoint may have been given it in its own folder.
        """
        known = {**self._env, **self.config.environment}
        extends = self.config.mode == "resume_training" or known.get(environment.RESUME_PATH)
        if extends or not folder.has_checkpoints:
            return False
        log.warning("the events of an earlier start are lost; going on from its newest checkpoint")
        return True

    def _already_completed(self, folder: RunFolder) -> Ending:
        """An earlier start completed: say so again to whoever did not hear it, and end."""
        message = "the run had completed in an earlier start"
        log.info(message)
        if folder.counter is not None:
            self._repeat(folder)
        ending = Ending("completed", 0, "Completed", message, 0)
        with contextlib.ExitStack() as stack:
            events = _opened_events(folder, self.config.run_id, None, stack)
            book = Book(self.config, self.options, folder, events, ProgressLine(None))
            self._connect(book, stack, lambda _: None, lambda _: None)
            book.write_record(ending)
        return ending

    def _repeat(self, folder: RunFolder) -> None:
        """Tell the script that started us again what became of this phase: its lines are how it knows."""
        last = {event["event"]: event for event in telemetry.read_events(folder.events)}
        for name in (telemetry.RUN_STARTED, telemetry.TRAINING_STARTED, telemetry.SCALARS, telemetry.RUN_COMPLETED):
            if name in last:
                self._stdout.write(telemetry.encode(last[name]).decode())
        self._stdout.flush()

    def _report(self, planned: Plan, seen: dict[str, Any]) -> Ending:
        """A dry run where the run would run: everything was checked, and what would run is said instead of run."""
        assert planned.algorithm is not None
        ending = Ending("completed", 0, "DryRun", "the run could start here; nothing was run", 0)
        with contextlib.ExitStack() as stack:
            events = _opened_events(planned.folder, self.config.run_id, self._stdout, stack)
            book = Book(self.config, self.options, planned.folder, events, ProgressLine(None))
            book.command = self.config.redactor.command(planned.command)
            book.requirements = planned.findings.requirements
            book.summary = {"dry_run": True, "summary": {**planned.summary(), **seen}}
            self._connect(book, stack, lambda _: None, lambda _: None)
            book.started(planned.algorithm, False)
            book.finish(ending, None)
        return ending

    def _sweep(self) -> None:
        for pid in processes.sweep_orphans():
            log.warning("killed process %d, which an earlier worker had left behind", pid)
        for name in segment.unlink_stale():
            log.info("removed the shared memory %s, which an earlier run had left behind", name)

    def _run(self, planned: Plan, history: History, go_on: bool) -> Ending:
        config, options, folder = self.config, self.options, planned.folder
        assert planned.algorithm is not None
        base = {**self._env, **config.environment}
        wandb = wandb_mode.resolve(
            {**config.extras, **config.secrets}, base, folder.path, config.run_id, enabled=config.wandb
        )
        wandb = wandb_mode.unless_unreachable(wandb, config.extras, base)
        if wandb.mode == "online":
            from cleanrl_worker import wandb_sync

            wandb = wandb_sync.catch_up(wandb, folder.path, base, config.extras)
        child_env = environment.build(
            config, planned.algorithm, folder, base=self._env, wandb=wandb.environment, go_on=go_on
        )
        if planned.algorithm.foreign:
            from cleanrl_worker.compat.site import child_environment

            child_env = child_environment(child_env)
        with contextlib.ExitStack() as stack:
            stack.callback(segment.unlink_run, config.run_id)
            talks = config.mode == "interactive"  # then stdout is the protocol's, and events go to stderr
            terminal = None if talks else terminal_of(sys.stderr, self._stdout)
            events = _opened_events(folder, config.run_id, sys.stderr if talks else self._stdout, stack)
            book = Book(config, options, folder, events, ProgressLine(terminal))
            book.command = config.redactor.command(planned.command)
            book.requirements = planned.findings.requirements
            book.wandb = wandb.manifest()
            book.reproducibility = reproducibility.collect(
                config.to_dict(), book.command, environ=base, checkout=planned.algorithm.upstream_dir
            )
            limit = config.max_wallclock_seconds
            supervisor = Supervisor(
                Launch(
                    command=planned.command,
                    environment=child_env,
                    folder=folder.path,
                    stdout_log=folder.stdout_log,
                    stderr_log=folder.stderr_log,
                    speaks=planned.algorithm.kind == "own",
                    talks=talks,
                    log_cap=options.log_cap,
                    log_keep=options.log_keep,
                ),
                book,
                grace_seconds=options.grace_seconds,
                limit_seconds=None if limit is None else max(0.0, limit - history.seconds),
                limit_message_seconds=limit,
                owns_process=self._owns_process,
            )
            stack.callback(supervisor.close)
            stack.enter_context(supervisor.handling_signals())
            self._serve_metrics(book, stack)
            wishes = _Wishes(supervisor)
            self._connect(book, stack, wishes.desired, wishes.refused)
            return self._supervise(supervisor, book, planned.algorithm, wandb, go_on)

    def _supervise(
        self, supervisor: Supervisor, book: Book, algorithm: Algorithm, wandb: wandb_mode.Plan, go_on: bool
    ) -> Ending:
        try:
            book.started(algorithm, go_on)
            for note in wandb.notes:
                book.note("info", note)
            ending = judge(left := supervisor.run())
        except OSError as error:  # the child could not be started, or the folder takes nothing at all
            left = None
            reason = DISK_FULL if reason_of(error) == DISK_FULL else "StartFailed"
            ending = Ending("failed", 1, reason, f"the run could not be started: {error}")
        if wandb.uploads_at_end and ending.outcome in ("completed", "failed"):  # else the grace period is running
            self._upload(book, wandb)
        book.finish(ending, left)
        return ending

    def _upload(self, book: Book, wandb: wandb_mode.Plan) -> None:
        from cleanrl_worker import wandb_sync

        environ = {**self._env, **self.config.environment, **wandb.environment}
        result = wandb_sync.sync(book.folder.path, environ, self.config.extras)
        try:
            book.note("info" if result.done else "warning", result.message)
            book.linked(result.url)
        except OSError as error:
            log.error("the run's folder can't be written: %s", error)  # noqa: TRY400 - a sentence is enough

    def _serve_metrics(self, book: Book, stack: contextlib.ExitStack) -> None:
        if self.options.metrics_port is None:
            return
        from cleanrl_worker.fastlane.exporter import Exporter

        exporter = Exporter(self.config.run_id, self.options.metrics_host, self.options.metrics_port, book.run_state)
        try:
            exporter.start()
        except OSError as error:
            raise RunFolderError(
                f"the metrics port {self.options.metrics_port} can't be used: {error.strerror}; choose another"
            ) from None
        stack.callback(exporter.close)

    def _connect(
        self,
        book: Book,
        stack: contextlib.ExitStack,
        on_desired: Callable[[Any], None],
        on_refused: Callable[[Any], None],
    ) -> None:
        if self.options.grpc_target is None:
            return
        from cleanrl_worker.session import Session, Worker

        metadata, capabilities = get_worker_metadata()
        config = self.config.to_dict()
        extras = self.config.extras
        session = Session.from_env(
            self.options.grpc_target,
            Worker(
                run_id=self.config.run_id,
                worker_id=self.config.worker_id or "",
                algo=self.config.algo,
                env_id=self.config.env_id,
                schema_id=str(extras.get("schema_id") or ""),
                schema_version=_schema_version(extras.get("schema_version")),
                attempt=self.options.attempt,
                extras=config["extras"],
                capabilities={**dataclasses.asdict(metadata), **dataclasses.asdict(capabilities)},
            ),
            book.events.path,
            on_desired=on_desired,
            on_refused=on_refused,
        )
        session.start()
        book.session = session
        stack.callback(session.close, _CLOSE_SECONDS)


def _opened_events(folder: RunFolder, run_id: str, stdout: TextIO | None, stack: contextlib.ExitStack) -> EventLog:
    on_terminal = terminal_of(stdout) is not None
    quiet = frozenset({telemetry.HEARTBEAT, telemetry.SCALARS}) if on_terminal else frozenset()
    try:
        events = EventLog(folder.events, run_id, stdout, quiet=quiet)
    except OSError as error:
        message = f"the event log {folder.events} can't be written: {error.strerror or error}"
        raise RunFolderError(message, reason_of(error)) from None
    stack.callback(events.close)
    return events


def _schema_version(given: Any) -> int:
    """What a form says of itself, where the handshake has room for it; the first version otherwise."""
    version = flags.whole(given)
    return version if version is not None and 0 <= version < 2**32 else 1


class _Wishes:
    """Carries what the gateway wants to the supervisor. Called on the session's thread."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def desired(self, desired: Any) -> None:
        if desired.stop:
            self._supervisor.ask_stop(_requested_stop(desired.stop_reason))
            return
        self._supervisor.ask_pause(desired.pause)
        if desired.checkpoint_request:
            self._supervisor.ask_checkpoint()

    def refused(self, refusal: Any) -> None:
        log.warning("the gateway refuses this worker: %s", refusal.message)
        if refusal.fenced:
            message = f"the gateway says that this worker's time is over: {refusal.message}"
            self._supervisor.ask_stop(Stop("canceled", "Fenced", message, 1))


def _requested_stop(reason: str) -> Stop:
    message = f"stopped on request ({reason or 'cancel'})"
    if reason == "suspend":
        return Stop("suspended", "Suspended", message, 0)
    if reason == "deadline":
        return Stop("deadline_exceeded", "DeadlineExceeded", message, DEADLINE_EXIT_CODE)
    return Stop("canceled", "Canceled", message, 0)

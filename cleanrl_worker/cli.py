"""`cleanrl-worker`: one run from a config file, from flags, or from both.

Exit codes: 0 the run completed (or a dry run resolved); 2 the configuration or the installation does not allow the run;
124 its wall clock limit was reached; 128+n it was stopped by signal n; otherwise the algorithm's own exit code, or 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from cleanrl_worker import __version__
from cleanrl_worker.plainfile import exists

if TYPE_CHECKING:
    from cleanrl_worker.config import CleanRLWorkerConfig
    from cleanrl_worker.runtime import RunOptions

log = logging.getLogger("cleanrl_worker")

DEFAULT_TARGET = "127.0.0.1:50055"
BAD_CONFIG = 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cleanrl-worker",
        description="Train one reinforcement learning algorithm on one environment, supervised.",
        epilog="Example: cleanrl-worker --algo ppo --env-id CartPole-v1 --total-timesteps 100000",
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to run (each overrides the config file)")
    what.add_argument("--config", metavar="PATH", type=Path, help="JSON: a job descriptor or the worker's part of one")
    what.add_argument("--algo", help="a registered name, plugin.<name>, or cleanrl.<name> of an upstream checkout")
    what.add_argument("--env-id", help="the environment, for example CartPole-v1")
    what.add_argument("--total-timesteps", help="environment steps in all", metavar="N")
    what.add_argument("--seed", help="from 0", metavar="N")
    what.add_argument("--run-id", help="letters, digits, '.', '_', '-'; a new ULID when none is given")
    what.add_argument("--worker-id")
    what.add_argument(
        "--extras", metavar="JSON", help="merged over the config's extras; flags of the algorithm go into algo_params"
    )
    what.add_argument("--policy-path", metavar="PATH", help="a trained model, for evaluation and interactive mode")
    resources = parser.add_argument_group("resources and artifacts")
    resources.add_argument("--gpus", metavar="N", help="GPUs that the run may use; 0 keeps it on the CPU")
    resources.add_argument("--cuda", action=argparse.BooleanOptionalAction, default=None, help="use a GPU")
    resources.add_argument("--max-wallclock-minutes", metavar="M", help="checkpoint and stop after so long")
    resources.add_argument("--tensorboard", action=argparse.BooleanOptionalAction, default=None)
    resources.add_argument("--wandb", action=argparse.BooleanOptionalAction, default=None, help="track with W&B")
    place = parser.add_argument_group("where and how")
    place.add_argument("--run-dir", metavar="PATH", type=Path, help="default: var/trainer/runs/<run id>")
    place.add_argument("--continue", dest="go_on", action="store_true", help="go on from the newest checkpoint")
    place.add_argument("--force", action="store_true", help="start afresh in a folder that holds a finished run")
    place.add_argument("--record-path", metavar="PATH", type=Path, help="where the termination record goes")
    place.add_argument("--metrics-port", metavar="PORT", type=int, help="serve /metrics, /healthz and frames")
    place.add_argument("--grpc", action="store_true", help="register with a gateway and report to it")
    place.add_argument("--grpc-target", metavar="HOST:PORT", default=DEFAULT_TARGET, help="default: %(default)s")
    modes = parser.add_argument_group("instead of running")
    modes.add_argument("--dry-run", action="store_true", help="resolve everything, start nothing, print JSON")
    modes.add_argument("--emit-summary", action="store_true", help="with --dry-run: print the resolved config only")
    modes.add_argument("--check", action="store_true", help="say whether the run could start here and W&B is reached")
    modes.add_argument("--interactive", action="store_true", help="step a trained policy over stdin and stdout")
    parser.add_argument("-v", "--verbose", action="store_true", help="debug messages on stderr")
    parser.add_argument("--version", action="version", version=f"cleanrl-worker {__version__}")
    return parser


class _Terminated(BaseException):
    """SIGTERM came while there was no run yet that it could end in order."""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; SystemExit carries a sentence and means 1."""
    try:
        with _ended_by_sigterm():
            return _main(argv)
    except (_Terminated, KeyboardInterrupt) as stop:
        number = signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT
        _say(f"stopped by {number.name}; no run had begun")
        return 128 + number


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Until a run has its own handler. The kernel spares a container's first process what it does not handle: without
    this a pod that is told to end while it starts would train until it is killed.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _Terminated

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _main(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(_unknown(unknown, re.findall(r"--([a-z-]+)", parser.format_usage())))
    _set_up_logging(verbose=arguments.verbose)
    if arguments.interactive:
        return _interactive(arguments)
    overrides = _overrides(arguments)
    if arguments.config is not None and not exists(arguments.config):
        raise SystemExit(f"Config path does not exist: {arguments.config}")

    # Late, so that --help and mistakes in flags answer at once.
    from cleanrl_worker.config import ConfigError, load_worker_config

    try:
        config = load_worker_config(arguments.config, overrides)
        options = _options(arguments, {**os.environ, **config.environment})
    except ConfigError as error:
        return _refuse(arguments, str(error), "BadConfig")
    if arguments.dry_run or arguments.check:
        return _dry_run(config, options, check=arguments.check, summary=arguments.emit_summary)
    return _run(config, options, arguments)


def _unknown(words: Sequence[str], known: Sequence[str]) -> str:
    """What to write instead of words that are no flags of ours: misspelt ones, or the algorithm's."""
    import difflib

    if not words[0].startswith("--"):
        return f"{words[0]!r} belongs to no flag: leave it out, or quote a value that has spaces in it"
    name, is_given, value = words[0][2:].partition("=")
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
        return f"there is no --{name}; did you mean --{close[0]}?"
    if not is_given and len(words) > 1 and not words[1].startswith("--"):
        is_given, value = "=", words[1]
    meant: Any = value
    if is_given:
        with contextlib.suppress(ValueError):
            meant = json.loads(value)
    else:
        name, meant = name.removeprefix("no-"), not name.startswith("no-")
    extras = shlex.quote(json.dumps({"algo_params": {name: meant}}))
    return f"there is no --{words[0][2:].partition('=')[0]} here; a flag of the algorithm is given as --extras {extras}"


def _run(config: CleanRLWorkerConfig, options: RunOptions, arguments: argparse.Namespace) -> int:
    from cleanrl_worker.preflight import PreflightError
    from cleanrl_worker.runfolder import RunFolderError
    from cleanrl_worker.runtime import CleanRLWorkerRuntime, FinishedRunError

    try:
        ending = CleanRLWorkerRuntime(config, options, owns_process=True).run()
    except PreflightError as error:
        return _refuse(arguments, str(error), error.reason, run_id=config.run_id)
    except FinishedRunError as error:
        return _refuse(arguments, str(error), "BadConfig", run_id=config.run_id)
    except RunFolderError as error:
        return _refuse(arguments, str(error), error.reason, run_id=config.run_id, code=1)
    if ending.outcome != "completed":
        _say(f"{ending.outcome}: {config.redactor.text(ending.message)}")
    return ending.exit_code


def _dry_run(config: CleanRLWorkerConfig, options: RunOptions, *, check: bool, summary: bool) -> int:
    from cleanrl_worker.runtime import plan

    planned = plan(config, options, os.environ)
    for problem in planned.findings.problems:
        _say(f"this run could not start here: {problem}")
    shown: dict[str, Any] = config.to_dict() if summary else planned.summary()
    if check and config.wandb:
        from cleanrl_worker import wandb_mode

        reached, sentence = wandb_mode.probe({**os.environ, **config.environment}, config.extras)
        _say(sentence)
        shown |= {} if summary else {"wandb_reached": reached}
    try:
        print(json.dumps(shown, indent=2, sort_keys=True, default=str), flush=True)
    except BrokenPipeError:
        from cleanrl_worker.telemetry import silence

        silence(sys.stdout)
    return BAD_CONFIG if planned.findings.problems else 0


def _interactive(arguments: argparse.Namespace) -> int:
    wanted = {"--run-id": arguments.run_id, "--env-id": arguments.env_id, "--policy-path": arguments.policy_path}
    missing = [flag for flag, value in wanted.items() if not value]
    if missing:
        _say(f"--interactive needs {', '.join(missing)}")
        return 1
    from cleanrl_worker.modes import interactive

    wanted |= {"--algo": arguments.algo or "ppo"}
    try:
        return interactive.main([f"{flag}={value}" for flag, value in wanted.items()])
    except KeyboardInterrupt:  # how a person leaves
        return 130


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the flags say, None where they say nothing. Raises SystemExit for --extras that is no JSON object."""
    from_flags = vars(arguments)
    names = (
        *("algo", "env_id", "total_timesteps", "seed", "run_id", "worker_id", "policy_path"),
        *("gpus", "cuda", "max_wallclock_minutes", "tensorboard", "wandb"),
    )
    return {**{name: from_flags[name] for name in names}, "extras": _extras(arguments.extras)}


def _extras(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        extras = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SystemExit(f"Failed to parse --extras JSON: {error}") from None
    if not isinstance(extras, dict):
        raise SystemExit("--extras must be a JSON object")
    return extras


def _options(arguments: argparse.Namespace, env: Mapping[str, str]) -> RunOptions:
    """How to run, from flags and environment. Raises ConfigError for a variable that can't be understood."""
    from cleanrl_worker.runfolder import LONGEST_SILENCE
    from cleanrl_worker.runtime import RunOptions

    numbers = _Numbers(env)
    port = arguments.metrics_port
    if port is None and env.get("CLEANRL_METRICS_PORT"):
        port = int(numbers.get("CLEANRL_METRICS_PORT", 0))
    if port is not None and not 0 <= port <= 65535:
        numbers.problems.append(f"--metrics-port (or CLEANRL_METRICS_PORT): expected a port, got {port}")
    record_path = arguments.record_path or env.get("CLEANRL_RECORD_PATH")
    options = RunOptions(
        run_dir=arguments.run_dir,
        go_on=arguments.go_on or env.get("CLEANRL_CONTINUE", "").lower() in ("1", "true", "yes", "on"),
        force=arguments.force,
        grpc_target=arguments.grpc_target if arguments.grpc else None,
        record_path=Path(record_path) if record_path else None,
        metrics_port=port,
        metrics_host=env.get("CLEANRL_METRICS_HOST") or "127.0.0.1",
        # Twice within the silence that is taken for sleep: else a run that goes on would use less time than it took.
        heartbeat_seconds=min(
            numbers.get("CLEANRL_HEARTBEAT_SECONDS", RunOptions.heartbeat_seconds), LONGEST_SILENCE / 2
        ),
        scalars_seconds=numbers.get("CLEANRL_SCALARS_SECONDS", RunOptions.scalars_seconds),
        grace_seconds=numbers.get("CLEANRL_GRACE_SECONDS", RunOptions.grace_seconds),
        stall_seconds=numbers.get("CLEANRL_STALL_SECONDS", RunOptions.stall_seconds),
        log_cap=int(numbers.get("CLEANRL_LOG_CAP_BYTES", RunOptions.log_cap)),
        log_keep=int(numbers.get("CLEANRL_LOG_KEEP", RunOptions.log_keep)),
        attempt=max(1, int(numbers.get("CLEANRL_ATTEMPT", 1))),
    )
    numbers.finish()
    return options


class _Numbers:
    """Numbers from environment variables; complains about all bad ones at once."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.problems: list[str] = []

    def get(self, name: str, default: float) -> float:
        text = self._env.get(name, "").strip()
        try:
            number = float(text) if text else default
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e12:
            self.problems.append(f"{name}: expected a number of at least 0, got {text[:40]!r}")
            return default
        return number

    def finish(self) -> None:
        from cleanrl_worker.config import ConfigError

        if self.problems:
            raise ConfigError(self.problems)


def _refuse(
    arguments: argparse.Namespace, message: str, reason: str, *, run_id: str | None = None, code: int = BAD_CONFIG
) -> int:
    """Nothing was started: say why, and leave a record of it for whoever started us."""
    from cleanrl_worker.redact import Redactor

    message = Redactor.for_environment(os.environ).text(message)
    _say(message)
    if arguments.dry_run or arguments.check:
        return code
    path = arguments.record_path or os.environ.get("CLEANRL_RECORD_PATH")
    run_id = run_id or arguments.run_id or os.environ.get("CLEANRL_RUN_ID")
    _leave_record(Path(path) if path else None, run_id, message, reason, code)
    return code


def _leave_record(path: Path | None, run_id: str | None, message: str, reason: str, code: int) -> None:
    from pydantic import ValidationError

    from cleanrl_protocol.record import TerminationRecord
    from cleanrl_worker import record

    if path is None and record.DEFAULT_PATH.is_file():
        path = record.DEFAULT_PATH
    if path is None or run_id is None:
        return
    attempt = os.environ.get("CLEANRL_ATTEMPT", "1")
    try:
        ended = TerminationRecord(
            run_id=run_id,
            attempt=int(attempt) if attempt.isdigit() else 1,
            outcome="failed",
            exit_code=code,
            reason=reason,
            message=message,
        )
        record.write_termination_record(path, ended)
    except (OSError, ValidationError) as error:
        log.warning("the termination record could not be written: %s", type(error).__name__)


def _say(message: str) -> None:
    """A sentence for people, on stderr; lost without complaint when nobody holds the other end."""
    try:
        print(f"cleanrl-worker: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        from cleanrl_worker.telemetry import silence

        silence(sys.stderr)


def _set_up_logging(*, verbose: bool) -> None:
    logging.raiseExceptions = False  # a closed stderr is no reason to fail
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s | %(levelname)-8s | %(name)s | %(message)s",
        stream=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())

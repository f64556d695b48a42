"""One child process, from its start until nothing of it is left.

`Supervisor.run` is a single loop over the child's output, its link, signals and the clock; nothing else happens in this
thread, and other threads only leave a word in the inbox. Whatever ends the run (a signal, a request, the clock, a full
disk) becomes a `Stop`: the child is asked to save and leave, and after the grace period everything it started is killed.
What the child's end means is decided by `judge`, which knows no processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from cleanrl_protocol.record import REASON
from cleanrl_worker import launcher, link, processes
from cleanrl_worker.logs import RotatingLog, useful_tail
from cleanrl_worker.runfolder import reason_of

log = logging.getLogger(__name__)

DEFAULT_GRACE_SECONDS = 30.0
TICK_SECONDS = 0.5
_DRAIN_SECONDS = 2.0
_CHUNK = 64 * 1024
DEADLINE_EXIT_CODE = 124


@dataclass(frozen=True)
class Launch:
    """How the child is started. `speaks`: it is one of ours and will say hello on the link."""

    command: list[str]
    environment: Mapping[str, str]
    folder: Path
    stdout_log: Path
    stderr_log: Path
    speaks: bool
    talks: bool
    """Stdin and stdout are the child's own, for a conversation with whoever holds their other ends."""
    log_cap: int
    log_keep: int


@dataclass(frozen=True)
class Stop:
    """Why the run is being ended before its time, and what it counts as then."""

    outcome: str
    reason: str
    message: str
    exit_code: int


@dataclass(frozen=True)
class Exit:
    """How the child left, with what the supervisor heard from it."""

    status: int
    """As subprocess reports it: negative for a signal."""
    stop: Stop | None
    forced: bool
    """The grace period ran out, or somebody was in a hurry."""
    spoke: bool
    said: Mapping[str, Mapping[str, Any]]
    """The last fact of each kind."""
    stderr_tail: list[str]
    ran_out_of_memory: bool
    survivors: list[int]


@dataclass(frozen=True)
class Ending:
    """What the run came to."""

    outcome: str
    exit_code: int
    reason: str
    message: str
    return_code: int | None = None
    signal: int | None = None


class Watcher(Protocol):
    """Who is told. Called from the supervisor's loop; an OSError from here ends the run as a fault of its folder."""

    def hear(self, fact: dict[str, Any]) -> None:
        """A fact from the child, or the supervisor's own `paused` and `resumed` for a child that can't say so."""

    def tick(self) -> None:
        """Time has passed."""


def signal_stop(number: int) -> Stop:
    name = signal.Signals(number).name
    return Stop("canceled", "Signal", f"stopped by {name}", 128 + number)


def deadline_stop(seconds: float) -> Stop:
    message = f"the wall clock limit of {seconds / 60:g} minutes is over"
    return Stop("deadline_exceeded", "DeadlineExceeded", message, DEADLINE_EXIT_CODE)


def fault_stop(error: OSError) -> Stop:
    where = f" ({error.filename})" if error.filename else ""
    message = f"the run's folder can't be written: {error.strerror or error}{where}; free space or use another folder"
    return Stop("failed", reason_of(error), message, 1)


class Supervisor:
    """Runs one child to its end. `run` is called once, and `close` after it."""

    def __init__(
        self,
        launch: Launch,
        watcher: Watcher,
        *,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        limit_seconds: float | None = None,
        limit_message_seconds: float | None = None,
        owns_process: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit_seconds` counts from now; `limit_message_seconds` is the whole limit when part of it is used up.

        `owns_process`: this process exists for the run alone, so every orphan it adopts is the run's, and a signal that
        comes after the run can be ignored.
        """
        self._launch = launch
        self._watcher = watcher
        self._grace = grace_seconds
        self._clock = clock
        self._owns_process = owns_process
        self._limit = limit_seconds
        self._limit_message = limit_message_seconds or limit_seconds or 0.0
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._spare: frozenset[processes.Identity] = frozenset()
        self._child: subprocess.Popen[bytes] | None = None
        self._pin = -1
        self._link: socket.socket | None = None
        self._link_buffer = b""
        self._spoke = False
        self._said: dict[str, dict[str, Any]] = {}
        self._stop: Stop | None = None
        self._signals = 0
        self._kill_at: float | None = None
        self._forced = False
        self._want_pause = False
        self._pause_sent = False
        self._frozen = False

    # -- from other threads and signal handlers: leave a word and return

    def post(self, action: Callable[[], None]) -> None:
        """Have `action` called by the loop. Safe from any thread and from a signal handler."""
        self._inbox.append(action)
        with contextlib.suppress(BlockingIOError):  # full of earlier wake-ups: it will wake
            os.write(self._wake_write, b"!")

    def ask_stop(self, stop: Stop) -> None:
        self.post(lambda: self._begin_stop(stop))

    def ask_pause(self, pause: bool) -> None:
        self.post(lambda: self._set_pause(pause))

    def ask_checkpoint(self) -> None:
        self.post(lambda: self._tell("checkpoint") if self._spoke else None)

    # -- the loop

    def run(self) -> Exit:
        """Start the child, see it through, and leave nothing of it behind. Raises OSError when it can't be started."""
        processes.become_subreaper()
        self._spare = frozenset(processes.descendants(os.getpid()))
        oom_before = processes.oom_kills()
        with self._logs() as logs:
            try:
                child = self._start(logs)
                deadline = None if self._limit is None else self._clock() + self._limit
                while child.poll() is None:
                    self._wait(TICK_SECONDS)
                    self._keep_time(deadline)
                    self._guard(self._watcher.tick)
                    if self._owns_process:
                        processes.reap_adopted(child.pid)
                status = child.wait()
                survivors = processes.end_descendants(self._spare)
                self._drain()
            finally:
                self._clean_up()
            oom_after = processes.oom_kills()
            return Exit(
                status=status,
                stop=self._stop,
                forced=self._forced,
                spoke=self._spoke,
                said=self._said,
                stderr_tail=useful_tail(logs["stderr"].tail()),
                ran_out_of_memory=None not in (oom_before, oom_after) and oom_after != oom_before,
                survivors=survivors,
            )

    @contextlib.contextmanager
    def _logs(self) -> Iterator[dict[str, RotatingLog]]:
        paths = {"stdout": self._launch.stdout_log, "stderr": self._launch.stderr_log}
        with contextlib.ExitStack() as stack:
            logs = {}
            for name, path in paths.items():
                logs[name] = RotatingLog(path, self._launch.log_cap, self._launch.log_keep)
                stack.callback(logs[name].close)
            yield logs

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """SIGTERM, SIGINT and SIGHUP end the run in order, a second one at once. They may come before `run` and after.

        What was ignored stays ignored: `nohup` means it. Only the main thread can ask for signals; elsewhere this does
        nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handler(number: int, _: FrameType | None) -> None:
            self.post(lambda: self._on_signal(number))

        wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        previous = {
            number: signal.signal(number, handler)
            for number in wanted
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, action in previous.items():
                signal.signal(number, signal.SIG_IGN if self._owns_process else action)

    def _start(self, logs: Mapping[str, RotatingLog]) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair()
        self._link = ours
        environment = {
            **self._launch.environment,
            processes.MARKER: processes.marker(),
            launcher.SUPERVISOR_PID: str(os.getpid()),
            link.ENV_FD: str(theirs.fileno()),
        }
        with theirs:
            child = subprocess.Popen(
                self._launch.command,
                stdin=None if self._launch.talks else subprocess.DEVNULL,
                stdout=None if self._launch.talks else subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._launch.folder,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._child = child
        for name, pipe in (("stdout", child.stdout), ("stderr", child.stderr)):
            if pipe is None:
                continue
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ, self._log_reader(pipe.fileno(), logs[name]))
        ours.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, self._read_link)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._read_wake)
        with contextlib.suppress(OSError):  # without it the end is noticed at the next tick
            self._pin = os.pidfd_open(child.pid)
            self._selector.register(self._pin, selectors.EVENT_READ, self._forget_pin)
        return child

    def _wait(self, seconds: float) -> None:
        """Handle what has happened, or wait for something to."""
        for key, _ in self._selector.select(seconds):
            key.data()
        while self._inbox:
            self._inbox.popleft()()

    def _keep_time(self, deadline: float | None) -> None:
        now = self._clock()
        if deadline is not None and now >= deadline and self._stop is None:
            self._begin_stop(deadline_stop(self._limit_message))
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._forced = True
            log.warning("the algorithm did not stop in time and is killed")
            self._kill()

    def _drain(self) -> None:
        """Take what the dead child left in its pipes. A survivor that holds them open can't keep us here."""
        end = self._clock() + _DRAIN_SECONDS
        while len(self._selector.get_map()) > 1 and self._clock() < end:
            self._wait(0.05)

    def _clean_up(self) -> None:
        if self._child is not None:
            if self._child.poll() is None:  # an error of our own: still, nothing is left behind
                self._kill()
                self._child.wait()
                processes.end_descendants(self._spare)
            for pipe in (self._child.stdout, self._child.stderr):
                if pipe is not None:
                    pipe.close()
        if self._link is not None:
            self._link.close()
        self._forget_pin()
        self._selector.close()

    def close(self) -> None:
        """Called when nobody can post any more."""
        os.close(self._wake_read)
        os.close(self._wake_write)

    # -- what comes in

    def _log_reader(self, descriptor: int, target: RotatingLog) -> Callable[[], None]:
        def read() -> None:
            try:
                data = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(descriptor)
                return
            self._guard(lambda: target.write(data))

        return read

    def _read_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, _CHUNK)

    def _forget_pin(self) -> None:
        """The child has ended; its exit code is fetched by the loop's condition."""
        if self._pin >= 0:
            self._selector.unregister(self._pin)
            os.close(self._pin)
            self._pin = -1

    def _read_link(self) -> None:
        assert self._link is not None
        try:
            data = self._link.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._link_buffer = (self._link_buffer + data).split(b"\n")
        for line in lines:
            self._hear(line)
        if not data or len(self._link_buffer) > link.MAX_LINE:
            self._selector.unregister(self._link)

    def _hear(self, line: bytes) -> None:
        try:
            fact = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(fact, dict) or not isinstance(fact.get("kind"), str):
            return
        self._said[fact["kind"]] = fact
        if fact["kind"] == "hello":
            self._spoke = True
            self._send_pause()
        self._guard(lambda: self._watcher.hear(fact))

    def _guard(self, action: Callable[[], None]) -> None:
        """A folder that takes no more is a reason to stop, once; what follows is on a best-effort basis."""
        try:
            action()
        except OSError as error:
            if self._stop is None:
                stop = fault_stop(error)
                log.error("%s", stop.message)  # noqa: TRY400 - a sentence for people, not a traceback
                self._begin_stop(stop)

    # -- what goes out

    def _on_signal(self, number: int) -> None:
        """The first signal asks, also when the gateway has asked before (a deleted run hears from both); a second one kills."""
        self._signals += 1
        if self._stop is None:
            self._begin_stop(signal_stop(number))
        elif self._signals > 1:
            self._kill_at = self._clock()

    def _begin_stop(self, stop: Stop) -> None:
        if self._stop is not None:
            return
        self._stop = stop
        self._kill_at = self._clock() + self._grace
        log.info("stopping: %s", stop.message)
        if self._frozen:
            self._thaw()
        if self._spoke:
            self._tell("stop")
        else:
            self._signal_group(signal.SIGTERM)

    def _set_pause(self, pause: bool) -> None:
        self._want_pause = pause
        self._send_pause()

    def _send_pause(self) -> None:
        """Bring the child to the wanted state. One of ours that has not said hello yet is told when it does."""
        if self._want_pause == self._pause_sent or self._stop is not None:
            return
        if self._spoke:
            self._tell("pause" if self._want_pause else "resume")
        elif self._launch.speaks:
            return
        elif self._want_pause:
            processes.signal_descendants(signal.SIGSTOP, self._spare)
            self._frozen = True
            self._guard(lambda: self._watcher.hear({"kind": "paused", "step": None, "checkpoint": None}))
        else:
            self._thaw()
            self._guard(lambda: self._watcher.hear({"kind": "resumed", "step": None}))
        self._pause_sent = self._want_pause

    def _thaw(self) -> None:
        processes.signal_descendants(signal.SIGCONT, self._spare)
        self._frozen = False

    def _tell(self, command: str) -> None:
        assert self._link is not None
        try:
            self._link.send(json.dumps({"cmd": command}).encode() + b"\n")
        except OSError:  # it has closed its end or reads nothing: the grace period deals with it
            log.warning("the algorithm does not take the request %r", command)

    def _signal_group(self, number: int) -> None:
        assert self._child is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)

    def _kill(self) -> None:
        self._signal_group(signal.SIGKILL)
        processes.signal_descendants(signal.SIGKILL, self._spare)


def judge(left: Exit) -> Ending:
    """What a child's exit means for the run."""
    killed_by = -left.status if left.status < 0 else None
    return_code = 128 + killed_by if killed_by is not None else left.status
    if "finished" in left.said and "failing" not in left.said:
        message = str(left.said["finished"].get("message") or "The run did all its steps.")[:4000]
        if left.status != 0:  # all is done and saved: a library that crashes on its way out takes nothing of it back
            message += f" Its process did not end well after that: {_failure(left, killed_by)[1]}"
        return Ending("completed", 0, "Completed", message, 0)
    if left.stop is not None:
        message = left.stop.message
        if left.forced:
            message += "; the algorithm did not stop within the grace period and was killed"
        elif left.spoke and "stopped" not in left.said:
            message += "; the algorithm ended without confirming a checkpoint"
        elif left.spoke and left.said["stopped"].get("checkpoint") is None:
            message += "; no checkpoint could be written, and the last one stands"
        return Ending(left.stop.outcome, left.stop.exit_code, left.stop.reason, message, return_code, killed_by)
    if "stopped" in left.said:
        return Ending("canceled", return_code, "Stopped", "the algorithm was stopped by somebody else", return_code)
    if left.status == 0:
        return _unasked_end(left)
    reason, message = _failure(left, killed_by)
    return Ending("failed", return_code or 1, reason, message, return_code, killed_by)


def _unasked_end(left: Exit) -> Ending:
    if not left.spoke:  # a foreign script says all it has to say with its exit code
        return Ending("completed", 0, "Completed", "the script ended with exit code 0", 0)
    return Ending("failed", 1, "EndedEarly", "the algorithm ended without having made all its steps", 0)


def _failure(left: Exit, killed_by: int | None) -> tuple[str, str]:
    failing = left.said.get("failing", {})
    if failing:
        return _word(failing.get("reason"), "Error"), str(failing.get("message") or "the algorithm failed")[:4000]
    if killed_by is not None:
        name = signal.Signals(killed_by).name if killed_by in set(signal.Signals) else str(killed_by)
        if killed_by == signal.SIGKILL and left.ran_out_of_memory:
            return (
                "OOMKilled",
                "killed by the kernel: out of memory; give the run more memory or a smaller replay buffer",
            )
        return "Killed", f"killed by signal {killed_by} ({name})"
    reason = {2: "BadConfig", 3: "Diverged"}.get(left.status, "Error")
    last = left.stderr_tail[-1] if left.stderr_tail else "it printed nothing on stderr"
    return reason, f"the algorithm ended with exit code {left.status}: {last}"


def _word(value: object, default: str) -> str:
    text = str(value or "")
    return text if re.fullmatch(REASON, text) else default

"""Linux processes: dying with the parent, adopting orphans, and finding and ending everything that a run started.

Three mechanisms together leave nothing behind:
- the child asks the kernel to be killed when the supervisor dies (`die_with`), however that happens;
- the supervisor is a subreaper, so grandchildren that made sessions of their own (torchrun, wandb) become its children
  when their parent dies, and `end_descendants` finds them;
- every process of a run carries `MARKER` in its environment; when the supervisor itself was killed, the next start of
  any run finds those whose supervisor is gone (`sweep_orphans`).

Process numbers are used again by the kernel. Whatever is killed here is first pinned with a pidfd and then identified
by its start time, so that no unrelated process can be hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

MARKER = "CLEANRL_SUPERVISED"
"""Environment variable of a run's processes: `<pid>:<start time>:<pid namespace>` of the supervisor."""

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Identity:
    """One process for all time: its number and when it started, in clock ticks since boot."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        facts = _stat(pid)
        return None if facts is None else cls(pid, facts.start_time)

    def alive(self) -> bool:
        facts = _stat(self.pid)
        return facts is not None and facts.start_time == self.start_time and facts.state not in "ZX"


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    start_time: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
    return _Stat(state=fields[0], parent=int(fields[1]), start_time=int(fields[19]))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; exit at once when it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request took effect
        os._exit(128 + signal.SIGKILL)


def become_subreaper() -> None:
    """From now on, orphaned descendants of this process become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def marker() -> str:
    """What the processes of this supervisor carry in `MARKER`."""
    me = Identity.of(os.getpid())
    assert me is not None
    return f"{me.pid}:{me.start_time}:{_namespace('self')}"


def _namespace(pid: str) -> str:
    return str((_PROC / pid / "ns" / "pid").readlink()).strip("pid:[]")


def descendants(root: int) -> list[Identity]:
    """Every living or unreaped process below `root`, nearest first."""
    children: dict[int, list[int]] = {}
    started: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (facts := _stat(int(entry.name))) is not None:
            children.setdefault(facts.parent, []).append(int(entry.name))
            started[int(entry.name)] = facts.start_time
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += [Identity(pid, started[pid]) for pid in below]
        queue += below
    return found


def signal_descendants(number: int, spare: frozenset[Identity]) -> None:
    """Send a signal to every descendant of this process except those that were there before the run."""
    for process in descendants(os.getpid()):
        if process not in spare:
            _send(process, number)


def end_descendants(spare: frozenset[Identity], patience: float = 10.0) -> list[int]:
    """Kill and reap every descendant of this process that is not in `spare`; the numbers of those that would not die.

    Killing goes on until a look finds none: a process may fork while we look, and one that dies hands its children to
    us. A survivor is stuck in the kernel (a dead network file system) and past anybody's help.
    """
    deadline = time.monotonic() + patience
    while True:
        rest = [process for process in descendants(os.getpid()) if process not in spare]
        for process in rest:
            _send(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # not a child of ours yet, or reaped by subprocess
                os.waitpid(process.pid, os.WNOHANG)
        if not rest or time.monotonic() > deadline:
            return [process.pid for process in rest]
        time.sleep(0.01)


def reap_adopted(child: int) -> None:
    """Take leave of dead orphans that were adopted, so that a long run does not collect them. Not of `child`."""
    with contextlib.suppress(ChildProcessError):
        while True:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is None or dead.si_pid == child:
                return
            os.waitpid(dead.si_pid, os.WNOHANG)


def sweep_orphans() -> list[int]:
    """Kill what earlier supervisors, now dead, left running for this user; the numbers of those killed.

    Only processes of this user and of this PID namespace count: a supervisor inside a container has numbers of its own,
    and from outside its living processes would look abandoned.
    """
    here, user, killed = _namespace("self"), os.getuid(), []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != user or _namespace(entry.name) != here:
                continue
            process = Identity.of(int(entry.name))
            if process is None or not _is_orphan(entry, here):
                continue
        except OSError:  # it ended while we looked, or it is not ours to look at
            continue
        if _send(process, signal.SIGKILL):
            killed.append(process.pid)
    return killed


def _is_orphan(process: Path, namespace: str) -> bool:
    prefix = f"{MARKER}=".encode()
    for variable in (process / "environ").read_bytes().split(b"\0"):
        if variable.startswith(prefix):
            pid, _, rest = variable.removeprefix(prefix).decode(errors="replace").partition(":")
            start_time, _, where = rest.partition(":")
            if not (pid.isdigit() and start_time.isdigit() and where == namespace):
                return False
            return not Identity(int(pid), int(start_time)).alive()
    return False


def _send(process: Identity, number: int) -> bool:
    """Signal exactly this process: pinned first, so that its number can't change hands between look and signal."""
    try:
        pin = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not process.alive():
            return False
        signal.pidfd_send_signal(pin, number)
    except OSError:
        return False
    finally:
        os.close(pin)
    return True


def oom_kills() -> int | None:
    """How often the kernel killed for lack of memory in this control group; None when that can't be told."""
    for path in (Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdigit():
                return int(count)
    return None

"""Processes that outlive the command that starts them, and how to recognise them again.

A component runs in a session of its own. Its pid is stored together with its start time and the machine's boot id, so
that a pid which the kernel has given to someone else is never taken for ours. Each process also carries the cluster's
folder in its environment: that finds what a killed command started but could not write down, and the helpers that
components start themselves. Signals go through a pidfd, after the identity was checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from devcluster.layout import Layout, read_json, write_atomically

MARK = "DEVCLUSTER_STATE"
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Components started by this very process: they must be reaped here when they end."""


@dataclass(frozen=True)
class Identity:
    """One process of this boot, never mistaken for a later one with the same pid."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of a living process; None when there is none, or only its corpse."""
        _reap(pid)
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        if fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]), _boot())

    def alive(self) -> bool:
        """Whether this same process still runs."""
        return Identity.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal to this process and to no other; a process that has ended is left in peace."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def wait(self, seconds: float) -> bool:
        """Wait for the process to end; True when it has."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.alive():
                return True
            select.select([descriptor], [], [], max(0.0, seconds))
        finally:
            os.close(descriptor)
        return not self.alive()

    def memory(self) -> int:
        """Resident memory in bytes; 0 when the process has ended."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


def start(
    argv: Sequence[str], *, log: Path, record: Path, mark: Path, env: Mapping[str, str] | None = None
) -> Identity:
    """Start a program in its own session, its output in `log`, its identity in `record`."""
    environment = {**os.environ, **(env or {}), MARK: str(mark)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
    _children[process.pid] = process
    identity = Identity.of(process.pid) or Identity(process.pid, -1, _boot())
    write_atomically(record, json.dumps(asdict(identity)))
    return identity


def recorded(record: Path) -> Identity | None:
    """The living process that a record speaks of."""
    stored = read_json(record)
    if stored is None:
        return None
    try:
        identity = Identity(int(stored["pid"]), int(stored["started"]), str(stored["boot"]))
    except (KeyError, TypeError, ValueError):
        return None
    return identity if identity.alive() else None


def marked(mark: Path) -> list[Identity]:
    """Every living process that carries the cluster's folder in its environment."""
    return [identity for pid, each in _marks() if each == mark and (identity := Identity.of(pid))]


def namesakes(mark: Path) -> dict[Path, bool]:
    """The folders of living clusters of the same name in another home, and whether a process of theirs still sees what the
    cluster is made by; a folder alone may have been made anew by a process that outlived it."""
    found: dict[Path, bool] = {}
    for pid, each in _marks():
        if each.name == mark.name and each != mark:
            spec = Layout(each.name, each).spec_file
            found[each] = found.get(each, False) or Path(f"/proc/{pid}/root{spec}").exists()
    return found


def _marks() -> Iterator[tuple[int, Path]]:
    """Every process that carries some cluster's folder, this one apart."""
    begin = f"{MARK}=".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        for variable in environment.split(b"\0"):
            if variable.startswith(begin):
                yield int(entry.name), Path(os.fsdecode(variable.removeprefix(begin)))


def stop(identities: Iterable[Identity], *, grace: float) -> None:
    """Ask all of them to end, wait, and kill the ones that did not. Returns when none is left."""
    waiting = list(identities)
    for identity in waiting:
        identity.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    kill([each for each in waiting if not each.wait(deadline - time.monotonic())])


def kill(identities: Sequence[Identity]) -> None:
    """End all of them at once, without asking."""
    for identity in identities:
        identity.signal(signal.SIGKILL)
    for identity in identities:
        identity.wait(10)


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

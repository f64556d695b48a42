"""The sweep for orphans and the parent-death request, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from cleanrl_worker import processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(**env: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(SLEEP, env={**os.environ, **env}))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def dead_supervisor() -> str:
    """The marker of a process that has ended."""
    program = "from cleanrl_worker.processes import marker; print(marker())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


def test_the_sweep_takes_orphans_and_nothing_else(
    sleeper: Callable[..., subprocess.Popen[bytes]], look: SimpleNamespace
) -> None:
    dead, alive = dead_supervisor(), processes.marker()
    pid, start_time, namespace = alive.split(":")
    orphan = sleeper(**{processes.MARKER: dead})
    spared = [
        sleeper(),
        sleeper(**{processes.MARKER: alive}),
        sleeper(**{processes.MARKER: f"{dead.rpartition(':')[0]}:1"}),  # of another PID namespace
        sleeper(**{processes.MARKER: "nonsense"}),
        sleeper(**{processes.MARKER: ""}),
        sleeper(**{f"X_{processes.MARKER}": dead}),
    ]
    reused = sleeper(**{processes.MARKER: f"{pid}:{int(start_time) + 1}:{namespace}"})  # our number, another process
    look.wait_for(lambda: b"time.sleep" in open(f"/proc/{reused.pid}/cmdline", "rb").read())  # noqa: PTH123, SIM115
    processes.sweep_orphans()
    assert orphan.wait() == reused.wait() == -signal.SIGKILL
    assert all(process.poll() is None for process in spared)


def test_a_child_whose_parent_is_gone_already_leaves_at_once() -> None:
    program = "from cleanrl_worker.processes import die_with; die_with(1 << 22); print('still here')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (137, "")


def test_descendants_are_found_across_sessions_and_spared_when_they_were_there_before() -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "from cleanrl_worker import processes\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "processes.become_subreaper()\n"
        "before = subprocess.Popen(sleep)\n"
        "spare = frozenset(processes.descendants(os.getpid()))\n"
        # a child that starts a daemon in a session of its own and leaves
        "script = 'import subprocess, sys; subprocess.Popen(%r, start_new_session=True)' % (sleep,)\n"
        "subprocess.run([sys.executable, '-c', script], check=True)\n"
        "found = [p.pid for p in processes.descendants(os.getpid()) if p not in spare]\n"
        "assert len(found) == 1, found\n"
        "assert processes.end_descendants(spare) == []\n"
        "assert [p.pid for p in processes.descendants(os.getpid())] == [before.pid]\n"
        "assert before.poll() is None\n"
        "before.kill()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_adopted_orphans_are_not_collected() -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "from cleanrl_worker import processes\n"
        "processes.become_subreaper()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "script = 'import subprocess; subprocess.Popen([\"true\"], start_new_session=True)'\n"
        "subprocess.run([sys.executable, '-c', script], check=True)\n"
        "deadline = time.monotonic() + 30\n"
        "while len(processes.descendants(os.getpid())) > 1 and time.monotonic() < deadline:\n"
        "    processes.reap_adopted(child.pid)\n"
        "    time.sleep(0.01)\n"
        "assert [p.pid for p in processes.descendants(os.getpid())] == [child.pid]\n"
        "child.kill()\n"
        "processes.reap_adopted(child.pid)\n"
        "assert child.wait() == -9, 'the child is left to the one who waits for it'\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr

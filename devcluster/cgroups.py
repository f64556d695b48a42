"""The control groups of a node's pods: one tree for each cluster, under which every process of every pod is found."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from devcluster.errors import ClusterError

_MOUNT = Path("/sys/fs/cgroup")
_WANTED = ("cpu", "memory", "pids", "cpuset", "io")


def group_name(cluster: str) -> str:
    """The tree's name."""
    return f"devcluster-{cluster}"


def writable() -> bool:
    """Whether trees can be made here at all."""
    found = _hierarchies()
    return bool(found) and all(os.access(each, os.W_OK) for each in found)


def make(cluster: str) -> None:
    """Create the tree in every hierarchy."""
    for hierarchy in _hierarchies():
        try:
            (hierarchy / group_name(cluster)).mkdir(exist_ok=True)
        except OSError as error:
            raise ClusterError(
                f"Control groups can't be made in {hierarchy} ({error.strerror}): a node needs them writable; leave --node "
                "out, or use your own cluster through KUBECONFIG."
            ) from error
    if _unified():
        _delegate(_MOUNT)
    _weigh(group_name(cluster), part_of_machine(os.getpriority(os.PRIO_PROCESS, 0), os.cpu_count() or 1))


def part_of_machine(nice: int, cores: int) -> float:
    """What a node weighs against a process of the machine that has niceness 0.

    As much as a process on each core would that is as nice as whoever starts the node. Left alone, a tree weighs as much as one
    process, whatever is in it: a node's pods would starve beside the cluster's own control plane, and niceness, which does not
    reach into control groups, would hold for everything of a cluster but its pods.
    """
    return float(cores * 1.25**-nice)


def remove(cluster: str, seconds: float = 20) -> None:
    """Kill every process in the tree, and remove the tree."""
    deadline = time.monotonic() + seconds
    while roots := [root for each in _hierarchies() if (root := each / group_name(cluster)).is_dir()]:
        for root in roots:
            for file in root.rglob("cgroup.procs"):
                _kill(file)
            folders = sorted((path for path in root.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
            for folder in [*folders, root]:
                with contextlib.suppress(OSError):  # still busy: its processes are on their way out
                    folder.rmdir()
        if time.monotonic() > deadline:
            raise ClusterError(f"Processes of pods do not end: see {roots[0]}; run `devcluster down` again.")
        time.sleep(0.05)


def _weigh(group: str, weight: float) -> None:
    for hierarchy in _hierarchies():
        for name, usual, least, most in (("cpu.weight", 100, 1, 10_000), ("cpu.shares", 1024, 2, 262_144)):
            file = hierarchy / group / name
            if file.exists():
                file.write_text(str(max(least, min(most, round(usual * weight)))))


def _kill(file: Path) -> None:
    with contextlib.suppress(OSError):
        for line in file.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGKILL)


def _unified() -> bool:
    return (_MOUNT / "cgroup.controllers").exists()


def _hierarchies() -> list[Path]:
    if _unified():
        return [_MOUNT]
    mounts = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, *_ = line.split()
        if kind in {"cgroup", "cgroup2"}:
            mounts.append(Path(target))
    return mounts


def _delegate(root: Path) -> None:
    """Let the children of the unified hierarchy's root have the controllers that the kubelet counts with."""
    available = (root / "cgroup.controllers").read_text().split()
    try:
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _WANTED if name in available))
    except OSError as error:
        raise ClusterError(
            f"Controllers can't be handed to a node in {root} ({error.strerror}): in a container, start it privileged and "
            "with the host's control groups; or leave --node out, or use your own cluster through KUBECONFIG."
        ) from error

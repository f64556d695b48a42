"""Where a cluster keeps its things: one folder for each name, nothing elsewhere.

The folder is the user's state folder (`$XDG_STATE_HOME/devcluster/<name>`, or `~/.local/state/devcluster/<name>`).
Beside it lies `<name>.lock`, held while a command works on that cluster. Unix sockets need short paths, so the node's
sockets and run-time state live in `/run/devcluster/<name>`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.errors import Busy, ClusterError

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
RUN_ROOT = Path("/run/devcluster")


def state_root() -> Path:
    """The folder that holds every cluster of this user."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "devcluster"


@dataclass(frozen=True)
class Layout:
    """The paths of one cluster."""

    name: str
    root: Path

    @classmethod
    def of(cls, name: str) -> Layout:
        """The layout for a cluster's name; refuses names that could not be folder and host names."""
        if not NAME.fullmatch(name):
            raise ClusterError(
                f"{name!r} can't be a cluster's name: use at most 40 lower-case letters, digits and hyphens, "
                "with a letter or digit at both ends."
            )
        return cls(name, (state_root() / name).absolute())

    @property
    def spec_file(self) -> Path:
        """What was asked for, and the ports and addresses chosen for it."""
        return self.root / "cluster.json"

    @property
    def lock_file(self) -> Path:
        """Held while a command changes this cluster."""
        return self.root.parent / f"{self.name}.lock"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.root / "pki"

    @property
    def config(self) -> Path:
        """Configuration files and kubeconfigs of the components."""
        return self.root / "config"

    @property
    def logs(self) -> Path:
        """One log file for each component."""
        return self.root / "logs"

    @property
    def pids(self) -> Path:
        """One identity file for each component that was started."""
        return self.root / "pids"

    @property
    def etcd(self) -> Path:
        """The cluster's memory."""
        return self.root / "etcd"

    @property
    def volumes(self) -> Path:
        """One folder for each persistent volume."""
        return self.root / "volumes"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's access to the API server."""
        return self.root / "kubeconfig"

    @property
    def faulty_kubeconfig(self) -> Path:
        """The same access through the fault proxy."""
        return self.root / "kubeconfig-faulty"

    @property
    def audit_log(self) -> Path:
        """One JSON line for each request, when asked for."""
        return self.logs / "audit.log"

    @property
    def run(self) -> Path:
        """The node's sockets and run-time state."""
        return RUN_ROOT / self.name

    def log_of(self, component: str) -> Path:
        """Where a component writes."""
        return self.logs / f"{component}.log"

    def make(self) -> None:
        """Create the folders, readable by their owner only: they hold keys. Volumes are for pods of any user."""
        for folder in (self.root, self.pki, self.config, self.logs, self.pids, self.etcd):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def known_clusters() -> list[str]:
    """Names of the clusters that have a folder."""
    root = state_root()
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if path.is_dir() and NAME.fullmatch(path.name))


@contextlib.contextmanager
def locked(layout: Layout, *, wait: bool = False) -> Iterator[None]:
    """Hold the cluster's lock; with another command at work on the same name, say so instead of waiting."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive(layout.lock_file, wait=wait, keep=layout.root.exists))
        except BlockingIOError as error:
            raise Busy(
                f"Another devcluster command (process {error.strerror}) is at work on cluster {layout.name!r}: "
                "wait for it to end, or choose another --name."
            ) from None
        except OSError as error:
            raise ClusterError(
                f"{layout.lock_file.parent} can't be written ({error.strerror}): set XDG_STATE_HOME to a folder of yours."
            ) from None
        yield


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool, keep: Callable[[], bool]) -> Iterator[None]:
    """Hold a lock file; afterwards it is removed, unless `keep` says no.

    Without `wait`, a lock that is held raises BlockingIOError with the holder's pid as its text.
    """
    descriptor = _open_locked(path, wait)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        if not keep():
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others have something there
                path.parent.rmdir()
        os.close(descriptor)


def _open_locked(path: Path, wait: bool) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the folder was removed with the last lock in it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still_there(path, descriptor):
                return descriptor
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise BlockingIOError(error.errno, holder) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the file was removed between our open and our lock


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file in one step, so that a reader or a killed writer never leaves half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, or None when the file is missing or broken."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None

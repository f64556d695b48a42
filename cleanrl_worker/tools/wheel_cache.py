"""A folder of wheels, filled once on a machine with network and installed from on machines without.

    <cache>/wheels/*.whl            every wheel, shared by the sets that need it
    <cache>/sets/<key>.json         for one list of packages on one Python: the wheels and their sha256

Only wheels whose checksum is the recorded one are offered to the installer. The folder can be copied as it is.
"""

from __future__ import annotations

import hashlib
import json
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cleanrl_worker.tools import locks
from cleanrl_worker.tools.installer import Installer, InstallError


def python_tag() -> dict[str, str]:
    """What decides whether a wheel or an environment fits another machine."""
    return {
        "implementation": sys.implementation.name,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "platform": sysconfig.get_platform(),
    }


def key_of(facts: dict[str, Any]) -> str:
    """A short name for these facts, the same in every process."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def sha256_of(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class WheelCache:
    """See the module. Safe with several processes: one fills at a time, and files appear whole or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = root / "wheels"

    def record_path(self, packages: Sequence[str]) -> Path:
        return self.root / "sets" / f"{key_of({'packages': sorted(packages), **python_tag()})}.json"

    def damage(self, packages: Sequence[str]) -> str | None:
        """Why the cache can't serve these packages, or None when it can."""
        path = self.record_path(packages)
        try:
            files = json.loads(path.read_text())["files"]
            for name, digest in files.items():
                if Path(name).name != name:
                    return f"the record {path.name} names a file outside of the cache: {name!r}"
                wheel = self.wheels / name
                if not wheel.is_file():
                    return f"{name} is missing"
                if sha256_of(wheel) != digest:
                    return f"{name} does not have its recorded checksum"
        except FileNotFoundError:
            return "these packages were never downloaded into it for this Python"
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            return f"its record {path.name} is damaged ({error})"
        return None

    def fill(self, packages: Sequence[str], installer: Installer) -> bool:
        """Make sure that the cache holds these packages. True when it had to download them."""
        with locks.exclusive(self.root / ".lock"):
            damage = self.damage(packages)
            if damage is None:
                return False
            print(f"wheel cache {self.root}: {damage}; downloading", file=sys.stderr, flush=True)
            self.wheels.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".incoming-", dir=self.root) as incoming:
                installer.get_wheels(packages, Path(incoming))
                self._take_over(packages, Path(incoming))
            return True

    def _take_over(self, packages: Sequence[str], incoming: Path) -> None:
        files = {}
        for wheel in sorted(incoming.glob("*.whl")):
            files[wheel.name] = sha256_of(wheel)
            present = self.wheels / wheel.name
            if not present.is_file() or sha256_of(present) != files[wheel.name]:
                if present.is_file():
                    self._forget(wheel.name)  # another set recorded other bytes under this name
                wheel.replace(present)
        if not files:
            raise InstallError(f"the installer brought no wheels for {', '.join(packages)}")
        record = self.record_path(packages)
        record.parent.mkdir(exist_ok=True)
        partial = record.with_suffix(".partial")
        facts = {"packages": sorted(packages), **python_tag(), "files": files}
        partial.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
        partial.replace(record)

    def _forget(self, name: str) -> None:
        """Drop the records that name a wheel that is about to change, so that they are downloaded anew when needed."""
        for record in (self.root / "sets").glob("*.json"):
            try:
                named = name in json.loads(record.read_text())["files"]
            except (ValueError, KeyError, TypeError):
                named = True
            if named:
                record.unlink()

    @contextmanager
    def verified(self, packages: Sequence[str]) -> Iterator[Path]:
        """A folder with exactly the recorded wheels, checksums compared just now. Raises InstallError otherwise."""
        with locks.exclusive(self.root / ".lock"), tempfile.TemporaryDirectory(prefix="wheels-") as folder:
            damage = self.damage(packages)
            if damage is not None:
                raise InstallError(f"the wheel cache {self.root} can't be used: {damage}", unreachable=True)
            for name in json.loads(self.record_path(packages).read_text())["files"]:
                (Path(folder) / name).symlink_to((self.wheels / name).resolve())
            yield Path(folder)

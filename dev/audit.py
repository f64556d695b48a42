"""What we depend on, looked at: `make audit`.

Three questions that the lock file and the installed packages answer by themselves (CI asks them too): is everything pinned to
an exact version with hashes, from a registry; does the lock know every requirement that pyproject.toml names; which licences
are there beyond the permissive ones. And one that only a vulnerability service answers: is anything known to be broken. Without
a way to that service the answer is "not known", said aloud, with exit code 3; never "all is well".
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
UNKNOWN = 3
PERMISSIVE = re.compile(r"MIT|Apache|BSD|ISC|PSF|Python Software Foundation|Zlib|MPL|Mozilla|CC0|NVIDIA", re.IGNORECASE)
KNOWN_EXCEPTIONS = {
    "ale-py": "GPL-2.0: the Arcade Learning Environment, only in the sets atari and pettingzoo, which a user chooses",
    "multi-agent-ale-py": "GPL: the same with several players, only in the set pettingzoo",
    "pygame-ce": "LGPL-2.1: draws the frames of classic control, used as a library",
    "cuda-toolkit": "names no licence: an empty package of NVIDIA's that torch asks for",
}
"""Packages that are not under a permissive licence, and why they are here. A new one is a decision: the check stops at it."""


def load(name: str) -> dict[str, Any]:
    """A TOML file of the project."""
    return tomllib.loads((PROJECT / name).read_text())


def loosely_locked(lock: dict[str, Any]) -> Iterator[str]:
    """Packages that could change under us: no registry, no exact version, a file without a hash."""
    for package in lock["package"]:
        name, source = package["name"], package["source"]
        if source == {"editable": "."}:
            continue
        if "registry" not in source:
            yield f"{name} comes from {source}, not from a registry"
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        if "version" not in package or not files:
            yield f"{name} has no version or no file"
        yield from (
            f"{name}: {file['url']} has no sha256" for file in files if not file.get("hash", "").startswith("sha256:")
        )


def not_in_lock(lock: dict[str, Any], project: dict[str, Any]) -> Iterator[str]:
    """Requirements of pyproject.toml that the lock was not made for, and the other way round."""
    own = next(package for package in lock["package"] if package["source"] == {"editable": "."})
    asked = {_plain(text): "" for text in project["project"]["dependencies"]}
    for extra, requirements in project["project"]["optional-dependencies"].items():
        asked |= {_plain(text): extra for text in requirements}
    asked |= {_plain(text): "dev" for text in project["dependency-groups"]["dev"]}
    metadata = own["metadata"]
    known = [*metadata["requires-dist"], *metadata["requires-dev"]["dev"]]
    locked = {(entry["name"], entry.get("specifier", "")) for entry in known}
    yield from (
        f"{name}{bound} is required and not in the lock: run `uv lock`" for name, bound in sorted(set(asked) - locked)
    )
    yield from (
        f"{name}{bound} is in the lock and not required: run `uv lock`" for name, bound in sorted(locked - set(asked))
    )


def _plain(requirement: str) -> tuple[str, str]:
    """Name and bounds of a requirement, as the lock writes them."""
    head = requirement.partition(";")[0].strip()
    match = re.match(r"([A-Za-z0-9._-]+)(\[[^]]*\])?(.*)", head)
    assert match is not None
    bounds = sorted(part.strip() for part in match[3].split(",") if part.strip())
    return re.sub(r"[-_.]+", "-", match[1]).lower(), ",".join(
        sorted(bounds, key=lambda bound: (bound[0] != ">", bound))
    )


def licence_of(distribution: importlib.metadata.Distribution) -> str:
    """What a package says of its licence, shortly."""
    metadata = distribution.metadata
    classified = [line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or [] if line.startswith("License")]
    said = metadata.get("License-Expression") or "; ".join(classified) or metadata.get("License") or ""
    return said.splitlines()[0][:80] if said else "none named"


def unusual_licences() -> Iterator[str]:
    """Installed packages whose licence is not permissive and that nobody has decided on."""
    for distribution in importlib.metadata.distributions():
        name, licence = distribution.metadata["Name"], licence_of(distribution)
        if not PERMISSIVE.search(licence) and name.lower() not in KNOWN_EXCEPTIONS and name != "cleanrl-operator":
            yield f"{name}: {licence}"


def vulnerabilities(uv: str) -> int:
    """Ask the vulnerability service, through uv. 0: nothing known, 1: something is, 3: it could not be asked."""
    command = [uv, "audit", "--frozen", "--preview-features", "audit-command"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 0:
        print("no known vulnerability in what the lock names")
        return 0
    if "unrecognized subcommand" in said:
        print(
            "NOT CHECKED for known vulnerabilities: this uv can't ask for them yet. Update it, and run `make audit` again."
        )
        return UNKNOWN
    if re.search(r"error sending request|dns error|connect|timed out", said, re.IGNORECASE):
        print(
            "NOT CHECKED for known vulnerabilities: the service can't be reached from here. Run `make audit` where it can."
        )
        return UNKNOWN
    print(said.strip())
    return 1


def main() -> int:
    """Everything, worst exit code last."""
    lock, project = load("uv.lock"), load("pyproject.toml")
    found = [*loosely_locked(lock), *not_in_lock(lock, project), *unusual_licences()]
    for sentence in found:
        print(sentence)
    if not found:
        print(f"{len(lock['package'])} packages, each pinned and hashed; licences permissive, except:")
        for name, why in KNOWN_EXCEPTIONS.items():
            print(f"  {name}: {why}")
    spec = importlib.util.spec_from_file_location("bootstrap", PROJECT / "dev" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    asked = vulnerabilities(bootstrap.find_uv())
    return 1 if found else asked


if __name__ == "__main__":
    sys.exit(main())

"""What one launch of an algorithm through the worker came to, as a JSON file that a test leaves behind.

A record holds what was submitted, that the worker registered, what it left in the run's folder, and how it ended. It is
written for failures as well: `coverage_matrix` shows what happened, not what was hoped for. Paths in it are relative to
the run's folder, and no token or secret is ever part of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

VERSION = 1
FAILED = "FAILED"
CHECKS = "checks"
"""The folder among the records where resume and evaluation leave what they found."""


class SmokeRecordError(ValueError):
    """A file among the records that is not one."""


@dataclass(frozen=True)
class SmokeRecord:
    """One launch."""

    algo: str
    env_id: str
    outcome: str
    """`completed`, or how else it ended, in a few words."""
    payload: dict[str, Any]
    """The configuration as it was submitted."""
    command: list[str]
    """The arguments after the interpreter."""
    handshake: dict[str, Any]
    """What the gateway was told by RegisterWorker; empty when the worker never registered."""
    events: list[str]
    """The names of the events that reached the gateway, in order, each run of equal ones once."""
    artifacts: list[str]
    """Files in the run's folder."""
    updates: int
    """Gradient updates seen: distinct steps at which the algorithm logged its loss."""
    update_tag: str
    steps: int
    steps_per_second: float
    seconds: float
    resume: str = "not checked"
    evaluation: str = "not checked"
    date: str = ""
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    version: int = VERSION


def write(folder: Path, record: SmokeRecord) -> Path:
    """Save the record, in place of an earlier one of the same algorithm on the same environment."""
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^A-Za-z0-9.-]+", "_", record.env_id)
    path = folder / f"{record.algo}__{slug}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(record), indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_all(folder: Path) -> list[SmokeRecord]:
    """Every record in the folder, by algorithm and environment. Raises SmokeRecordError for a file that is not one."""
    records = []
    known = {item.name for item in fields(SmokeRecord)}
    for path in sorted(folder.glob("*.json")):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            if facts.get("version") != VERSION or not known.issuperset(facts):
                raise ValueError(f"it is not of version {VERSION}")  # noqa: TRY301
            records.append(SmokeRecord(**facts))
        except (ValueError, TypeError, AttributeError) as error:
            raise SmokeRecordError(f"{path} is not a smoke record ({error}); remove it and launch again") from None
    return sorted(records, key=lambda record: (record.algo, record.env_id))


def source_digest(algo: str) -> str:
    """What the algorithm's file is, in twelve digits: a check counts for the source that was checked."""
    source = Path(__file__).parents[1] / "algorithms" / f"{algo}.py"
    return hashlib.sha256(source.read_bytes()).hexdigest()[:12]


def note_check(folder: Path, algo: str, what: str, result: str) -> None:
    """Keep that `what` (resume or evaluation) of the algorithm, as its source is now, was checked, and how it went."""
    path = folder / CHECKS / f"{algo}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = read_check(folder, algo)
    if found.get("source") != source_digest(algo):
        found = {"source": source_digest(algo)}
    if found.get(what) != FAILED:  # one failure is not made good by another test's success
        found[what] = result
    path.write_text(json.dumps(found, sort_keys=True) + "\n", encoding="utf-8")


def read_check(folder: Path, algo: str) -> dict[str, str]:
    """What was found for the algorithm; nothing when it was not checked."""
    path = folder / CHECKS / f"{algo}.json"
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SmokeRecordError(f"{path} can't be read ({error}); remove it and check again") from None
    return {str(name): str(value) for name, value in found.items()}

"""The generated reference pages say what the models say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[3]


def test_they_are_what_the_generator_writes() -> None:
    command = [sys.executable, str(PROJECT / "dev" / "docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_reason_has_its_remedy() -> None:
    from cleanrl_operator.facts import EndReason

    page = (PROJECT / "docs" / "runbooks" / "faults.md").read_text()
    assert [reason for reason in EndReason if reason != EndReason.COMPLETED and f"| `{reason}` |" not in page] == []

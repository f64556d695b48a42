"""The fenced blocks of a document."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    page: Path
    line: int
    language: str
    text: str
    before: str
    """The line above the fence."""


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        above = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        number = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, number, match["language"], textwrap.dedent(match["body"]), above))
    return found

"""JSON from the API server, however deep somebody has nested what he may fill in as he likes.

The API server takes ten thousand levels, parsers here give up at a few hundred. But a list holds the runs of all tenants and a
watch their news: neither may end for the sake of one run. So what lies deeper than anybody needs is left out when it can't be
read otherwise, and the run that it belongs to is one that can't be read, which its conditions say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

DEEPEST = 100
"""So many levels are left of a text that is nested more deeply than the parser can follow: about half of what it can."""
MOST_LEVELS = 50
"""So many levels a run's spec may have."""
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def parse(text: bytes | str) -> Any:
    """The value of a JSON text, without what is too deep. Raises ValueError."""
    data = text.encode() if isinstance(text, str) else text
    try:
        return from_json(data)
    except ValueError:
        return from_json(_cut(data))


def _cut(data: bytes) -> bytes:
    """The text with null for each value below the deepest level."""
    kept: list[bytes] = []
    level = begin = 0
    for token in _TOKENS.finditer(data):
        if token[0] in (b"{", b"["):
            level += 1
            if level == DEEPEST + 1:
                kept += (data[begin : token.start()], b"null")
        elif token[0] in (b"}", b"]"):
            if level == DEEPEST + 1:
                begin = token.end()
            level -= 1
    return b"".join([*kept, data[begin:]])


def is_too_deep(value: Any, levels: int = MOST_LEVELS) -> bool:
    """Whether a value has more levels than these."""
    if not isinstance(value, Mapping | list):
        return False
    parts = value.values() if isinstance(value, Mapping) else value
    return levels == 0 or any(is_too_deep(part, levels - 1) for part in parts)

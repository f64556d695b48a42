"""Secrets are used, never shown: everything that is printed, logged, saved or sent goes through a `Redactor`.

A value is hidden when its name says that it is a secret (`wandb_api_key`, `HF_TOKEN`, ...), when it contains a secret's
value that is known to this process, or, for the password part of a URL, when it looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?i)(^|[_\-.])(api[_\-]?key|access[_\-]?key|private[_\-]?key|key[_\-]?id|token|secret|passwd|password|"
    r"passphrase|credentials?|netrc|authorization)s?($|[_\-.])"
)
_URL_PASSWORD = re.compile(r"(?i)\b([a-z][a-z0-9+.\-]*://)[^\s/@:]*:[^\s/@]+@")
_POINTER_NAME = re.compile(r"(?i)[_\-](file|path|dir|url|endpoint|name|sock)$")
"""`TOKEN_FILE` says where a secret is, not what it is."""
_SHORTEST_SECRET = 8
"""Shorter values are too common as ordinary text to be replaced wherever they occur."""


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and _POINTER_NAME.search(name) is None


class Redactor:
    """Replaces secrets in text and in nested data. `values` are secrets known by value."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {value for value in values if len(value) >= _SHORTEST_SECRET}
        self._values = sorted(known, key=len, reverse=True)

    @classmethod
    def for_environment(cls, *environments: Mapping[str, str], values: Iterable[str] = ()) -> Redactor:
        """One that knows every value whose variable's name says that it is a secret."""
        found = [value for env in environments for name, value in env.items() if is_secret_name(name)]
        return cls([*values, *found])

    def text(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return _URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)

    def data(self, value: Any, name: str = "") -> Any:
        """A copy of `value` made of plain dicts, lists and scalars, without secrets."""
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.data(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item, name) for item in value]
        if not isinstance(value, str):
            return value
        return HIDDEN if value and is_secret_name(name) else self.text(value)

    def command(self, command: Iterable[str]) -> list[str]:
        """A command line whose `--name=value` flags hide the values of secret names."""
        shown = []
        for word in command:
            flag, equals, value = word.partition("=")
            hide = bool(equals and value) and flag.startswith("-") and is_secret_name(flag.lstrip("-"))
            shown.append(f"{flag}={HIDDEN}" if hide else self.text(word))
        return shown

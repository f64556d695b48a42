"""Messages as a program of another minor version sends them: with fields that ours does not know, or without newer ones."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
UNKNOWN = b"\xa2\x06\x05later"
"""Field 100, a text: fields are added, never renumbered, so this is what a newer version's message has besides."""


def newer(message: M) -> M:
    """The message with a field that this version does not know."""
    return type(message).FromString(message.SerializeToString() + UNKNOWN)


def older(message: M, *fields: str) -> M:
    """The message without these fields, as before they were added."""
    copy = type(message).FromString(message.SerializeToString())
    for field in fields:
        copy.ClearField(field)
    return copy

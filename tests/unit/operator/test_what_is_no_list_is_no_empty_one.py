"""An answer that is no list (a proxy's page, with 200) says nothing of a collection: what is known is not gone for it."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import pytest
from cleanrl_operator.kube import Kube, KubeError, _parse
from cleanrl_operator.watchdog import Watchdog, Watched


def server(*answers: bytes) -> Kube:
    kube: Any = Kube(AsyncMock())
    kube._request = AsyncMock(side_effect=[_parse(answer) for answer in answers])
    return kube  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("answer", "gone"),
    [(b'{"kind": "List", "items": []}', ["a"]), (b"<html>Please log in</html>", []), (b"", []), (b"{}", [])],
)
def test_only_a_list_tells_what_is_gone(answer: bytes, gone: list[str]) -> None:
    told: list[str] = []
    dog = Watchdog(server(answer), [Watched("runs", "", lambda: {"a": 1}, told.append)])
    try:
        asyncio.run(dog.look())
    except KubeError as error:
        assert error.transient, "it is asked again"
    assert told == gone

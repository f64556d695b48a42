"""A watch that shows nothing is doubted, and one that misses what the API server has is dead; a lively one costs few lists,
which tell what went without its knowing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cleanrl_operator.watchdog import ALL_EVERY, Seen, Watchdog, Watched

PATH = "api/v1/pods"


class Server:
    """An API server with one object, whose version it tells."""

    def __init__(self) -> None:
        self.version = 1
        self.lists = 0

    async def list(self, path: str, *, selector: str, metadata_only: bool) -> AsyncIterator[dict[str, Any]]:
        assert (path, selector, metadata_only) == (PATH, "", True)
        self.lists += 1
        yield {"metadata": {"uid": "a", "resourceVersion": str(self.version)}}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def shown() -> Seen:
    return {"a": 1}


@pytest.fixture
def dog(server: Server, shown: Seen) -> Watchdog:
    watched = Watched(PATH, "", lambda: dict(shown), shown.pop)
    return Watchdog(server, [watched])  # type: ignore[arg-type]  # of a client it needs no more


def look(dog: Watchdog) -> str:
    asyncio.run(dog.look())
    return dog.dead


def test_what_is_missed_twice_in_a_row_is_a_dead_watch(dog: Watchdog, server: Server) -> None:
    assert not look(dog)
    server.version = 2
    assert not look(dog), "it may be on its way"
    assert "the watch on api/v1/pods is dead" in look(dog)


def test_what_came_late_is_no_dead_watch(dog: Watchdog, server: Server, shown: Seen) -> None:
    server.version = 2
    assert not look(dog)
    shown["a"] = 2
    server.version = 3
    assert not look(dog), "another one may be on its way"


def test_a_watch_that_shows_something_is_believed_until_it_falls_silent(dog: Watchdog, server: Server) -> None:
    for _ in range(3):
        dog.noted(PATH)
        assert not look(dog)
    assert server.lists == 0
    server.version = 2
    assert not look(dog)
    assert look(dog)


def test_another_watchs_news_prove_nothing(dog: Watchdog, server: Server) -> None:
    server.version = 2
    for _ in range(2):
        dog.noted("api/v1/namespaces/other/pods")
        look(dog)
    assert dog.dead


def test_what_a_lively_watch_did_not_see_go_is_told_in_a_while(dog: Watchdog, shown: Seen) -> None:
    shown["deleted before the watch began anew"] = 1
    for _ in range(ALL_EVERY):
        assert len(shown) == 2
        dog.noted(PATH)
        assert not look(dog)
    assert shown == {"a": 1}


def test_a_lively_watch_that_nobody_asks_what_went_costs_no_list(server: Server, shown: Seen) -> None:
    dog = Watchdog(server, [Watched(PATH, "", lambda: shown)])  # type: ignore[arg-type]  # as above
    for _ in range(2 * ALL_EVERY):
        dog.noted(PATH)
        assert not look(dog)
    assert server.lists == 0


def test_what_comes_while_all_is_listed_is_not_gone(dog: Watchdog, server: Server, shown: Seen) -> None:
    class Slow(Server):
        async def list(self, path: str, *, selector: str, metadata_only: bool) -> AsyncIterator[dict[str, Any]]:
            async for item in super().list(path, selector=selector, metadata_only=metadata_only):
                yield item
            shown["new"] = 7

    dog.kube = Slow()  # type: ignore[assignment]  # as above
    look(dog)
    assert shown == {"a": 1, "new": 7}

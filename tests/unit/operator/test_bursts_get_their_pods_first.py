"""In a burst new runs go before the news of others, which still move; and what the operator wrote itself is no news."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cleanrl_operator import queue as queues
from cleanrl_operator.cache import Cache
from cleanrl_operator.queue import OTHERS_MEANWHILE, Key, WorkQueue
from cleanrl_operator.run import RUN_UID_LABEL


class Stage:
    """A queue whose work lasts until it is told to end."""

    def __init__(self, workers: int) -> None:
        self.queue = WorkQueue(self._work, workers=workers)
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def _work(self, key: Key) -> None:
        self.begun.append(key[1])
        await self._ends.setdefault(key[1], asyncio.Event()).wait()
        self.ended.append(key[1])

    def end(self, *names: str) -> None:
        for name in names:
            self._ends.setdefault(name, asyncio.Event()).set()

    async def until(self, ask: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not ask():  # noqa: ASYNC110 - the queue tells nobody, it is looked at
                await asyncio.sleep(0.001)


def play(workers: int, scene: Callable[[Stage], Awaitable[None]]) -> Stage:
    async def main() -> Stage:
        stage = Stage(workers)
        task = asyncio.create_task(stage.queue.run())
        await scene(stage)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return stage

    return asyncio.run(main())


def test_new_ones_go_first_and_the_others_still_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "CALM_SECONDS", 0.05)
    news, burst = [f"old-{number}" for number in range(20)], [f"new-{number}" for number in range(20)]
    room = 10

    async def scene(stage: Stage) -> None:
        for first, names in ((False, news), (True, burst)):
            for name in names:
                stage.queue.put(("ns", name), first=first)
        await stage.until(lambda: len(stage.begun) == room)
        assert stage.begun == news[:OTHERS_MEANWHILE] + burst[: room - OTHERS_MEANWHILE]
        assert stage.queue.pressed
        stage.end("old-0")
        await stage.until(lambda: len(stage.begun) == room + 1)
        assert stage.begun[-1] == f"old-{OTHERS_MEANWHILE}", "its place is another old one's"
        stage.end(*burst)
        await stage.until(lambda: set(burst) <= set(stage.begun))
        assert stage.begun[-1] in burst, "none but new ones meanwhile"
        await stage.until(lambda: len(stage.begun) == 1 + len(burst) + room)
        assert not stage.queue.pressed, "the burst is over, and all places are the others'"
        stage.end(*news)
        await stage.until(lambda: len(stage.ended) == len(news + burst))

    stage = play(room, scene)
    assert sorted(stage.begun) == sorted(news + burst), "each once"


def test_one_that_waits_already_moves_up_and_is_worked_on_once() -> None:
    async def scene(stage: Stage) -> None:
        names = [f"old-{number}" for number in range(OTHERS_MEANWHILE)]
        for name, first in [*((name, False) for name in names), ("a", False), ("b", False), ("b", True), ("b", False)]:
            stage.queue.put(("ns", name), first=first)
        await stage.until(lambda: len(stage.begun) == OTHERS_MEANWHILE + 1)
        assert stage.begun[-1] == "b"
        stage.end("a", "b", *names)
        await stage.until(lambda: len(stage.ended) == OTHERS_MEANWHILE + 2)
        assert stage.begun[-1] == "a"

    play(10, scene)


def body(version: int, **status: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": "run", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": status}


def test_a_version_that_is_known_is_no_news() -> None:
    cache = Cache()
    assert cache.put_run(body(1)) == ("ns", "run")
    cache.put_run(body(2, fsmState="INIT"))  # our own write, as it was answered
    assert cache.put_run(body(2, fsmState="INIT")) is None, "the watch shows it too"
    assert cache.put_run(body(1)) is None
    assert cache.put_run(body(3, fsmState="INIT")) == ("ns", "run"), "somebody else's"
    pod = {"metadata": {**body(4)["metadata"], "name": "pod", "uid": "p", "labels": {RUN_UID_LABEL: "u"}}}
    assert cache.put_pod(pod) == ("ns", "run")
    assert cache.put_pod(pod) is None

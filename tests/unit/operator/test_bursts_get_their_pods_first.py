"""In a burst new runs go before the news of others, which still move; and what the operator wrote itself is no news."""

from __future__ import annotations

import asyncio
from typing import Any

from cleanrl_operator.cache import Cache
from cleanrl_operator.queue import FIRST_OF, Key, WorkQueue
from cleanrl_operator.run import RUN_UID_LABEL


def order_of(put: list[tuple[str, bool]]) -> list[str]:
    """In which order keys are worked on that came in this order, by one worker."""
    seen: list[str] = []

    async def main() -> None:
        done = asyncio.Event()

        async def work(key: Key) -> None:
            seen.append(key[1])
            if len(seen) == len({name for name, _ in put}):
                done.set()

        queue = WorkQueue(work, workers=1)
        for name, first in put:
            queue.put(("ns", name), first=first)
        task = asyncio.create_task(queue.run())
        await asyncio.wait_for(done.wait(), 20)
        assert len(queue) <= 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    return seen


def test_new_ones_go_first_and_the_others_still_move() -> None:
    news = [(f"old-{number}", False) for number in range(8)]
    burst = [(f"new-{number}", True) for number in range(8)]
    order = order_of(news + burst)
    assert order[: FIRST_OF - 1] == ["new-0", "new-1", "new-2"]
    assert order[FIRST_OF - 1] == "old-0"
    assert sorted(order) == sorted(name for name, _ in news + burst), "each once"


def test_one_that_waits_already_moves_up_and_is_worked_on_once() -> None:
    assert order_of([("a", False), ("b", False), ("b", True), ("b", False)]) == ["b", "a"]


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

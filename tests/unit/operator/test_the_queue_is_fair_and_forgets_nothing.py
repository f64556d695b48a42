"""The work queue: one task per key, nothing lost, failures come back, namespaces take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cleanrl_operator import queue as queues
from cleanrl_operator.queue import Key, WorkQueue

A, B = ("ns", "a"), ("ns", "b")


async def settle(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 - the queue tells nobody, it is looked at
            await asyncio.sleep(0.001)


def drive(
    work: Callable[[WorkQueue, Key], Awaitable[None]], start: Callable[[WorkQueue], None], until: int, **options: int
) -> WorkQueue:
    """Run a queue until it has done so many pieces of work."""

    async def main() -> WorkQueue:
        queue = WorkQueue(lambda key: work(queue, key), **options)
        start(queue)
        task = asyncio.create_task(queue.run())
        await settle(lambda: queue.processed >= until)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return queue

    return asyncio.run(main())


def test_a_key_that_comes_again_during_its_work_is_worked_on_once_more_and_never_twice_at_once() -> None:
    busy: set[Key] = set()
    seen: list[Key] = []

    async def work(queue: WorkQueue, key: Key) -> None:
        assert key not in busy
        busy.add(key)
        seen.append(key)
        if len(seen) == 1:
            for _ in range(5):
                queue.put(key)
        await asyncio.sleep(0.01)
        busy.discard(key)

    drive(work, lambda queue: [queue.put(A) for _ in range(3)] and None, 2)
    assert seen == [A, A]


def test_a_failure_comes_back_and_success_clears_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SHORTEST_BACKOFF", 0.001)
    tries: list[Key] = []

    async def work(_queue: WorkQueue, key: Key) -> None:
        tries.append(key)
        if len(tries) < 4:
            raise RuntimeError("not yet")

    queue = drive(work, lambda queue: queue.put(A), 4)
    assert tries == [A] * 4
    assert (queue.failed, queue._failures) == (3, {})


def test_namespaces_take_turns() -> None:
    order: list[str] = []

    async def work(_queue: WorkQueue, key: Key) -> None:
        order.append(key[0])

    def start(queue: WorkQueue) -> None:
        for number in range(10):
            queue.put(("crowded", str(number)))
        queue.put(("small", "one"))

    drive(work, start, 11, workers=1)
    assert order.index("small") == 1


def test_the_earliest_of_several_later_times_counts() -> None:
    seen: list[Key] = []

    async def work(_queue: WorkQueue, key: Key) -> None:
        seen.append(key)

    async def main() -> None:
        queue = WorkQueue(lambda key: work(queue, key))
        queue.put_later(A, 3600)
        queue.put_later(A, 0.01)
        queue.put_later(A, 1800)
        queue.put_later(B, 3600)
        task = asyncio.create_task(queue.run())
        await settle(lambda: bool(seen))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert seen == [A]


def test_times_that_are_hours_ahead_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MANY", 50)

    async def work(queue: WorkQueue, key: Key) -> None:
        queue.put_later(key, 3600)  # a deadline, as every look at a run sets it
        queue.put_later(key, 0)  # and its worker's next figures

    queue = drive(work, lambda queue: queue.put(A), 500)
    assert len(queue._later) <= 60
    assert queue._due, "what is waited for is still known"


def test_work_in_progress_is_finished_when_the_queue_stops() -> None:
    finished: list[Key] = []

    async def work(_queue: WorkQueue, key: Key) -> None:
        await asyncio.sleep(0.05)
        finished.append(key)

    async def main() -> None:
        queue = WorkQueue(lambda key: work(queue, key))
        queue.put(A)
        task = asyncio.create_task(queue.run())
        await settle(lambda: bool(queue._active))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert finished == [A]

"""In a burst new runs go before the news of others, which still move; and what the operator wrote itself is no news."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cleanrl_operator import asides
from cleanrl_operator import queue as queues
from cleanrl_operator.boards import Boards
from cleanrl_operator.cache import Cache
from cleanrl_operator.queue import OTHERS_MEANWHILE, Key, WorkQueue
from cleanrl_operator.reconcile import Reconciler
from cleanrl_operator.run import RUN_UID_LABEL
from cleanrl_operator.settings import Settings


class Stage:
    """A queue whose work lasts until it is told to end."""

    def __init__(self, workers: int) -> None:
        self.behind = False
        self.queue = WorkQueue(self._work, workers=workers, behind=lambda: self.behind)
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


@pytest.mark.parametrize("shows_up", [True, False])
def test_the_others_wait_until_the_burst_is_seen_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, shows_up: bool
) -> None:
    monkeypatch.setattr(queues, "CALM_SECONDS", 0.01)
    monkeypatch.setattr(queues, "LONGEST_HOLD_SECONDS", 60.0 if shows_up else 0.1)
    news, burst = [f"old-{number}" for number in range(5)], [f"new-{number}" for number in range(20)]

    async def scene(stage: Stage) -> None:
        stage.behind = True
        stage.end(*burst)
        for first, names in ((True, burst), (False, news)):
            for name in names:
                stage.queue.put(("ns", name), first=first)
        await stage.until(lambda: len(stage.ended) == len(burst))
        if shows_up:
            await asyncio.sleep(0.1)
            assert stage.queue.pressed
            assert len(stage.begun) == len(burst) + OTHERS_MEANWHILE, "few others, though all places are free"
            stage.behind = False
        await stage.until(lambda: len(stage.begun) == len(burst + news))
        stage.end(*news)

    play(10, scene)


def test_new_ones_that_never_cease_do_not_keep_the_others_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "LONGEST_HOLD_SECONDS", 0.2)
    old, new = [f"old-{number}" for number in range(30)], [f"new-{number}" for number in range(20)]
    room = 40

    async def scene(stage: Stage) -> None:
        stage.behind = True
        for first, names in ((True, new), (False, old)):
            for name in names:
                stage.queue.put(("ns", name), first=first)
        await stage.until(lambda: len(stage.begun) == len(new) + OTHERS_MEANWHILE)
        assert stage.queue.pressed
        await stage.until(lambda: len(stage.begun) == room)  # none of the new ones has ended, more than make a burst
        assert not stage.queue.pressed, "the others have had to wait long enough"
        stage.end(*old, *new)
        await stage.until(lambda: len(stage.ended) == len(old + new))
        for name in ("again-" + name for name in new):
            stage.queue.put(("ns", name), first=True)
            stage.end(name)
        assert stage.queue.pressed, "the next burst goes first again"

    play(room, scene)


def test_a_created_pod_is_unseen_until_the_watch_shows_it_or_its_end() -> None:
    cache = Cache()
    cache.put_run(body(1))
    pods = [
        {"metadata": {**body(4)["metadata"], "name": name, "uid": name, "labels": {RUN_UID_LABEL: "u"}}}
        for name in ("a", "b", "c")
    ]
    for pod in pods[:2]:
        cache.put_created_pod(pod)
    assert cache.unseen == 2
    assert cache.pod_seen(pods[0]) is None, "it is no news"
    assert cache.pod_seen(pods[2]) == ("ns", "run")
    cache.put_created_pod(pods[2])  # the watch was quicker than the answer
    assert cache.unseen == 1
    cache.drop_pod(pods[1])
    assert cache.unseen == 0


def test_one_that_waits_already_moves_up_and_is_worked_on_once() -> None:
    async def scene(stage: Stage) -> None:
        names = [f"old-{number}" for number in range(OTHERS_MEANWHILE)]
        for name, first in [*((name, False) for name in names), ("a", False), ("b", False), ("b", True), ("b", False)]:
            stage.queue.put(("ns", name), first=first)
        await stage.until(lambda: len(stage.begun) == len(names) + 2)
        assert stage.begun == [*names, "b", "a"]
        assert not stage.queue.pressed, "one is no burst, and nobody waits for it"
        stage.end("a", "b", *names)

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


# -- what a burst's statuses cost


class Server:
    """As much of an API server as one run needs; it counts what it is asked to write."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []
        self.version = 10

    async def get(self, path: str) -> dict[str, Any] | None:
        return {"metadata": {"uid": "claim", "name": "shared"}} if "claims" in path else None

    async def create(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {**body["metadata"], "uid": "pod", "namespace": "ns", "resourceVersion": str(self.version)}
        self.pods.append({**body, "metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"}})
        return self.pods[-1]

    async def patch_status(self, _namespace: str, _name: str, _version: str, status: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.written.append(status)
        return new_run(self.version, **status)


class Nobody:
    """No worker speaks, and progress may always be written."""

    def unheard(self, _run: Any) -> float:
        return 0.0

    def facts(self, _run: Any) -> None:
        return None

    def written(self, _run: Any, _status: Any) -> None:
        pass

    def desire(self, _run: Any, _desired: Any) -> None:
        pass


def new_run(version: int, **status: Any) -> dict[str, Any]:
    found = body(version, **status)
    found["metadata"] |= {"generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
    storage = {"artifacts": {"storage": {"claimName": "shared"}}}
    found["spec"] = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, **storage}
    return found


def reconciler(server: Server, *, pressed: bool, wakes: list[float]) -> Reconciler:
    kube: Any = server
    nobody: Any = Nobody()
    return Reconciler(
        kube=kube,
        cache=Cache(),
        settings=Settings(),
        sessions=nobody,
        budget=nobody,
        boards=Boards(kube, lambda _key, seconds: wakes.append(seconds)),
        wake=lambda _key, seconds: wakes.append(seconds),
        announce=lambda _run, _event: None,
        pressed=lambda: pressed,
    )


def test_in_a_burst_one_write_tells_of_the_pod_and_its_start() -> None:
    server, wakes = Server(), list[float]()
    reconcile = reconciler(server, pressed=True, wakes=wakes)
    reconcile.cache.put_run(new_run(1))

    async def scene() -> None:
        for _ in range(3):
            await reconcile(("ns", "run"))
        assert (len(server.pods), server.written) == (1, []), "the pod is there, and nothing was written for it"
        assert wakes, "it will be looked at again"
        state = {"running": {"startedAt": "2026-01-01T00:00:01Z"}}
        status = {"phase": "Running", "containerStatuses": [{"name": "worker", "state": state}]}
        metadata = {**server.pods[0]["metadata"], "resourceVersion": "99"}
        reconcile.cache.put_pod({**server.pods[0], "metadata": metadata, "status": status})
        await reconcile(("ns", "run"))

    asyncio.run(scene())
    (told,) = server.written
    assert told["fsmState"] == "HSHK"
    assert [step["to"] for step in told["transitions"]] == ["INIT", "HSHK"]
    assert told["podUID"] == "pod"


def test_a_run_that_comes_alone_is_told_of_at_once() -> None:
    server = Server()
    reconcile = reconciler(server, pressed=False, wakes=[])
    reconcile.cache.put_run(new_run(1))
    asyncio.run(reconcile(("ns", "run")))
    (told,) = server.written
    assert (told["fsmState"], told["podUID"], len(server.pods)) == ("INIT", "pod", 1)


def test_a_burst_without_end_keeps_no_run_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asides, "SECONDS_PRESSED", 0.0)
    server = Server()
    reconcile = reconciler(server, pressed=True, wakes=[])
    reconcile.cache.put_run(new_run(1))

    async def scene() -> None:
        await reconcile(("ns", "run"))
        await reconcile(("ns", "run"))

    asyncio.run(scene())
    assert [told["fsmState"] for told in server.written] == ["INIT"]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_small_news_of_a_few_are_told_soon_and_those_of_many_a_few_at_a_time() -> None:
    clock = Clock()
    few, many = asides.Asides(clock), asides.Asides(clock)
    assert few.wait(("ns", "run"), small=True, pressed=False) == asides.SECONDS
    keys = [("ns", f"run-{number}") for number in range(200)]
    for key in keys:
        many.wait(key, small=True, pressed=False)
    clock.now += asides.SECONDS
    assert few.wait(("ns", "run"), small=True, pressed=False) == 0.0
    told = [key for key in keys if many.wait(key, small=True, pressed=False) == 0.0]
    assert told == [], "all of them at once would be two hundred writes in a second"
    clock.now = 100.0 + len(keys) / asides.SMALL_NEWS_A_SECOND
    told = [key for key in keys if many.wait(key, small=True, pressed=False) == 0.0]
    assert told == keys, "but none waits for ever"


def test_however_many_wait_small_news_are_told_in_the_end() -> None:
    clock = Clock()
    many = asides.Asides(clock)
    for number in range(10_000):
        many.wait(("ns", f"run-{number}"), small=True, pressed=False)
    clock.now += asides.SECONDS_AT_MOST
    assert many.wait(("ns", "run-0"), small=True, pressed=False) == 0.0


def test_what_is_forgotten_begins_to_wait_anew() -> None:
    clock = Clock()
    waiting = asides.Asides(clock)
    waiting.wait(("ns", "run"), small=True, pressed=False)
    waiting.forget(("ns", "run"))
    clock.now += asides.SECONDS
    assert waiting.wait(("ns", "run"), small=True, pressed=False) == asides.SECONDS

"""The lease against an API server that answers late, not at all, or about somebody else: one leads, and never two."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from cleanrl_operator import election
from cleanrl_operator.election import Election, LeaseLost
from cleanrl_operator.kube import KubeError
from cleanrl_operator.program import Operator
from cleanrl_operator.settings import Settings

SECONDS = 15.0


class Server:
    """A Lease on an API server, and a clock that only moves when somebody waits. `trouble` is asked before each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.lease: dict[str, Any] | None = None
        self.calls: list[tuple[float, str]] = []
        self.trouble: Callable[[], float | None] = lambda: 0.0
        """Seconds that the next call takes; None is a call that is never answered."""

        async def sleep(seconds: float) -> None:
            self.now += seconds
            if self.now > 2000:
                raise asyncio.CancelledError

        monkeypatch.setattr(election.asyncio, "sleep", sleep)

    async def get(self, _path: str, *, seconds: float = 0.0) -> dict[str, Any] | None:
        self._call("GET", seconds)
        return deepcopy(self.lease)

    async def keep(self, method: str, path: str, body: dict[str, Any], *, seconds: float = 0.0) -> dict[str, Any]:
        self._call(method, seconds)
        version = int(self.lease["metadata"]["resourceVersion"]) if self.lease else 0
        if (method == "POST") != (self.lease is None):
            raise KubeError(409 if method == "POST" else 404, "", f"{path} is there, or not there")
        if method == "PUT" and body["metadata"].get("resourceVersion") != str(version):
            raise KubeError(409, "Conflict", f"{path} was changed")
        metadata = {**body["metadata"], "resourceVersion": str(version + 1)}
        self.lease = deepcopy({**body, "metadata": metadata})
        return deepcopy(self.lease)

    def _call(self, method: str, patience: float) -> None:
        self.calls.append((self.now, method))
        takes = self.trouble()
        self.now += patience if takes is None else min(takes, patience)
        if takes is None or takes > patience:
            raise KubeError(0, "", f"{method}: TimeoutError")

    def candidate(self, name: str) -> Election:
        return Election(self, "system", "operator", name, SECONDS, clock=lambda: self.now)  # type: ignore[arg-type]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


async def lead(server: Server) -> Election:
    one = server.candidate("one")
    await one.acquire()
    return one


async def lost_at(one: Election, server: Server) -> float | None:
    """When it gave up; None if it leads to the end of time."""
    try:
        await one.hold()
    except LeaseLost:
        return server.now
    except asyncio.CancelledError:
        return None
    raise AssertionError("holding ends in no other way")


def test_whoever_leads_renews_with_one_call_each_time(server: Server) -> None:
    async def scene() -> None:
        one = await lead(server)
        server.calls.clear()
        assert await lost_at(one, server) is None
        assert {method for _, method in server.calls} == {"PUT"}

    asyncio.run(scene())


@pytest.mark.parametrize("takes", [1.0, 2.9, 4.9])
def test_a_server_that_always_answers_late_costs_no_lease(server: Server, takes: float) -> None:
    async def scene() -> None:
        one = await lead(server)
        server.trouble = lambda: takes
        assert await lost_at(one, server) is None

    asyncio.run(scene())


def test_a_call_that_is_lost_now_and_then_costs_no_lease(server: Server) -> None:
    async def scene() -> None:
        one = await lead(server)
        count = iter(range(10_000))
        server.trouble = lambda: None if next(count) % 3 == 0 else 0.1
        assert await lost_at(one, server) is None

    asyncio.run(scene())


def test_a_late_answer_after_one_that_never_came_costs_no_lease(server: Server) -> None:
    async def scene() -> None:
        one = await lead(server)
        answers = itertools.cycle((4.9, None, 1.2, 1.2))
        server.trouble = lambda: next(answers)
        assert await lost_at(one, server) is None

    asyncio.run(scene())


def test_without_any_answer_it_gives_up_before_the_next_may_lead(server: Server) -> None:
    async def scene() -> None:
        one = await lead(server)
        began = server.now
        server.trouble = lambda: None
        ended = await lost_at(one, server)
        assert ended is not None
        assert ended - began <= SECONDS, "another may lead from here on"
        assert len(server.calls) >= 4, "it tried more than once"
        assert not one.leading

    asyncio.run(scene())


def test_a_lease_that_somebody_else_has_taken_is_seen_at_the_next_renewal(server: Server) -> None:
    async def scene() -> None:
        one = await lead(server)
        assert server.lease is not None
        server.lease["spec"]["holderIdentity"] = "two"
        server.lease["metadata"]["resourceVersion"] = "77"
        began = server.now
        ended = await lost_at(one, server)
        assert ended is not None
        assert ended - began <= SECONDS / 5
        assert server.lease["spec"]["holderIdentity"] == "two"

    asyncio.run(scene())


def test_a_lease_that_was_deleted_is_made_again_by_whoever_leads(server: Server) -> None:
    async def scene() -> None:
        one = await lead(server)
        server.lease = None
        assert await lost_at(one, server) is None
        assert server.lease is not None

    asyncio.run(scene())


def test_the_next_waits_until_the_lease_has_not_changed_for_its_whole_time(server: Server) -> None:
    async def scene() -> None:
        await lead(server)
        two, began = server.candidate("two"), server.now
        await two.acquire()
        assert server.now - began >= SECONDS
        assert server.lease is not None
        assert server.lease["spec"]["leaseTransitions"] == 1

    asyncio.run(scene())


def test_who_can_not_ask_for_the_lease_is_not_ready_and_says_why(server: Server) -> None:
    """A right that is missing, for example: a rollout that waits for it must not call that a success."""

    async def scene() -> None:
        operator = Operator(Settings(), watch=None)  # type: ignore[arg-type]
        operator._election, operator._connected = server.candidate("one"), True
        server.trouble = lambda: None
        with pytest.raises(asyncio.CancelledError):  # to the end of time
            await operator._election.acquire()
        assert operator._unready() == "the lease could not be taken: GET: TimeoutError"
        server.now, server.trouble = 0.0, lambda: 0.0
        await server.candidate("two").acquire()
        assert not await operator._election._attempt()
        assert operator._unready() == "", "somebody else leads"

    asyncio.run(scene())

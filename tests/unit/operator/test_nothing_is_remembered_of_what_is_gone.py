"""Runs come and go for months: what the operator remembers of one goes with it, whenever that is."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from unittest.mock import Mock

from cleanrl_operator.boards import Boards
from cleanrl_operator.cache import Cache
from cleanrl_operator.holders import Holders
from cleanrl_operator.main import NothingKept
from cleanrl_operator.program import Operator
from cleanrl_operator.progress import FleetBudget
from cleanrl_operator.reconcile import Reconciler
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

from cleanrl_protocol import session_pb2 as pb

ENDED = {"state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:01:00Z"}}, "name": "worker"}


class Server:
    """As much of an API server as runs need that have a claim of their own."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 10

    async def get(self, path: str) -> dict[str, Any] | None:
        return self.objects.get(path)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        metadata = {**body["metadata"], "uid": f"uid-{self.version}", "resourceVersion": str(self.version)}
        made = {**body, "metadata": {"namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata}}
        self.objects[f"{path}/{metadata['name']}"] = made
        return made

    async def delete(self, path: str, **_how: Any) -> None:
        self.objects.pop(path, None)

    async def merge(self, path: str, change: dict[str, Any]) -> dict[str, Any]:
        self.objects[path]["spec"] |= change["spec"]
        return self.objects[path]

    async def patch_status(self, _namespace: str, name: str, _version: str, status: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        return a_run(name, self.version, **status)


class Nobody:
    """No worker speaks."""

    def unheard(self, _run: Any) -> float:
        return 0.0

    def facts(self, _run: Any) -> None:
        return None

    def awaits(self, _run: Any) -> bool:
        return False

    def written(self, _run: Any, _status: Any) -> None:
        pass

    def desire(self, _run: Any, _desired: Any) -> None:
        pass


def a_run(name: str, version: int, **status: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name, "uid": f"run-{name}", "resourceVersion": str(version), "generation": 1}
    spec: dict[str, Any] = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, "maxWallclockMinutes": 60}
    spec["retry"] = {"limit": 0}
    spec["artifacts"] = {"tensorboard": {"serve": "always"}}
    return {
        "metadata": {**metadata, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec,
        "status": status,
    }


def remembered(reconcile: Reconciler) -> int:
    """The entries of all containers that can be reached from here."""
    seen: set[int] = set()
    waiting: list[Any] = [vars(part) for part in (reconcile, reconcile.boards, reconcile.budget, reconcile.cache)]
    entries = 0
    while waiting:
        found = waiting.pop()
        if id(found) in seen or not isinstance(found, dict | set | list | tuple | Holders):
            continue
        seen.add(id(found))
        entries += len(found)
        waiting += gc.get_referents(vars(found) if isinstance(found, Holders) else found)
    return entries


async def come_and_go(reconcile: Reconciler, name: str, *, last_state: str) -> None:
    """One run's life, cut off by its deletion in this state."""
    key, cache = ("ns", name), reconcile.cache
    cache.put_run(a_run(name, 1))
    for _ in range(3):
        await reconcile(key)
    body = cache.run(key)
    assert body is not None
    assert body["status"]["podUID"]
    (pod,) = cache.pods("ns", f"run-{name}")
    if last_state == "TERM":
        status = {"phase": "Succeeded", "containerStatuses": [ENDED]}
        cache.put_pod({**pod, "metadata": {**pod["metadata"], "resourceVersion": "900000"}, "status": status})
        for _ in range(3):
            await reconcile(key)
    body = cache.run(key)
    assert body is not None
    assert body["status"]["fsmState"] == last_state
    cache.drop_run(body)
    cache.drop_pod(pod)
    await reconcile(key)


def test_a_run_whose_name_was_taken_again_before_it_was_seen_to_go_leaves_nothing() -> None:
    async def scene() -> None:
        operator = Operator(Settings(), Mock())
        operator._reconciler = Mock()
        first = a_run("run", 1, podUID="p1", attempt=1, fsmState="EXEC")
        operator.run_changed(first)
        operator.book.register(Run.parse(first), "p1", pb.RegisterWorkerRequest())
        operator.run_changed(a_run("run", 2, podUID="p1", attempt=1, fsmState="EXEC"))
        assert len(operator.book) == 1
        operator._reconciler.forget.assert_not_called()
        second = a_run("run", 3)
        second["metadata"]["uid"] = "another"
        operator.run_changed(second)
        assert len(operator.book) == 0
        operator._reconciler.forget.assert_called_once_with(("ns", "run"))
        known = operator.cache.run(("ns", "run"))
        assert known is not None
        assert known["metadata"]["uid"] == "another"

    asyncio.run(scene())


def test_runs_that_came_and_went_leave_nothing() -> None:
    server: Any = Server()
    nobody: Any = Nobody()
    reconcile = Reconciler(
        kube=server,
        cache=Cache(),
        settings=Settings(),
        sessions=nobody,
        budget=FleetBudget(lambda: 1),
        boards=Boards(server, lambda _key, _seconds: None),
        wake=lambda _key, _seconds: None,
        announce=lambda _run, _event: None,
    )

    async def scene() -> list[int]:
        counts = []
        for number in range(30):
            await come_and_go(reconcile, f"early-{number}", last_state="INIT")
            await come_and_go(reconcile, f"late-{number}", last_state="TERM")
            counts.append(remembered(reconcile))
        return counts

    counts = asyncio.run(scene())
    assert sum("deployments" in path for path in server.objects) == 30, "each of those that ended had a TensorBoard"
    assert counts[-1] == counts[0]


def test_a_claim_is_remembered_as_long_as_somebody_holds_it() -> None:
    holders = Holders()
    one, two, claim = ("ns", "one"), ("ns", "two"), ("ns", "claim")
    assert holders.hold(one, frozenset({claim})) == {claim}
    assert holders.hold(one, frozenset({claim})) == frozenset(), "no change"
    assert holders.hold(two, frozenset({claim})) == {claim}
    assert holders.of(claim) == {one, two}
    assert holders.hold(one, frozenset()) == {claim}
    assert (one in holders, two in holders) == (False, True)
    assert len(holders) == 1
    holders.hold(two, frozenset())
    assert len(holders) == 0
    assert holders.of(claim) == frozenset()


def test_kopf_keeps_no_record_of_what_it_has_shown() -> None:
    async def seen() -> list[object]:
        records = NothingKept()
        for number in range(3):
            assert await records.recall({"metadata": {"uid": f"u{number}"}}, noticed_by_listing=True)
        return list(records.iter_all_memories())

    assert asyncio.run(seen()) == []

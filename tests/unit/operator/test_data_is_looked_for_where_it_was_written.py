"""Claims that were made anew: before a run has written anything that harms nobody, afterwards it ends the run."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from cleanrl_operator.boards import Boards
from cleanrl_operator.cache import Cache
from cleanrl_operator.kube import KubeError
from cleanrl_operator.policies.storage import lost
from cleanrl_operator.progress import FleetBudget
from cleanrl_operator.reconcile import Reconciler
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)
CLAIMS = "api/v1/namespaces/ns/persistentvolumeclaims"


def at(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).isoformat()


def step(to: str, minutes: float) -> dict[str, Any]:
    return {"to": to, "at": at(minutes), "attempt": 1, "reason": "x"}


def a_claim(uid: str, minutes: float, **more: Any) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "creationTimestamp": at(minutes), **more}}


def a_run(*transitions: dict[str, Any], storage: dict[str, Any] | None = None, **status: Any) -> Run:
    metadata = {"namespace": "ns", "name": "run", "uid": "uid-run", "resourceVersion": "1", "creationTimestamp": at(0)}
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10, "artifacts": {"storage": storage or {}}}
    known = {"fsmState": "INIT", "attempt": 1, "claimUID": "first", "transitions": list(transitions), **status}
    return Run.parse({"metadata": metadata, "spec": spec, "status": known})


WAITED = (step("INIT", 0),)
RAN = (step("INIT", 0), step("HSHK", 20), step("FAULT", 30), step("INIT", 31))
MANY = tuple(step(state, 100 + number) for number in range(10) for state in ("EXEC", "PAUSE"))
"""So many pauses that the first steps are not kept any more."""


@pytest.mark.parametrize(
    ("steps", "status", "claim", "sentence"),
    [
        (WAITED, {}, None, ""),
        (WAITED, {}, a_claim("second", 10), ""),
        (RAN, {}, a_claim("first", 1), ""),
        (RAN, {}, a_claim("second", 10), ""),
        (RAN, {}, a_claim("second", 25), "is not the one that held"),
        (RAN, {}, a_claim("second", 20), "is not the one that held"),
        ((step("HSHK", 20 + 0.5 / 60),), {}, a_claim("second", 20), "is not the one that held"),
        (RAN, {}, None, "is gone"),
        (RAN, {}, a_claim("first", 1, deletionTimestamp=at(32)), "is being deleted"),
        (MANY, {"execStartedAt": at(20)}, a_claim("second", 10), ""),
        (MANY, {"execStartedAt": at(20)}, a_claim("second", 25), "is not the one that held"),
        (MANY, {}, a_claim("second", 10), "is not the one that held"),
    ],
)
def test_another_claim_is_the_right_one_if_it_was_there_before_anything_ran(
    steps: tuple[dict[str, Any], ...], status: dict[str, Any], claim: dict[str, Any] | None, sentence: str
) -> None:
    told = lost(a_run(*steps, **status).status, "shared", claim)
    assert (sentence in told, bool(told)) == (True, bool(sentence))


class Server:
    """As much of an API server as has claims."""

    def __init__(self, claims: dict[str, dict[str, Any]]) -> None:
        self.claims = claims

    async def get(self, path: str) -> dict[str, Any] | None:
        return self.claims.get(path)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{path}/{body['metadata']['name']}"
        if name in self.claims:
            raise KubeError(409, "AlreadyExists", "it is there")
        self.claims[name] = a_claim("made", 40)
        return self.claims[name]


def ensured(run: Run, claims: dict[str, dict[str, Any]]) -> tuple[str | None, str]:
    server: Any = Server(claims)
    reconcile = Reconciler(
        kube=server,
        cache=Cache(),
        settings=Settings(),
        sessions=Mock(),
        budget=FleetBudget(lambda: 1),
        boards=Boards(server, lambda _key, _seconds: None),
        wake=lambda _key, _seconds: None,
        announce=lambda _run, _event: None,
    )
    return asyncio.run(reconcile._ensure_claim(run))


def test_a_claim_of_its_own_is_made_anew_only_for_a_run_without_data() -> None:
    assert ensured(a_run(*WAITED), {}) == ("made", "")
    uid, told = ensured(a_run(*RAN), {})
    assert (uid, "is gone" in told) == (None, True)


def test_a_claim_that_was_made_before_a_crash_is_found_again() -> None:
    run = a_run(*WAITED, claimUID=None)
    assert ensured(run, {f"{CLAIMS}/{run.claim_name}": a_claim("first", 1)}) == ("first", "")


def test_a_shared_claim_is_never_made() -> None:
    shared = {"claimName": "shared"}
    assert ensured(a_run(*WAITED, storage=shared), {}) == (None, "")
    assert ensured(a_run(*RAN, storage=shared), {f"{CLAIMS}/shared": a_claim("second", 10)}) == ("second", "")

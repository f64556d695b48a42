"""The pods' watch: it goes on after breaks, and a pod that vanished while nobody could see it counts as gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cleanrl_operator import podwatch
from cleanrl_operator.kube import KubeError
from cleanrl_operator.podwatch import PodWatch

Object = dict[str, Any]


def pod(uid: str, version: int) -> Object:
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version)}}


class Script:
    """An API server that plays lists and watches in order; a fault is raised where it stands."""

    def __init__(self, lists: list[list[Object]], watches: list[list[Object | KubeError]], version: int = 10) -> None:
        self.lists, self.watches, self.version = lists, watches, version
        self.asked: list[str] = []
        self.over = asyncio.Event()

    async def pages(self, path: str, *, selector: str) -> AsyncIterator[Object]:
        self.asked.append("list")
        yield {"metadata": {"resourceVersion": str(self.version)}, "items": self.lists.pop(0)}

    async def watch(self, path: str, *, selector: str, version: str) -> AsyncIterator[Object]:
        self.asked.append(f"watch from {version}")
        if not self.watches:
            self.over.set()
            await asyncio.Event().wait()
        for event in self.watches.pop(0):
            if isinstance(event, KubeError):
                raise event
            yield event


def played(script: Script, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """What was shown as changed, and as gone."""
    monkeypatch.setattr(podwatch, "SHORTEST_PAUSE", 0.0)
    known: dict[str, Object] = {}
    changed: list[str] = []
    gone: list[str] = []

    def change(body: Any) -> None:
        known[body["metadata"]["uid"]] = body
        changed.append(f"{body['metadata']['uid']}@{body['metadata']['resourceVersion']}")

    def delete(body: Any) -> None:
        known.pop(body["metadata"]["uid"], None)
        gone.append(body["metadata"]["uid"])

    async def play() -> None:
        watch = PodWatch(script, ["pods"], "label", change, delete, lambda _: list(known.values()), lambda _: None)  # type: ignore[arg-type]
        await watch.fill()
        task = asyncio.create_task(watch.run())
        await asyncio.wait_for(script.over.wait(), 30)
        assert not task.done(), task
        task.cancel()

    asyncio.run(play())
    return changed, gone


def test_it_goes_on_where_a_cut_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = KubeError(0, "NoAnswer", "cut")
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "15"}}}
    script = Script([[pod("a", 5)]], [[{"type": "MODIFIED", "object": pod("a", 11)}, cut], [bookmark, cut]])
    assert played(script, monkeypatch) == (["a@5", "a@11"], [])
    assert script.asked == ["list", "watch from 10", "watch from 11", "watch from 15"]


@pytest.mark.parametrize("as_event", [True, False])
def test_after_a_lost_history_what_is_gone_counts_as_seen_to_go(
    monkeypatch: pytest.MonkeyPatch, as_event: bool
) -> None:
    lost: Object | KubeError = KubeError(410, "Expired", "too old")
    if as_event:
        lost = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    script = Script([[pod("a", 5), pod("b", 6)], [pod("b", 6)]], [[lost]])
    changed, gone = played(script, monkeypatch)
    assert changed == ["a@5", "b@6", "b@6"]
    assert gone == ["a"]
    assert script.asked == ["list", "watch from 10", "list", "watch from 10"]


def test_a_pod_made_after_the_list_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = KubeError(410, "Expired", "too old")
    script = Script([[pod("a", 5)], [pod("a", 5)]], [[{"type": "ADDED", "object": pod("new", 99)}, lost]])
    assert played(script, monkeypatch)[1] == []

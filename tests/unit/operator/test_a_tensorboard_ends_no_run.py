"""A pod that needs a claim makes its TensorBoards leave. What the API server says to that is no word on the pod."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cleanrl_operator.boards import Boards
from cleanrl_operator.desired import pod
from cleanrl_operator.kube import KubeError
from cleanrl_operator.run import Run
from cleanrl_operator.settings import Settings

CLAIM = {"spec": {"accessModes": ["ReadWriteOnce"]}}


def a_run(name: str, asked: dict[str, Any] | None = None, **status: Any) -> Run:
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    artifacts = {"tensorboard": {"serve": "always"}, "storage": {"claimName": "shared"}}
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10, "artifacts": artifacts, **(asked or {})}
    return Run.parse({"metadata": metadata, "spec": spec, "status": {"attempt": 1, **status}})


class Server:
    """Has whatever is asked for, and refuses to change it."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def get(self, path: str) -> dict[str, Any]:
        owned = {"metadata": {"ownerReferences": [{"uid": "uid-over"}]}, "spec": {"replicas": 1}}
        return CLAIM if "persistentvolumeclaims" in path else owned

    async def merge(self, _path: str, _change: Any) -> None:
        raise KubeError(self.status, "Forbidden", "a policy wants a label on every Deployment")


async def make_way(refusal: int, following: Run) -> None:
    boards = Boards(Server(refusal), lambda _key, _seconds: None)  # type: ignore[arg-type]  # as much of one as is asked
    over = a_run("over", fsmState="TERM", outcome="completed")
    await boards.look_after(over, over.status, Settings(), sidecar_ready=False, over=False)
    await boards.make_way(following, pod.build(following, Settings()))


def test_a_refusal_is_not_the_pods() -> None:
    asyncio.run(make_way(403, a_run("next")))


def test_what_fails_in_passing_is_tried_again() -> None:
    with pytest.raises(KubeError):
        asyncio.run(make_way(500, a_run("next")))


OTHERS = {"name": "data", "mountPath": "/mnt/data", "persistentVolumeClaim": {"claimName": "shared"}}


@pytest.mark.parametrize(
    "asked",
    [
        {"mode": "resume", "dryRun": True, "from": {"path": "runs/ID/checkpoints/5"}},
        {"artifacts": {}, "podTemplate": {"volumes": [OTHERS]}},
    ],
    ids=["a dry run of a path", "a volume of the user's"],
)
def test_way_is_made_for_whatever_claim_the_pod_mounts(asked: dict[str, Any]) -> None:
    with pytest.raises(KubeError, match="every Deployment"):
        asyncio.run(make_way(500, a_run("next", asked)))

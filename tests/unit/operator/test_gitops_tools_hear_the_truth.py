"""What GitOps tools conclude from a run's conditions: Argo CD by the script that we ship, run by Lua itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Status
from cleanrl_operator.decision import Decision
from cleanrl_operator.facts import Facts, PodFacts, PodSituation, SessionFacts, WorkerEnd

SCRIPT = (Path(__file__).parents[3] / "docs" / "argocd" / "health.lua").read_text()
RUNNING = PodFacts(situation=PodSituation.RUNNING, uid="uid-1")


@pytest.fixture
def argo() -> Callable[[Any], tuple[str, str]]:
    """Argo CD's verdict on an object: it runs the script with the object as `obj`."""

    from lupa.lua51 import LuaRuntime  # the version that Argo CD speaks

    def judge(run: dict[str, Any]) -> tuple[str, str]:
        lua = LuaRuntime()
        lua.globals()["obj"] = to_lua(lua, run)
        answer = lua.execute(SCRIPT)
        return answer["status"], answer["message"]

    return judge


def to_lua(lua: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return lua.table_from({key: to_lua(lua, item) for key, item in value.items()})
    if isinstance(value, list):
        return lua.table_from([to_lua(lua, item) for item in value])
    return value


def run(status: Status | None, generation: int = 1) -> dict[str, Any]:
    return {"metadata": {"generation": generation}, "status": status.dump() if status else None}


def test_argo_tells_every_kind_of_run_apart(
    argo: Callable[[Any], tuple[str, str]], make_spec: Callable[..., Spec], judge: Callable[..., Decision]
) -> None:
    assert argo({"metadata": {"generation": 1}})[0] == "Progressing"
    new = judge(make_spec(), Status(), Facts()).status
    assert argo(run(new)) == ("Progressing", "The run was accepted.")
    pod = Facts(pod=RUNNING, session=SessionFacts(registered_at=new.started_at, started_at=new.started_at))
    training = judge(make_spec(), new, pod).status
    assert argo(run(training))[0] == "Healthy"
    assert argo(run(training, generation=2))[0] == "Progressing", "an edit that nobody has looked at yet"
    suspended = judge(make_spec(suspend=True), Status(), Facts()).status
    assert argo(run(suspended))[0] == "Suspended"

    def ended(**end: Any) -> Status:
        facts = Facts(pod=PodFacts(situation=PodSituation.ENDED, uid="uid-1", end=WorkerEnd(**end)))
        return judge(make_spec(), training, facts).status

    retrying = ended(exit_code=1)
    assert argo(run(retrying))[0] == "Progressing"
    failed = ended(exit_code=2, outcome="failed", message="no such flag")
    assert argo(run(failed)) == ("Degraded", "no such flag")
    assert argo(run(ended(exit_code=0, outcome="completed"))) == ("Healthy", "The run did all its steps.")
    canceled = judge(make_spec(cancel=True), Status(), Facts()).status
    assert argo(run(canceled)) == ("Degraded", "Canceled by the user.")

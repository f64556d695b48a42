"""Whatever one tenant puts into the free-form parts of a run: that run says what is wrong with it, and all others go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

RUNS = "/apis/mosaic.dev/v1alpha1"
OPERATOR_CLASS = "sturdy"


def create(lab: Any, name: str, levels: int) -> None:
    spec = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, "operatorClass": OPERATOR_CLASS}
    body = {"apiVersion": "mosaic.dev/v1alpha1", "kind": "CleanRLRun", "metadata": {"name": name}}
    shallow = json.dumps({**body, "spec": {**spec, "extras": "EXTRAS"}})
    deep = '{"a":' * levels + "1" + "}" * levels
    path = f"{RUNS}/namespaces/{lab.namespace}/cleanrlruns"
    lab.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=shallow.replace('"EXTRAS"', deep))


def is_told(lab: Any, name: str) -> bool:
    """Whether the run's conditions say before long that nobody can read it."""
    unreadable = "--for=jsonpath={.status.conditions[?(@.type=='Stalled')].reason}=Unreadable"
    waited = lab.cluster.kubectl(
        "-n", lab.namespace, "wait", f"cleanrlrun/{name}", unreadable, "--timeout=60s", check=False
    )
    return bool(waited.returncode == 0)


@pytest.fixture
def sturdy(make_operator: Any) -> Any:
    return make_operator("sturdy", operator_class=OPERATOR_CLASS).start()


@pytest.fixture
def tenant(make_lab: Any, sturdy: Any) -> Iterator[Any]:
    lab = make_lab(sturdy.gateway_port, operator_class=OPERATOR_CLASS)
    yield lab
    # Other tests list all runs of this API server, and read the lists with the standard library.
    lab.cluster.kubectl("-n", lab.namespace, "delete", "cleanrlruns", "--all")


def test_extras_of_any_depth(make_lab: Any, sturdy: Any, tenant: Any) -> None:
    other = make_lab(sturdy.gateway_port, operator_class=OPERATOR_CLASS)
    for levels in (30, 150, 250, 1500, 9000):
        create(tenant, f"deep-{levels}", levels)
        assert levels == 30 or is_told(tenant, f"deep-{levels}")
        other.create(f"beside-{levels}")
        other.until(f"beside-{levels}", attempt=1)
    tenant.until("deep-30", attempt=1)
    assert sturdy.stop() == 0
    sturdy.start()  # which lists them all
    other.create("after")
    other.until("after", attempt=1)
    assert sturdy.stop() == 0


@pytest.mark.parametrize(
    "fields",
    [{"extras": {"WANDB_API_KEY": "hunter2"}}, {"algoParams": {"wandb": [{"wandb_api_key": "hunter2"}]}}],
    ids=["of extras", "of a flag"],
)
def test_a_key_in_whatever_place(lab: Any, fields: dict[str, Any]) -> None:
    lab.create("run", **fields)
    end = lab.until("run", fsmState="TERM", outcome="failed")
    assert end["reason"] == "BadConfig"
    assert "does not travel in a config" in end["message"]
    assert "hunter2" not in end["message"]

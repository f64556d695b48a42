"""Values that the operator's unit tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import Status
from cleanrl_operator.facts import Facts
from cleanrl_operator.fsm import Decision, decide

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def make_spec() -> Callable[..., Spec]:
    def make(**fields: Any) -> Spec:
        return Spec.model_validate({"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 1000, **fields})

    return make


@pytest.fixture
def judge() -> Callable[..., Decision]:
    def run(spec: Spec, status: Status, facts: Facts, seconds: float = 0) -> Decision:
        stored = Status.model_validate(json.loads(json.dumps(status.dump())))  # as it comes back from the API server
        return decide(spec, stored, facts, START + timedelta(seconds=seconds), generation=1, run_id="01RUN")

    return run

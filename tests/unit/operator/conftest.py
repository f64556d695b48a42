"""Values that the operator's unit tests share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import State, Status
from cleanrl_operator.decision import Decision
from cleanrl_operator.facts import Facts
from cleanrl_operator.fsm import decide

EDGES = frozenset(
    {
        (State.INIT, State.HSHK),
        (State.HSHK, State.RDY),
        (State.RDY, State.EXEC),
        (State.EXEC, State.PAUSE),
        (State.PAUSE, State.EXEC),
        (State.PAUSE, State.INIT),
        (State.FAULT, State.INIT),
        (State.FAULT, State.PAUSE),
        (State.INIT, State.PAUSE),
        (State.HSHK, State.PAUSE),
        (State.RDY, State.PAUSE),
        *((state, end) for state in State for end in (State.FAULT, State.TERM) if state is not State.TERM),
    }
)
"""The state machine's edges, as the table in docs/concepts/state-machine.md has them."""

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="session")
def forward_path() -> Callable[[Iterable[State]], bool]:
    """Whether a list of states follows the machine's edges."""
    return lambda states: all(edge in EDGES for edge in pairwise(states))


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

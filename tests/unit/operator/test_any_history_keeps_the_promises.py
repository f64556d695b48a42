"""Whatever happens in whatever order: TERM is final, no state is skipped, budgets hold, time never runs backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import MAX_TRANSITIONS, State, Status
from cleanrl_operator.decision import CreatePod, DeletePod
from cleanrl_operator.facts import (
    EndReason,
    Facts,
    PodFacts,
    PodSituation,
    Refusal,
    RefusalKind,
    SessionFacts,
    WorkerEnd,
)
from cleanrl_operator.fsm import decide
from hypothesis import given, settings
from hypothesis import strategies as st

START = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 2

times = st.integers(-3600, 7200).map(lambda seconds: START + timedelta(seconds=seconds))
ends = st.builds(
    WorkerEnd,
    exit_code=st.sampled_from([0, 1, 2, 3, 137, 143]),
    outcome=st.sampled_from([None, "completed", "failed", "suspended", "canceled", "deadline_exceeded"]),
    reason=st.sampled_from(["", "NaNLoss", "BadConfig", "DependencyInstallFailed"]),
    kubelet_reason=st.sampled_from(["", "OOMKilled", "Error"]),
    started_at=st.none() | times,
    registered_at=st.none() | times,
    step=st.integers(0, 1000),
    checkpoint_path=st.none() | st.just("checkpoints/a"),
    checkpoint_step=st.integers(0, 1000),
)
pods = st.builds(
    PodFacts,
    situation=st.sampled_from(PodSituation),
    uid=st.none() | st.sampled_from(["uid-1", "uid-2"]),
    since=st.none() | times,
    deleting=st.booleans(),
    disrupted=st.none() | st.sampled_from([EndReason.EVICTED, EndReason.PREEMPTED, EndReason.NODE_LOST]),
    unschedulable=st.sampled_from(["", "no room"]),
    end=st.none() | ends,
)
sessions = st.builds(
    SessionFacts,
    registered_at=st.none() | times,
    started_at=st.none() | times,
    paused=st.booleans(),
    late_seconds=st.floats(0, 1000),
    step=st.integers(0, 1000),
    steps_per_second=st.none() | st.floats(0.1, 1e6),
    stage=st.none() | st.just("1/2 first"),
)
facts = st.builds(
    Facts,
    pod=pods,
    session=st.none() | sessions,
    refusal=st.none() | st.builds(Refusal, kind=st.sampled_from(RefusalKind), message=st.just("no")),
    node_ready=st.sampled_from([None, True, False]),
    config_error=st.sampled_from(["", "", "", "bad"]),
    source_pending=st.sampled_from(["", "", "", "not yet"]),
    claim_uid=st.sampled_from([None, "claim-1"]),
    claim_lost=st.sampled_from(["", "", "", "gone"]),
    predecessor=st.sampled_from(["", "", "", "run-1"]),
)
verbs = st.fixed_dictionaries(
    {"suspend": st.booleans(), "pause": st.booleans(), "cancel": st.sampled_from([False] * 9 + [True])}
)
histories = st.lists(st.tuples(facts, verbs, st.integers(-600, 4000)), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(history=histories)
def test_promises_hold(
    forward_path: Callable[[Iterable[State]], bool], history: list[tuple[Facts, dict[str, bool], int]]
) -> None:
    now, status = START, Status()
    walked: list[State] = []
    for fact, verb, seconds in history:
        now += timedelta(seconds=seconds)
        spec = make_spec(verb)
        before = Status.model_validate(status.dump())
        decision = decide(spec, before, fact, now, generation=1, run_id="01RUN")
        status = decision.status
        seen = len(before.transitions or [])
        moved = [step.to for step in (status.transitions or [])][seen if seen < MAX_TRANSITIONS else 0 :]
        walked += moved if seen < MAX_TRANSITIONS else []

        moments = [step.at for step in status.transitions or []]
        assert moments == sorted(moments), "time ran backwards"
        assert forward_path([step.to for step in status.transitions or []]), "a state was skipped"
        assert status.retries <= LIMIT + 1, "the budget was overdrawn"
        assert status.attempt - before.attempt in (0, 1), "an attempt was skipped"
        if before.fsm_state == State.TERM:
            assert status.fsm_state == State.TERM
            assert status.outcome == before.outcome
            assert not any(isinstance(effect, CreatePod) for effect in decision.effects)
        if status.fsm_state == State.TERM:
            assert status.outcome is not None
        else:
            assert status.outcome is None
        creates = [effect for effect in decision.effects if isinstance(effect, CreatePod)]
        if creates:
            assert status.pod_uid is None, "a second pod was asked for"
            assert creates == [CreatePod(status.attempt + 1)]
        assert all(effect.uid for effect in decision.effects if isinstance(effect, DeletePod))
        same = decide(spec, status, fact, now, generation=1, run_id="01RUN")
        if not decision.effects and status.fsm_state == State.TERM:
            assert same.status.dump() == status.dump(), "a finished run changed without a cause"


def make_spec(verb: dict[str, bool]) -> Spec:
    fields: dict[str, Any] = {
        "algo": "ppo",
        "envId": "CartPole-v1",
        "totalTimesteps": 1000,
        "maxWallclockMinutes": 60,
        "pendingDeadlineSeconds": 600,
        "retry": {"limit": LIMIT},
        "resources": {"gpus": {"requested": 1}},
        **verb,
    }
    return Spec.model_validate(fields)

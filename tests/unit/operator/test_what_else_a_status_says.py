"""Sources, idle GPUs, dry runs, stages, TensorBoard, failed installations: each said in a status, truly and briefly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cleanrl_operator.api.spec import Spec
from cleanrl_operator.api.status import MAX_STAGE, Outcome, ProgressStatus, State, Status
from cleanrl_operator.decision import CreatePod, Decision
from cleanrl_operator.facts import EndReason, Facts, PodFacts, PodSituation, SessionFacts, WorkerEnd
from cleanrl_operator.gateway.sessions import MAX_SUMMARY, stage_of, stages_done, summary_of
from cleanrl_operator.kube import KubeError
from cleanrl_operator.policies import gpu
from cleanrl_operator.policies import tensorboard as board
from cleanrl_operator.policies.failure import classify
from cleanrl_operator.policies.retry import verdict
from cleanrl_operator.policies.source import judge as judge_source
from cleanrl_operator.readers import FRESH_SECONDS, REVIEWS_PER_MINUTE, MetricsReaders
from cleanrl_operator.reconcile import merge_patch
from cleanrl_operator.run import Run

START = datetime(2026, 1, 1, tzinfo=UTC)
MakeSpec = Callable[..., Spec]
Judge = Callable[..., Decision]
SHA = "d" * 64


def run(name: str, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    metadata["creationTimestamp"] = START.isoformat()
    whole = {"algo": "ppo", "envId": "CartPole-v1", "totalTimesteps": 10, **spec}
    return {"metadata": metadata, "spec": whole, "status": status or {}}


def ended(**fields: Any) -> Facts:
    return Facts(pod=PodFacts(situation=PodSituation.ENDED, uid="p", end=WorkerEnd(**{"exit_code": 0, **fields})))


# -- where a run starts from


def checkpoint(**fields: Any) -> dict[str, Any]:
    return {"checkpoint": {"path": "checkpoints/5", "step": 5, "time": START.isoformat(), **fields}}


@pytest.mark.parametrize(
    ("status", "fault", "pending"),
    [
        ({"fsmState": "EXEC", **checkpoint(sha256=SHA)}, "", ""),
        ({"fsmState": "TERM", **checkpoint(sha256=SHA)}, "", ""),
        ({"fsmState": "EXEC"}, "", "first checkpoint of a"),
        ({}, "", "first checkpoint of a"),
        ({"fsmState": "EXEC", **checkpoint()}, "", "first checkpoint of a"),
        ({"fsmState": "TERM"}, "ended without a checkpoint", ""),
        ({"fsmState": "TERM", **checkpoint()}, "of unknown digest", ""),
    ],
)
def test_a_source_needs_a_checkpoint_that_its_status_vouches_for(
    status: dict[str, Any], fault: str, pending: str
) -> None:
    later = Run.parse(run("b", mode="resume", **{"from": {"run": "a"}}))
    judged = judge_source(later, run("a", status), START)
    assert (fault in judged.fault, bool(judged.fault)) == (True, bool(fault))
    assert (pending in judged.pending, bool(judged.pending)) == (True, bool(pending))
    assert (judged.found is not None) == (not fault and not pending)


def test_an_interactive_run_may_play_elsewhere_and_a_source_may_be_unreadable() -> None:
    trained = run("a", checkpoint(sha256=SHA))
    played = Run.parse(run("b", mode="interactive", envId="CartPole-v0", **{"from": {"run": "a"}}))
    assert judge_source(played, trained, START).found is not None
    judged = Run.parse(run("b", mode="policyEval", envId="CartPole-v0", **{"from": {"run": "a"}}))
    assert "not on CartPole-v0" in judge_source(judged, trained, START).fault
    broken = run("a")
    broken["spec"]["totalTimesteps"] = "many"
    assert "can't be read" in judge_source(played, broken, START).fault


def test_a_source_that_is_applied_a_moment_later_is_waited_for() -> None:
    accepted = {"fsmState": "INIT", "startedAt": START.isoformat()}
    for status in ({}, accepted):
        new = Run.parse(run("b", status, mode="resume", **{"from": {"run": "a"}}))
        assert "no such run in this namespace yet" in judge_source(new, None, START).pending
        assert "first checkpoint of a" in judge_source(new, run("a"), START).pending
    waited = judge_source(new, None, START + timedelta(minutes=1))
    assert (waited.pending, "there is no such run" in waited.fault) == ("", True)


def test_a_pending_source_waits_without_a_pod_and_without_a_cost(make_spec: MakeSpec, judge: Judge) -> None:
    new = judge(make_spec(), Status(), Facts()).status
    waiting = judge(make_spec(), new, Facts(source_pending="not yet"))
    assert (waiting.status.fsm_state, waiting.status.reason, waiting.status.retries) == ("INIT", "WaitingForSource", 0)
    assert waiting.effects == ()
    assert waiting.wake_at is not None
    assert judge(make_spec(), waiting.status, Facts(), 10).effects == (CreatePod(1),)


# -- GPUs


@pytest.mark.parametrize(
    ("fields", "idle"),
    [
        ({"algo": "dqn"}, True),
        ({"algo": "sac_continuous_action", "envId": "Pendulum-v1"}, True),
        ({"algo": "ppo"}, True),
        ({"algo": "ppo", "algoParams": {"network": "shared"}}, False),
        ({"algo": "ppo", "envId": "MiniGrid-Empty-5x5-v0"}, False),
        ({"algo": "ppo_atari", "envId": "BreakoutNoFrameskip-v4"}, False),
        ({"algo": "plugin.mine"}, False),
        ({"algo": "dqn", "resources": {"gpus": {"requested": 0}}}, False),
        ({"algo": "dqn", "mode": "script", "script": {"path": "/s.sh"}}, False),
    ],
)
def test_a_gpu_that_does_nothing_is_named(make_spec: MakeSpec, fields: dict[str, Any], idle: bool) -> None:
    spec = make_spec(**{"resources": {"gpus": {"requested": 1}}, **fields})
    assert bool(gpu.unused(spec, Status())) == idle
    assert not gpu.unused(spec, Status(gpu_fallback=True)), "it holds none any more"


def test_it_is_said_while_the_run_lives_and_announced_once(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(resources={"gpus": {"requested": 1}})
    new = judge(spec, Status(), Facts())
    assert [event.reason for event in new.events] == ["Accepted", "GPUUnused"]
    again = judge(spec, new.status, Facts(), 5)
    assert "GPUUnused" not in [event.reason for event in again.events]
    assert "GPUUnused" in [each.type for each in again.status.conditions or []]
    over = judge(spec, again.status, ended(outcome="completed")).status
    assert [each.type for each in over.conditions or []] == ["Ready", "Complete"]


# -- dry runs


def test_a_dry_run_ends_with_its_summary_and_never_trained(make_spec: MakeSpec, judge: Judge) -> None:
    spec = make_spec(dryRun=True)
    new = judge(spec, Status(), Facts()).status
    end = judge(spec, new, ended(outcome="completed", message="would run: ppo", ran_at=START)).status
    assert (end.fsm_state, end.outcome, end.reason) == (State.TERM, Outcome.COMPLETED, "DryRun")
    assert end.message == "would run: ppo"
    assert end.exec_started_at is None
    heard = Facts(
        pod=ended(outcome="completed").pod, session=SessionFacts(registered_at=START, started_at=START, summary="s")
    )
    told = judge(spec, new, heard).status
    assert (told.message, told.exec_started_at) == ("s", None), "run_started of a dry run is no start of training"
    assert State.EXEC not in [step.to for step in told.transitions or []]
    assert end.analytics is None
    silent = judge(spec, new, ended(outcome="completed")).status
    assert silent.message == "The pre-flight found nothing wrong."
    refused = judge(spec, new, ended(outcome="failed", exit_code=2, message="no such flag")).status
    assert (refused.outcome, refused.reason, refused.message) == (Outcome.FAILED, "BadConfig", "no such flag")


# -- stages


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"index": 0, "count": 3, "name": "A-v0"}, "1/3 A-v0"),
        ({"index": 2, "count": 3, "name": "A-v0"}, "3/3 A-v0"),
        ({"name": "warm up"}, "warm up"),
        ({"index": "1", "count": None, "name": "A"}, "A"),
        ({"index": -1, "count": 3, "name": "A"}, "A"),
        ({"index": 0, "count": 3, "name": "a\n\x1b[31mb"}, "1/3 a[31mb"),
        ({"index": 0, "count": 3, "name": "y" * 9000}, f"1/3 {'y' * (MAX_STAGE - 4)}"),
        ({"name": ["list"]}, "['list']"),
        ({}, None),
    ],
)
def test_a_stage_is_short_and_printable_whatever_a_worker_says(payload: dict[str, Any], text: str | None) -> None:
    assert stage_of(payload) == text


def test_a_summary_of_a_dry_run_is_one_sentence_whatever_a_worker_says() -> None:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 1000}
    said = {
        "config": config,
        "mode": "train",
        "command": ["python", "-m", "x", "--note", "a b"],
        "requirements": ["base"],
    }
    expected = "Would run ppo on CartPole-v1, seed 1, mode train, 1000 steps: python -m x --note 'a b'. It needs base."
    assert summary_of(said) == expected
    assert summary_of(None) == ""
    assert summary_of("cut\nshort") == "cutshort"
    assert len(summary_of({"command": ["x" * 9000]})) == MAX_SUMMARY
    assert summary_of({"config": 3, "command": "x", "requirements": "y"}).startswith("Would run None")


def test_a_stage_is_shown_before_the_first_step(make_spec: MakeSpec, judge: Judge) -> None:
    new = judge(make_spec(), Status(), Facts()).status
    live = PodFacts(situation=PodSituation.RUNNING, uid="p")
    said = Facts(pod=live, session=SessionFacts(registered_at=START, started_at=START, stage="1/2 A"))
    progress = judge(make_spec(), new, said).status.progress
    assert progress is not None
    assert (progress.stage, progress.step) == ("1/2 A", 0)


def test_an_extended_run_is_as_far_as_its_worker_counts(make_spec: MakeSpec, judge: Judge) -> None:
    """totalTimesteps are the steps to add; the worker counts on from where its checkpoint was."""
    new = Status(fsm_state=State.EXEC, attempt=1, pod_uid="p")
    spec = make_spec(mode="resume", totalTimesteps=1000, **{"from": {"run": "earlier"}})

    def percent(**said: Any) -> float:
        session = SessionFacts(registered_at=START, **said)
        progress = judge(spec, new, Facts(pod=PodFacts(uid="p"), session=session)).status.progress
        assert progress is not None
        return progress.percent

    assert percent(step=2500, total=3000) == 83.3
    assert percent(step=2500) == 100, "never more than all of it"


def test_an_evaluation_counts_episodes_and_a_script_its_phases(make_spec: MakeSpec, judge: Judge) -> None:
    def progress(session: SessionFacts, **spec: Any) -> tuple[float, int | None]:
        begun = Status(fsm_state=State.EXEC, attempt=1, pod_uid="p")
        told = judge(make_spec(**spec), begun, Facts(pod=PodFacts(uid="p"), session=session)).status.progress
        assert told is not None
        return told.percent, told.eta_seconds

    evaluation = {"mode": "policyEval", "from": {"run": "earlier"}, "totalTimesteps": None}
    played = SessionFacts(registered_at=START, step=5, total=20, steps_per_second=100.0)
    assert progress(played, **evaluation) == (25.0, None), "steps a second say nothing of episodes"
    script = {"mode": "script", "script": {"configMapRef": {"name": "phases"}, "key": "phases.sh"}}
    phases = SessionFacts(registered_at=START, step=1024, steps_per_second=100.0, stage="2/4 B", stages_done=0.25)
    assert progress(phases, **script, totalTimesteps=1024) == (25.0, None), (
        "the steps asked for are those of one worker"
    )
    assert progress(replace(phases, total=4096), **script)[0] == 25.0
    assert progress(replace(phases, total=2048), **script) == (50.0, 10), "its header knows better"


def test_the_newest_checkpoint_of_a_script_is_of_its_last_phase(make_spec: MakeSpec, judge: Judge) -> None:
    script = {"mode": "script", "script": {"path": "/phases.sh"}}
    for spec, newest in ((script, "phases/2/a"), ({}, "phases/1/z")):
        status = Status(fsm_state=State.EXEC, attempt=1, pod_uid="p")
        for path, step in (("phases/1/z", 9000), ("phases/2/a", 100)):
            saved = SessionFacts(registered_at=START, checkpoint_path=path, checkpoint_step=step, checkpoint_at=START)
            status = judge(make_spec(**spec), status, Facts(pod=PodFacts(uid="p"), session=saved)).status
        assert status.checkpoint is not None
        assert status.checkpoint.path == newest


@pytest.mark.parametrize(
    ("payload", "share"),
    [
        ({"index": 0, "count": 3}, 0.0),
        ({"index": 3, "count": 4}, 0.75),
        ({"index": 9, "count": 4}, 1.0),
        ({"index": 1, "count": 0}, 0.0),
        ({"index": "1", "count": 2}, 0.0),
        ({}, 0.0),
    ],
)
def test_stages_that_are_over_are_counted_whatever_a_worker_says(payload: dict[str, Any], share: float) -> None:
    assert stages_done(payload) == share


# -- how it ended


def test_what_a_run_came_to_is_its_message(make_spec: MakeSpec, judge: Judge) -> None:
    new = Status(fsm_state=State.EXEC, attempt=1, pod_uid="p")
    told = judge(make_spec(), new, ended(outcome="completed", message="Evaluated: 20 episodes, return 9.5")).status
    assert (told.reason, told.message) == ("Completed", "Evaluated: 20 episodes, return 9.5")
    assert judge(make_spec(), new, ended(outcome="completed")).status.message == "The run did all its steps."


def test_a_completed_run_has_all_of_it_behind_it(make_spec: MakeSpec, judge: Judge) -> None:
    """Rollouts may not divide the total, and the last figures may never have been heard: the record knows."""
    heard = Status(fsm_state=State.EXEC, attempt=1, pod_uid="p", progress=ProgressStatus(step=400, percent=40.0))
    for before, step in ((heard, 993), (heard, 0), (Status(fsm_state=State.EXEC, attempt=1, pod_uid="p"), 993)):
        told = judge(make_spec(totalTimesteps=1000), before, ended(outcome="completed", step=step)).status.progress
        assert told is not None
        assert (told.percent, told.eta_seconds) == (100.0, None)
        assert told.step == max(step, before.progress.step if before.progress else 0)
    conversation = make_spec(mode="interactive", totalTimesteps=None, **{"from": {"run": "earlier"}})
    assert judge(conversation, heard, ended(outcome="completed")).status.progress == heard.progress, "it has no share"
    failed = judge(
        make_spec(totalTimesteps=1000), heard, ended(exit_code=1, outcome="failed", step=500)
    ).status.progress
    assert failed is not None
    assert failed.percent < 100


def test_a_failed_phase_is_told_apart_and_a_refused_one_is_final() -> None:
    end = WorkerEnd(exit_code=1, outcome="failed", reason="PhaseFailed", message="in phase 2 (hard)")
    assert classify(end, None) == (EndReason.PHASE, "in phase 2 (hard)")
    assert verdict("PhaseFailed").retryable
    assert verdict("PhaseFailed").spends
    refused = WorkerEnd(exit_code=2, outcome="failed", reason="PhaseFailed", message="in phase 2 (hard)")
    assert classify(refused, None) == (EndReason.BAD_CONFIG, "in phase 2 (hard)")


def test_a_checkpoint_that_is_not_there_is_asked_for_again_only_of_a_run() -> None:
    """A path in the manifest leads nowhere the next time too; a run may name another checkpoint by then."""
    gone = WorkerEnd(exit_code=2, outcome="failed", reason="NoCheckpoint", message="there is none")
    assert classify(gone, None) == (EndReason.BAD_CONFIG, "there is none")
    reason, message = classify(gone, None, of_a_run=True)
    assert (reason, message.endswith("there is none")) == (EndReason.NO_CHECKPOINT, True)
    assert verdict(reason).retryable


# -- installations


def test_a_failed_installation_is_told_apart_and_costs_a_retry() -> None:
    end = WorkerEnd(exit_code=1, reason=EndReason.DEPENDENCIES, message="no wheels")
    assert classify(end, None) == (EndReason.DEPENDENCIES, "no wheels")
    assert classify(end, EndReason.EVICTED)[0] is EndReason.EVICTED, "the cluster's doing is not the cache's"
    assert verdict("DependencyInstallFailed").retryable
    assert verdict("DependencyInstallFailed").spends


# -- TensorBoard


def test_a_port_is_named_only_while_something_listens_there() -> None:
    def shown(state: State, pod: str | None = "p") -> Any:
        return board.beside_worker(Status(fsm_state=state, pod_uid=pod), "run-1", 6006)

    for state in (State.HSHK, State.RDY, State.EXEC, State.PAUSE):
        assert shown(state).port_forward == "pod/run-1 6006:6006"
        assert shown(state).reason is None
    assert shown(State.INIT).reason == board.NOT_YET
    for state in (State.TERM, State.FAULT):
        assert (shown(state).port_forward, shown(state).reason) == (None, "NoPod")
    assert shown(State.PAUSE, pod=None).reason == "NoPod"


def test_a_patch_takes_away_what_is_gone() -> None:
    before = {"a": {"reason": "x", "deep": {"one": 1, "two": 2}}, "list": [1], "gone": 1, "same": {"k": 1}}
    after = {"a": {"url": "u", "deep": {"one": 1}}, "list": [1, 2], "same": {"k": 1}, "new": {"n": 1}}
    assert merge_patch(before, after) == {
        "a": {"reason": None, "url": "u", "deep": {"two": None}},
        "list": [1, 2],
        "gone": None,
        "new": {"n": 1},
    }
    assert merge_patch(before, before) == {}


# -- who reads the metrics


class Reviewer:
    """Stands for the API server, to count what it is asked and to be away."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away = False

    async def review(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.away:
            raise KubeError(0, "NoAnswer", "away")
        self.asked.append(path.rpartition("/")[2])
        if body["kind"] == "TokenReview":
            return {"status": {"authenticated": True, "user": {"username": body["spec"]["token"]}}}
        return {"status": {"allowed": body["spec"]["user"] == "prometheus"}}


def test_answers_are_believed_for_a_minute_and_strangers_are_few() -> None:
    server, now = Reviewer(), [0.0]
    readers = MetricsReaders(server, lambda: now[0])  # type: ignore[arg-type]  # a stand-in

    def ask(header: str) -> int:
        refusal = asyncio.run(readers(header))
        return refusal.status if refusal is not None else 200

    assert [ask(""), ask("Basic abc"), ask("Bearer "), len(server.asked)] == [401, 401, 401, 0]
    assert [ask("Bearer prometheus") for _ in range(5)] == [200] * 5
    assert server.asked == ["tokenreviews", "subjectaccessreviews"]
    assert ask("Bearer stranger") == 403
    now[0] = FRESH_SECONDS + 1
    assert ask("Bearer prometheus") == 200
    assert len(server.asked) == 6
    server.away = True
    assert ask("Bearer another") == 503
    assert ask("Bearer prometheus") == 200, "what was answered a moment ago still holds"
    server.away = False
    crowd = [ask(f"Bearer {number}") for number in range(REVIEWS_PER_MINUTE)]
    assert crowd[-1] == 429
    assert ask("Bearer prometheus") == 200


@pytest.mark.parametrize(("step", "total", "percent"), [(15, 20, 75.0), (5, 0, 50.0), (12, 0, 100.0), (21, 20, 100.0)])
def test_progress_counts_towards_the_step_that_the_worker_goes_to(
    step: int, total: int, percent: float, make_spec: MakeSpec, judge: Judge
) -> None:
    """A resumed run has the steps of its source behind it, and a last rollout may end beyond the mark."""
    spec = make_spec(totalTimesteps=10)
    session = SessionFacts(registered_at=START, started_at=START, step=step, total=total, steps_per_second=1.0)
    facts = Facts(pod=PodFacts(situation=PodSituation.RUNNING, uid="p", since=START), session=session)
    progress = judge(spec, judge(spec, Status(), Facts()).status, facts).status.progress
    assert progress is not None
    assert progress.percent == percent
    assert progress.eta_seconds == max(0, (total or 10) - step)


@pytest.mark.parametrize(("said", "shown"), [(-121.54301152171392, -121.543), (500.0, 500.0), (1234567.8, 1234570.0)])
def test_a_return_has_as_many_digits_as_a_person_reads(
    said: float, shown: float, make_spec: MakeSpec, judge: Judge
) -> None:
    session = SessionFacts(registered_at=START, started_at=START, step=5, episodic_return=said)
    facts = Facts(pod=PodFacts(situation=PodSituation.RUNNING, uid="p", since=START), session=session)
    progress = judge(make_spec(), judge(make_spec(), Status(), Facts()).status, facts).status.progress
    assert progress is not None
    assert progress.episodic_return == shown

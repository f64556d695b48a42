from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cleanrl_worker.fastlane.collector import RunCollector, RunState, run_metrics
from cleanrl_worker.fastlane.metrics import Snapshot


def samples(state: RunState, snapshot: Snapshot, now: float = 0.0) -> dict[str, float]:
    return {
        sample.name.removeprefix("cleanrl_worker_") + "".join(sample.labels.values()): sample.value
        for family in run_metrics(state, snapshot, now)
        for sample in family.samples
    }


def test_supervisor_and_segment_together() -> None:
    state = RunState(
        step=250, total_steps=1000, episodes=3, checkpoint_at=70.0,
        scalars={"charts/episodic_return": 12.0, "losses/value_loss": 0.5},
    )  # fmt: skip
    snapshot = Snapshot(env_steps=240, step_rate_hz=99.0, rolling_return=11.0, last_reward=1.0, frames=4)
    found = samples(state, snapshot, now=100.0)
    assert found == {
        "env_steps_total": 250, "episodes_total": 3, "frames_total": 4, "progress_ratio": 0.25, "steps_per_second": 99.0,
        "episode_return": 12.0, "rolling_return": 11.0, "last_reward": 1.0, "checkpoint_age_seconds": 30.0,
        "lossvalue_loss": 0.5, "healthy": 1.0,
    }  # fmt: skip


def test_unknown_is_left_out() -> None:
    assert samples(RunState(), Snapshot()) == {"frames_total": 0, "healthy": 1.0}


def test_a_foreign_script_is_told_by_its_segment() -> None:
    found = samples(RunState(total_steps=100), Snapshot(env_steps=50, episodes=2, episode_return=9.0, step_rate_hz=5.0))
    assert (found["progress_ratio"], found["episodes_total"], found["episode_return"]) == (0.5, 2, 9.0)


def test_no_more_than_all_is_ever_done() -> None:
    assert samples(RunState(total_steps=100), Snapshot(env_steps=150))["progress_ratio"] == 1.0


def test_labels_are_bounded_and_the_page_parses() -> None:
    state = RunState(
        info={"run_id": 'x"\n}', "algo": "ppo"},
        scalars={f"losses/{number}": 1.0 for number in range(500)} | {'losses/"\n': 1.0},
    )
    registry = CollectorRegistry()
    registry.register(RunCollector(lambda: state, lambda: None))
    families = {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}
    assert len(families["cleanrl_worker_loss"].samples) <= 64
    assert families["cleanrl_worker_run_info"].samples[0].labels["run_id"] == 'x"\n}'


@pytest.mark.parametrize("healthy", [True, False])
def test_health_is_a_metric_too(healthy: bool) -> None:
    assert samples(RunState(healthy=healthy), Snapshot())["healthy"] == float(healthy)

"""The mean over the last episodes is logged where they end, and goes on where a checkpoint left off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from cleanrl_worker.training.envs import Episode, Step
from cleanrl_worker.training.rollout import RecentReturns

NOTHING = np.empty(0)


def logged(recent: RecentReturns, *episodes: tuple[float, int]) -> list[tuple[int, dict[str, float]]]:
    seen: list[tuple[int, dict[str, float]]] = []
    run: Any = SimpleNamespace(step=10, scalars=lambda values, step: seen.append((step, values)))
    ended = [Episode(0, ret, length) for ret, length in episodes]
    recent.log(run, Step(NOTHING, np.zeros(4, np.float32), NOTHING, NOTHING, NOTHING, ended))
    return seen


def test_returns_alone_or_with_lengths() -> None:
    assert logged(RecentReturns()) == []
    assert logged(RecentReturns(), (2.0, 5), (4.0, 9)) == [(14, {"charts/avg_episodic_return": 3.0})]
    both = {"charts/avg_episodic_return": 3.0, "charts/avg_episodic_length": 7.0}
    assert logged(RecentReturns(lengths=True), (2.0, 5), (4.0, 9)) == [(14, both)]


def test_the_oldest_give_way_and_a_checkpoint_holds_the_others() -> None:
    first, second = RecentReturns(2, lengths=True), RecentReturns(2, lengths=True)
    logged(first, (100.0, 100), (1.0, 1), (3.0, 3))
    second.load_state_dict(first.state_dict())
    after = logged(second, (5.0, 7))
    assert after == logged(first, (5.0, 7))
    assert after == [(14, {"charts/avg_episodic_return": 4.0, "charts/avg_episodic_length": 5.0})]

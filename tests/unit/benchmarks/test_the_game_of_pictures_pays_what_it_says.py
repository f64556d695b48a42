"""The game that algorithms for images are tried on: who knows the buttons gets eight points, who guesses two."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def game(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("chain_game")


def shown(game: Any, picture: np.ndarray) -> int:
    """The column in which the bar stands."""
    return int(np.flatnonzero(picture.max(axis=0)).mean() * game.COLUMNS / picture.shape[1])


@pytest.mark.parametrize("knows", [True, False])
def test_points_are_for_those_who_look(game: Any, knows: bool) -> None:
    rng, env = np.random.default_rng(0), game.ChainGame(4)
    returns = []
    for number in range(200):
        obs, _ = env.reset(seed=number % 4)
        total, over = 0.0, False
        while not over:
            action = game.BUTTONS[shown(game, obs[-1])] if knows else int(rng.integers(4))
            obs, points, over, _, info = env.step(action)
            total += info["raw_reward"]
            assert points == info["raw_reward"]
            assert info["game_over"] == over
        returns.append(total)
    assert np.mean(returns) == (game.BEST if knows else pytest.approx(game.BY_CHANCE, abs=0.2))


def test_many_games_at_once_are_the_same_game(game: Any) -> None:
    """Row by row, also through the ends: in a pool the step after an end begins the next game."""
    rng, pool = np.random.default_rng(0), game.ChainPool(3, seed=1, images=2, size=84)
    singles = [game.ChainGame(2) for _ in range(3)]
    first = np.array([env.reset(seed=1 + row)[0] for row, env in enumerate(singles)])
    assert np.array_equal(pool.reset()[0], first)
    for _ in range(80):
        actions = rng.integers(4, size=3)
        obs, points, over, _, _ = pool.step(actions)
        alone = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        assert np.array_equal(obs, [each[0] for each in alone])
        assert points.tolist() == [each[1] for each in alone]
        assert over.tolist() == [each[2] for each in alone]
        if over.any():
            restarted = pool.step(np.zeros(3, np.int32), np.flatnonzero(over))[0]
            assert np.array_equal(restarted, [singles[row].reset()[0] for row in np.flatnonzero(over)])

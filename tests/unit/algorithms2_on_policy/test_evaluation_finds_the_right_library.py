"""An environment's id tells who makes it for an evaluation, and what those libraries can't do is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cleanrl_worker.evals.elsewhere import library_of, make_elsewhere
from cleanrl_worker.training.errors import BadConfig


@pytest.mark.parametrize(
    ("env_id", "library"),
    [
        ("Breakout-v5", "envpool"),
        ("MontezumaRevenge-v5", "envpool"),
        ("ALE/Breakout-v5", None),
        ("BreakoutNoFrameskip-v4", None),
        ("starpilot", "procgen"),
        ("StarpilotEasy-v0", "procgen"),
        ("procgen-coinrun-v0", "procgen"),
        ("pong_v3", "pettingzoo"),
        ("CartPole-v1", None),
        ("MiniGrid-Empty-5x5-v0", None),
        ("HalfCheetah-v5", None),
    ],
)
def test_ids_are_spelled_as_their_library_spells_them(env_id: str, library: str | None) -> None:
    assert library_of(env_id) == library


def test_videos_and_limits_in_seconds_are_refused_where_they_can_not_be_had(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="can't be recorded"):
        make_elsewhere("Breakout-v5", 1, video=tmp_path)
    with pytest.raises(BadConfig, match="limit their steps instead"):
        make_elsewhere("starpilot", 1, max_episode_seconds=1.0)
    assert make_elsewhere("CartPole-v1", 1, video=tmp_path) is None


def test_players_are_filled_up_to_whole_games() -> None:
    envs = make_elsewhere("pong_v3", 3, max_episode_steps=5)
    assert envs.num_envs == 4
    envs.close()

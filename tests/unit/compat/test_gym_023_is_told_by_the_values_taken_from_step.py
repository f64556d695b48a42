from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cleanrl_worker.compat.gym023 import old_step, takes_four_values


@pytest.mark.parametrize(
    ("source", "old"),
    [
        ("obs, reward, done, info = envs.step(action)", True),
        ("def f():\n    a, b, _, c = self.env.step(x)\n", True),
        ("obs, reward, terminated, truncated, info = envs.step(action)", False),
        ("obs, reward, *rest = envs.step(action)", False),
        ("a, b, c, d = scheduler.update()", False),
        ("result = envs.step(action)", False),
        ("this is no Python", False),
    ],
)
def test_four_values_mean_the_old_interface(tmp_path: Path, source: str, old: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    assert takes_four_values([script]) is old


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert not takes_four_values([tmp_path / "nowhere.py"])


def test_infos_become_a_list_with_the_last_observation_of_an_ended_episode() -> None:
    yes_no = np.array([True, False])
    infos = {
        "lives": np.array([3, 4]),
        "_lives": np.array([True, True]),
        "final_obs": np.array([np.array([9.0]), None], dtype=object),
        "_final_obs": yes_no,
        "final_info": {"episode": {"r": np.array([5.0, 0.0]), "_r": yes_no}, "_episode": yes_no},
        "_final_info": yes_no,
    }
    never = np.array([False, False])
    _, _, done, listed = old_step((None, None, never, yes_no, infos))
    assert done.tolist() == [True, False]
    assert listed == [
        {"episode": {"r": 5.0}, "terminal_observation": np.array([9.0]), "TimeLimit.truncated": True},
        {"lives": 4},
    ]


def test_an_end_at_the_time_limit_is_no_truncation() -> None:
    end = np.array([True])
    assert old_step((None, None, end, end, [{}]))[3] == [{"TimeLimit.truncated": False}]

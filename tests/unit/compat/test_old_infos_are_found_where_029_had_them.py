from __future__ import annotations

from typing import Any

import numpy as np

from cleanrl_worker.compat.gymnasium029 import old_infos


def same_step_infos() -> dict[str, Any]:
    """Three environments, of which the second and third ended."""
    ended = np.array([False, True, True])
    observations = np.array([None, np.array([1.0]), np.array([2.0])], dtype=object)
    episode = {"r": np.array([0.0, 5.0, 6.0]), "_r": ended, "l": np.array([0, 50, 60]), "_l": ended}
    only_third = np.array([False, False, True])
    final = {"episode": episode, "_episode": ended, "won": np.array([False, False, True]), "_won": only_third}
    return {"final_obs": observations, "_final_obs": ended, "final_info": final, "_final_info": ended}


def test_a_list_with_one_entry_per_environment() -> None:
    infos = old_infos(same_step_infos())
    assert [info["episode"]["r"] if info else None for info in infos["final_info"]] == [None, 5.0, 6.0]
    assert "won" not in infos["final_info"][1]
    assert infos["final_info"][2]["won"]
    assert infos["final_observation"][1] == np.array([1.0])
    assert infos["final_observation"][0] is None


def test_code_for_1x_finds_its_own_shape() -> None:
    infos = old_infos(same_step_infos())
    assert "episode" in infos["final_info"]
    assert infos["final_info"]["episode"]["l"].tolist() == [0, 50, 60]
    assert infos["final_info"].get("nothing") is None
    assert infos["_episode"].tolist() == [False, True, True]
    assert infos["episode"]["r"].tolist() == [0.0, 5.0, 6.0]


def test_steps_without_an_end_are_untouched() -> None:
    assert old_infos({}) == {}
    assert old_infos({"x": 1}) == {"x": 1}

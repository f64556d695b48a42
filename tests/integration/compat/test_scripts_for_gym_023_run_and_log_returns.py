"""Small scripts of our own, written as for gym 0.23 and the libraries of its time, run unmodified on today's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

RunScript = Callable[..., subprocess.CompletedProcess[str]]


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_seed_method_four_values_and_infos_as_a_list(run_script: RunScript) -> None:
    first, *returns = lines(run_script("old_gym_like.py"))
    assert first == "seeded alike True"
    assert [line for line in returns if "return 0" in line] == ["return 0 cut upright 12.0"] * 5
    over = [line for line in returns if "return 1" in line]
    assert over
    assert all(line.startswith("return 1 over fallen ") for line in over)


def test_the_log_says_which_gym_it_gets(run_script: RunScript) -> None:
    assert "in the interface of gym 0.23" in run_script("old_gym_like.py").stderr


def test_procgen_without_its_package(run_script: RunScript) -> None:
    done = run_script("procgen_like.py", CLEANRL_SEED="3")
    images, first, *returns = lines(done)
    assert images == "images (3, 64, 64, 3) uint8 (64, 64, 3) 15"
    assert int(first.split()[1]) > 0
    assert len(returns) >= 3
    assert "procgen, which is not installed" in done.stderr


def test_procgen_follows_the_runs_seed(run_script: RunScript) -> None:
    alike = [lines(run_script("procgen_like.py", CLEANRL_SEED="3")) for _ in range(2)]
    other = lines(run_script("procgen_like.py", CLEANRL_SEED="4"))
    assert alike[0] == alike[1]
    assert alike[0] != other


def test_several_players_find_their_game_and_log_returns(run_script: RunScript) -> None:
    players, *returns = lines(run_script("players_like.py"))
    assert players == "players 4"
    assert len(returns) >= 8
    assert all(line.startswith("return 10 ") for line in returns)


def test_an_array_of_one_element_goes_where_a_number_goes(run_script: RunScript) -> None:
    assert lines(run_script("one_element_like.py")) == [
        "[0, 3, 0, 0, 0] [7.0, 7.0, 1.5, 1.0, 2.0] [False, True, True, True, True]",
        "two are too many",
        '{"sum": 20.5, "largest": 8.0} {np.True_}',
        "ndarray ndarray float32 [8.0, 8.0, 2.5, 2.0, 0.0]",
    ]


def test_train_states_of_dataclasses_and_of_dicts(run_script: RunScript) -> None:
    assert lines(run_script("flax_like.py")) == ["[0.5, 0.5] [1.0] 1", "[0.5, 0.5]", "{'a': 2}"]

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cleanrl_protocol.algorithms import REQUIREMENT_SETS
from cleanrl_worker import requirement_sets
from cleanrl_worker.tools import install_extras

PROJECT = Path(requirement_sets.__file__).resolve().parents[1]

NEEDS = {
    ("ppo", "CartPole-v1"): ["base"],
    ("ppo_gru", "MiniGrid-DoorKey-5x5-v0"): ["base", "minigrid"],
    ("ppo", "BabyAI-GoToLocal-v0"): ["base", "minigrid"],
    ("ppo_continuous_action", "HalfCheetah-v4"): ["base", "mujoco"],
    ("ppo_continuous_action", "dm_control/cheetah-run-v0"): ["base", "dm-control"],
    ("rpo_continuous_action", "Pendulum-v1"): ["base"],
    ("ppo_atari", "BreakoutNoFrameskip-v4"): ["base", "atari"],
    ("ppo_atari", "ALE/Breakout-v5"): ["base", "atari"],
    ("ppo_atari_multigpu", "BreakoutNoFrameskip-v4"): ["base", "atari"],
    ("ppo_atari_lstm", "BreakoutNoFrameskip-v4"): ["base", "atari"],
    ("ppo_atari_envpool", "Breakout-v5"): ["base", "envpool"],
    ("ppo_atari_envpool_xla_jax", "Breakout-v5"): ["base", "envpool", "jax"],
    ("ppo_atari_envpool_xla_jax_scan", "Breakout-v5"): ["base", "envpool", "jax"],
    ("ppo_procgen", "starpilot"): ["base", "procgen"],
    ("ppg_procgen", "starpilot"): ["base", "procgen"],
    ("ppo_rnd_envpool", "MontezumaRevenge-v5"): ["base", "envpool"],
    ("ppo_pettingzoo_ma_atari", "pong_v3"): ["base", "pettingzoo"],
    ("pqn", "Acrobot-v1"): ["base"],
    ("pqn_atari_envpool", "Breakout-v5"): ["base", "envpool"],
    ("pqn_atari_envpool_lstm", "Breakout-v5"): ["base", "envpool"],
    ("dqn", "CartPole-v1"): ["base"],
    ("dqn", "PongDeterministic-v4"): ["base", "atari"],
    ("dqn", "Pong-v4"): ["base", "atari"],
    ("dqn", "Pong-ram-v4"): ["base", "atari"],
    ("dqn", "StarpilotEasy-v0"): ["base", "procgen"],
    ("dqn", "procgen:procgen-coinrun-v0"): ["base", "procgen"],
    ("dqn_jax", "CartPole-v1"): ["base", "jax"],
    ("dqn_atari", "BreakoutNoFrameskip-v4"): ["base", "atari"],
    ("dqn_atari_jax", "BreakoutNoFrameskip-v4"): ["base", "atari", "jax"],
    ("rainbow_atari", "BreakoutNoFrameskip-v4"): ["base", "atari"],
    ("qdagger_dqn_atari_impalacnn", "BreakoutNoFrameskip-v4"): ["base", "atari"],
    ("qdagger_dqn_atari_jax_impalacnn", "BreakoutNoFrameskip-v4"): ["base", "atari", "jax"],
    ("c51", "CartPole-v1"): ["base"],
    ("c51_jax", "CartPole-v1"): ["base", "jax"],
    ("c51_atari", "BreakoutNoFrameskip-v4"): ["base", "atari"],
    ("c51_atari_jax", "BreakoutNoFrameskip-v4"): ["base", "atari", "jax"],
    ("ddpg_continuous_action", "Hopper-v4"): ["base", "mujoco"],
    ("ddpg_continuous_action_jax", "Hopper-v5"): ["base", "mujoco", "jax"],
    ("td3_continuous_action", "Walker2d-v4"): ["base", "mujoco"],
    ("td3_continuous_action_jax", "Pendulum-v1"): ["base", "jax"],
    ("sac_continuous_action", "Humanoid-v5"): ["base", "mujoco"],
    ("sac_atari", "BeamRiderNoFrameskip-v4"): ["base", "atari"],
    ("cleanrl.ppo_atari", "BreakoutNoFrameskip-v4"): ["base", "atari"],
    ("plugin.mine", "MiniGrid-Empty-5x5-v0"): ["base", "minigrid"],
}


@pytest.mark.parametrize(("algo", "env_id"), NEEDS)
def test_for_run(algo: str, env_id: str) -> None:
    assert requirement_sets.for_run(algo, env_id) == NEEDS[algo, env_id]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "FrozenLake-v1", ""])
def test_gymnasiums_own_environments_need_nothing_beyond_base(env_id: str) -> None:
    assert requirement_sets.for_environment(env_id) == []


def test_every_extra_of_the_project_but_the_operators_is_a_set() -> None:
    optional = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {entry.extra for entry in requirement_sets.SETS.values()} == set(optional) - {"operator"}
    for entry in requirement_sets.SETS.values():
        assert entry.name == ("base" if entry.extra == "worker" else entry.extra)


def test_the_operator_knows_the_same_sets() -> None:
    assert tuple(requirement_sets.SETS) == REQUIREMENT_SETS


def test_missing_system_libraries_are_named_with_their_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert requirement_sets.missing_libraries(["procgen"]) == [("Qt5Gui", "libqt5gui5"), ("Qt5Core", "libqt5core5a")]
    assert requirement_sets.missing_libraries(["base", "atari", "mujoco"]) == []


def test_check_prints_the_command_for_system_libraries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert install_extras.main(["--check", "--set", "procgen"]) == 1
    assert "apt-get install -y libqt5gui5 libqt5core5a" in capsys.readouterr().out


def test_the_packages_are_those_of_the_project_and_each_import_name_exists() -> None:
    optional = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for entry in requirement_sets.SETS.values():
        assert len(entry.packages) == len(optional[entry.extra]) == len(entry.modules)
        for package, module in zip(entry.packages, entry.modules, strict=True):
            if not requirement_sets._fits_this_python(package):
                continue
            assert importlib.util.find_spec(module) is not None, f"{entry.name}: no module {module}"


def test_an_uninstalled_checkout_reads_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {name: sorted(entry.modules) for name, entry in requirement_sets.SETS.items()}

    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    requirement_sets._extras.cache_clear()
    try:
        assert {name: sorted(entry.modules) for name, entry in requirement_sets.SETS.items()} == installed
    finally:
        requirement_sets._extras.cache_clear()


def test_other_markers_stay_with_the_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["plain>=1", "a>=2; (python_version < '3.12') and extra == 'atari'", 'b; extra == "atari"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    requirement_sets._extras.cache_clear()
    try:
        assert requirement_sets.SETS["atari"].packages == ("a>=2; (python_version < '3.12')", "b")
    finally:
        requirement_sets._extras.cache_clear()


def test_what_is_missing_names_set_module_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in {"cv2", "ale_py"} else real(name))
    found = requirement_sets.missing(["base", "atari", "pettingzoo"])
    command = "python -m cleanrl_worker.tools.install_extras --set atari"
    assert found == [
        requirement_sets.Missing("atari", "ale_py", command),
        requirement_sets.Missing("atari", "cv2", command),
    ]
    assert command in str(found[0]) and "'ale_py'" in str(found[0]) and "'atari'" in str(found[0])


def test_nothing_is_missing_where_everything_is_installed() -> None:
    assert [item for item in requirement_sets.missing(["all"]) if "with a Python where" not in item.command] == []


def test_a_package_without_a_release_for_this_python_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["old-library>=2; (python_version < '3.4') and extra == 'atari'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    requirement_sets._extras.cache_clear()
    try:
        [absent] = requirement_sets.missing(["atari"])
    finally:
        requirement_sets._extras.cache_clear()
    assert absent.module == "old_library"
    assert "with a Python where (python_version < '3.4')" in absent.command


def test_aliases_and_order() -> None:
    assert requirement_sets.resolve(["dm_control", "CLASSIC", " atari ", "ale", "babyai"]) == [
        "dm-control",
        "base",
        "atari",
        "minigrid",
    ]
    assert requirement_sets.resolve(["all"]) == list(requirement_sets.SETS)


def test_unknown_sets_are_all_named_with_suggestions() -> None:
    with pytest.raises(requirement_sets.UnknownSetError) as caught:
        requirement_sets.resolve(["atarii", "isaac", "jax"])
    assert "'atarii' (did you mean atari?)" in str(caught.value)
    assert "'isaac'" in str(caught.value)
    assert "procgen" in str(caught.value)


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from cleanrl_worker import requirement_sets as r; r.missing(r.SETS); r.for_run('ppo','Hopper-v4');"
        "print(sorted({'torch','numpy','jax','gymnasium','envpool'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

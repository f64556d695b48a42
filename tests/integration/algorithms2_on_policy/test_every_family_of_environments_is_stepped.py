"""Environments by the names that others give them: each family is made and stepped, to the end of an episode where that is
quick, and what is not there is refused with a sentence that says what to do."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from cleanrl_worker.training.envpool import PROCGEN_GAMES, make_procgen
from cleanrl_worker.training.envs import Envs, make_env
from cleanrl_worker.training.errors import BadConfig

MUJOCO = (
    *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum"),
    *("Pusher", "Reacher", "Swimmer", "Walker2d"),
)
DM_CONTROL = ("cartpole-balance", "cheetah-run", "walker-walk", "reacher-easy", "finger-spin", "ball_in_cup-catch")
GAMES = ("Breakout", "Pong", "SpaceInvaders", "BeamRider", "MsPacman", "Qbert", "MontezumaRevenge")


def step(envs: Envs, count: int) -> int:
    """Random actions; returns how many episodes ended. Every observation and reward must be a number."""
    obs = envs.reset(1)
    ended = 0
    for _ in range(count):
        if envs.discrete:
            actions = np.array([envs.single_action_space.sample() for _ in range(envs.num_envs)])
        else:
            actions = np.stack([envs.single_action_space.sample() for _ in range(envs.num_envs)]).astype(np.float32)
        taken = envs.step(actions)
        assert taken.obs.shape == obs.shape == (envs.num_envs, *envs.obs_shape)
        assert np.isfinite(taken.obs).all()
        assert np.isfinite(taken.rewards).all()
        ended += len(taken.episodes)
    envs.close()
    return ended


@pytest.mark.parametrize("name", MUJOCO)
@pytest.mark.parametrize("version", ["v4", "v5"])
def test_mujoco(name, version):
    if (name, version) == ("Pusher", "v4"):  # gymnasium's Pusher-v4 refuses the MuJoCo that all others need
        with pytest.raises(BadConfig, match=r"Pusher-v4: gymnasium can't make it.*v5"):
            Envs.make("Pusher-v4", 1)
        return
    step(Envs.make(f"{name}-{version}", 1), 3)


@pytest.mark.parametrize("task", DM_CONTROL)
def test_dm_control(task):
    assert step(Envs.make(f"dm_control/{task}-v0", 1), 3) == 0


def test_an_episode_of_dm_control_is_cut_off_and_not_terminated():
    envs = Envs.make("dm_control/cartpole-balance-v0", 1)
    envs.reset(1)
    assert envs.obs_shape == (5,)
    ends = [taken for taken in (envs.step(np.zeros((1, 1), np.float32)) for _ in range(1001)) if taken.episodes]
    assert [bool(taken.truncated[0]) for taken in ends] == [True]
    assert not ends[0].terminated[0]
    assert ends[0].episodes[0].length == 1000
    envs.close()


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("spelling", ["{}NoFrameskip-v4", "ALE/{}-v5"])
def test_atari(game, spelling):
    envs = Envs.make(spelling.format(game), 1, frames=4, flatten=False)
    assert envs.obs_shape == (4, 84, 84)
    step(envs, 3)


@pytest.mark.parametrize("game", PROCGEN_GAMES)
def test_procgen(game):
    envs = make_procgen(game, 2, seed=1)
    assert envs.reset(1).shape == (2, *envs.obs_shape)
    for _ in range(3):
        taken = envs.step(np.zeros(2, np.int32))
        assert taken.obs.shape == (2, *envs.obs_shape)
        assert np.isfinite(taken.rewards).all()
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "told"),
    [
        ("dm_control/cartpole-blance-v0", "dm_control/cartpole-balance-v0"),
        ("HalfChetah-v5", "HalfCheetah-v5"),
        ("MiniGrid-DorKey-5x5-v0", "MiniGrid-DoorKey-5x5-v0"),
        ("ALE/Pnog-v5", "ALE/Pong-v5"),
    ],
)
def test_an_unknown_id_is_answered_with_close_ones(env_id, told):
    with pytest.raises(BadConfig, match=told):
        make_env(env_id)


@pytest.mark.parametrize("frames", [None, 4])
def test_a_rom_that_is_not_there_is_named_with_close_ones(tmp_path, monkeypatch, frames):
    (tmp_path / "pong.bin").write_bytes(b"")
    (tmp_path / "king_kong.bin").write_bytes(b"")
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(BadConfig, match=r"ROM breakout\.bin is not in .*pong.*ALE_ROMS_DIR"):
        make_env("ALE/Breakout-v5", frames=frames)


@pytest.mark.parametrize(
    ("env_id", "module", "requirement"),
    [
        ("dm_control/cheetah-run-v0", "shimmy", "dm-control"),
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("Hopper-v5", "mujoco", "mujoco"),
    ],
)
def test_a_missing_library_is_told_by_its_requirement_set(env_id, module, requirement, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    if module == "mujoco":
        for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadConfig, match=rf"{module}.*requirement set '{requirement}'.*--set {requirement}"):
        make_env(env_id)

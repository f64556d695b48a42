"""What a level asks for reaches the network, where it differs from level to level; and model files know whether it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import minigrid
import numpy as np
import pytest
import torch

from cleanrl_worker.agents.loading import build_agent
from cleanrl_worker.agents.minigrid import MinigridAgent
from cleanrl_worker.evals import evaluate
from cleanrl_worker.modes.interactive import Session
from cleanrl_worker.training.envs import Envs, make_env
from cleanrl_worker.wrappers.mission import FACING, UNKNOWN, VOCABULARY, WORDS, is_shown, numbers

LEVEL = "BabyAI-GoToLocalS5N2-v0"
ONE_LEVEL_OF_EACH_KIND = [
    "BabyAI-BossLevel-v0",
    "BabyAI-MiniBossLevel-v0",
    "BabyAI-GoToSeqS5R2-v0",
    "BabyAI-PutNextLocalS5N3-v0",
    "BabyAI-PickupDist-v0",
    "BabyAI-UnblockPickup-v0",
    "BabyAI-OpenDoorColor-v0",
    "MiniGrid-Fetch-5x5-N2-v0",
    "MiniGrid-GoToDoor-5x5-v0",
    "MiniGrid-PutNear-6x6-N2-v0",
    "MiniGrid-LockedRoom-v0",
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "MiniGrid-LavaGapS5-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
]


def trained(shows: bool, seed: int = 1) -> MinigridAgent:
    """An agent with some weights everywhere."""
    torch.manual_seed(seed)
    agent = MinigridAgent(7, words=VOCABULARY if shows else None)
    for parameter in agent.parameters():
        parameter.data.normal_(std=0.3)
    return agent


def images(env_id: str, mission: bool, count: int = 4) -> Any:
    envs = Envs.make(env_id, count, mission=mission)
    obs = envs.reset(3).copy()
    envs.close()
    return torch.from_numpy(obs)


@pytest.mark.parametrize("env_id", ONE_LEVEL_OF_EACH_KIND)
def test_every_word_of_the_levels_is_known(env_id: str) -> None:
    gym.register_envs(minigrid)
    env = gym.make(env_id, disable_env_checker=True)
    for seed in range(5):
        mission = env.reset(seed=seed)[0]["mission"]
        told = numbers(mission, 48)
        assert UNKNOWN not in told, mission
        assert [WORDS[number - FACING - 4] for number in told] == mission.lower().replace(",", "").split()[:48]
    env.close()


def test_a_words_number_never_changes() -> None:
    """Model files depend on it: new words go to the end."""
    assert {word: numbers(word, 1)[0] for word in ("a", "ball", "red", "your")} == {
        "a": 6,
        "ball": 11,
        "red": 44,
        "your": 58,
    }
    assert numbers("Go to the XYZZY", 48)[-1] == UNKNOWN
    assert len(set(WORDS)) == len(WORDS)
    assert VOCABULARY <= 256, "a number is one byte of the image"


def test_the_mission_is_the_fourth_layer_of_the_image() -> None:
    env, plain = make_env(LEVEL, mission=True), make_env(LEVEL)
    shown, seen = env.reset(seed=5)[0], plain.reset(seed=5)[0]
    assert env.observation_space.contains(shown)
    assert np.array_equal(shown[:, :, :3], seen), "the rest is as it was"
    inner: Any = env.unwrapped
    told = (FACING + inner.agent_dir, *numbers(inner.mission, 48))
    assert tuple(shown[:, :, 3].ravel()[: len(told)]) == told
    assert not shown[:, :, 3].ravel()[len(told) :].any()
    turned = env.step(0)[0]
    assert turned[0, 0, 3] == FACING + (told[0] - FACING - 1) % 4


def test_a_mission_longer_than_the_image_is_cut() -> None:
    env: Any = make_env(LEVEL, mission=True, view_size=3)
    inner: Any = env.unwrapped
    env.reset(seed=1)
    inner.mission = "go to the red ball " * 20
    assert env.step(0)[0].shape == (3, 3, 4)


def test_it_is_shown_where_missions_differ_unless_told_otherwise() -> None:
    assert is_shown("auto", [LEVEL])
    assert is_shown("auto", ["MiniGrid-GoToDoor-5x5-v0"])
    assert is_shown("auto", ["MiniGrid-Empty-5x5-v0", "MiniGrid-Fetch-5x5-N2-v0"]), "of a curriculum one is enough"
    assert not is_shown("auto", ["MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-6x6-v0"])
    assert not is_shown("none", [LEVEL])
    assert is_shown("words", ["MiniGrid-DoorKey-5x5-v0"])


def test_a_run_that_goes_on_has_the_network_it_had() -> None:
    with_it, without = trained(True).state_dict(), trained(False).state_dict()
    assert not is_shown("auto", [LEVEL], without)
    assert is_shown("auto", ["MiniGrid-DoorKey-5x5-v0"], with_it)


def test_the_network_begins_as_one_that_is_told_nothing() -> None:
    torch.manual_seed(1)
    plain = MinigridAgent(7)
    torch.manual_seed(1)
    told = MinigridAgent(7, words=VOCABULARY)
    obs = images(LEVEL, mission=True)
    with torch.no_grad():
        for ours, theirs in zip(told(obs), plain(obs[..., :3].contiguous()), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


def test_another_mission_is_another_policy_and_padding_is_nothing() -> None:
    agent, obs = trained(True), images(LEVEL, mission=True)
    other = obs.clone()
    red, blue = numbers("red", 1)[0], numbers("blue", 1)[0]
    obs[:, 1, 0, 3], other[:, 1, 0, 3] = red, blue
    longer = obs.clone()
    longer[:, 6, 6, 3] = 0
    with torch.no_grad():
        assert not torch.allclose(agent(obs)[0], agent(other)[0], atol=1e-3)
        assert torch.equal(agent(obs)[0], agent(longer)[0])


def test_words_that_are_said_are_learned_and_padding_never_is() -> None:
    agent, obs = trained(True), images(LEVEL, mission=True)
    assert agent.mission is not None
    torch.autograd.backward(agent(obs)[0].square().sum())
    grad = agent.mission.weight.grad
    assert grad is not None
    said = {int(number) for number in obs[..., 3].unique()} - {0}
    assert {int(row) for row in grad.abs().sum(dim=1).nonzero()} == said


@pytest.mark.parametrize("shows", [True, False])
def test_a_model_file_remembers_whether_it_was_told(shows: bool, tmp_path: Path) -> None:
    agent, obs = trained(shows), images(LEVEL, mission=shows)
    torch.save(agent.state_dict(), tmp_path / "m")
    again = build_agent(agent.state_dict())
    assert again is not None
    with torch.no_grad():
        assert torch.equal(again(obs)[0], agent(obs)[0])
    result = evaluate("ppo", tmp_path / "m", LEVEL, episodes=2, max_episode_steps=5)
    assert result.episodes == 2
    session = Session("r", LEVEL, "ppo", tmp_path / "m", frames=False)
    (ready,) = session.answer(json.dumps({"cmd": "reset", "seed": 1}).encode())
    assert ready["observation_shape"] == [7, 7, 4 if shows else 3]
    assert session.answer(b'{"cmd":"step"}')[-1]["type"] == "step"
    session.close()

"""MiniGrid's and BabyAI's observations with their mission: what the agent is told to do, beside what it sees.

The mission becomes numbers and travels in a fourth layer of the image, one number a cell, row by row: first where the agent
looks, then a number per word, then zeros. So it goes wherever images go, into rollouts, checkpoints and evaluations, and the
network (`agents/minigrid.py`) takes it out again.

`WORDS` are all that MiniGrid's and BabyAI's own levels use. A word's place in the list is its number, and model files depend on
it: new words go to the end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt

MissionChoice = Literal["auto", "words", "none"]

_KNOWN = """a after and at avoid ball behind blue box door end fetch find from front get go goal green grey hallway in key
lava left matching must near next object of on open opening pick purple put reach red right room rooms square the then to
traverse unlock up use yellow you your"""
WORDS = tuple(_KNOWN.split())
UNKNOWN = 1
"""A word that is not in the list. (0 is no word.)"""
FACING = 2
"""The first of four numbers: the agent looks to the right, down, left, up."""
_FIRST = FACING + 4
_NUMBERS = {word: number for number, word in enumerate(WORDS, _FIRST)}
VOCABULARY = _FIRST + len(WORDS)
"""So many different numbers there are."""


@functools.lru_cache(maxsize=4096)
def numbers(mission: str, most: int) -> tuple[int, ...]:
    """The mission's words as numbers, the first `most` of them."""
    return tuple(_NUMBERS.get(word, UNKNOWN) for word in re.findall(r"\w+", mission.lower())[:most])


class MissionWrapper(gym.ObservationWrapper[npt.NDArray[np.uint8], Any, Any]):
    """(view, view, 4): the image's three layers, and the mission in the fourth."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        image: Any = env.observation_space["image"]  # type: ignore[index] # MiniGrid's is a Dict
        self._shape = (*image.shape[:2], 4)
        self._room = self._shape[0] * self._shape[1]
        self.observation_space = gym.spaces.Box(0, 255, self._shape, np.uint8)

    def observation(self, observation: Any) -> npt.NDArray[np.uint8]:
        shown = np.zeros(self._shape, np.uint8)
        shown[:, :, :3] = observation["image"]
        told = (FACING + int(observation["direction"]), *numbers(observation["mission"], self._room - 1))
        layer = np.zeros(self._room, np.uint8)
        layer[: len(told)] = told
        shown[:, :, 3] = layer.reshape(self._shape[:2])
        return shown


def is_shown(choice: MissionChoice, env_ids: Iterable[str], saved: Any = None) -> bool:
    """Whether the network is to be shown the mission.

    `auto` means as the weights that the run goes on from (`saved`), and else wherever one of the environments has missions
    that differ: all of BabyAI's levels, and those of MiniGrid that fill something into a sentence.
    """
    if choice != "auto":
        return choice == "words"
    if isinstance(saved, Mapping):
        return "mission.weight" in saved
    return any(_differs(env_id) for env_id in dict.fromkeys(env_ids))


def _differs(env_id: str) -> bool:
    if "BabyAI" in env_id:
        return True
    from cleanrl_worker.training.envs import make_env

    env = make_env(env_id)
    try:
        space = env.unwrapped.observation_space
        mission = space["mission"] if isinstance(space, gym.spaces.Dict) and "mission" in space.spaces else None
        return bool(getattr(mission, "ordered_placeholders", None))
    finally:
        env.close()

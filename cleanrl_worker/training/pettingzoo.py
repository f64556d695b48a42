"""Atari games for several players, from PettingZoo, each player a row as `envs.Envs` has rows for environments.

Rows p, p + 1, ... of one game follow each other. A player sees what `atari.py` shows to one alone (four frames a step, the
brighter of the last two, 84x84, four stacked; grey is the blue channel), and one more image per player, which is white for the
player it is shown to and black for the others: so one network can play all sides. Rewards are clipped to ±1; returns are of
the score itself. The end of one player's game is the end for all of its players.

PettingZoo's wrappers draw every frame in colour, once per player; here the emulator under them is asked for two frames in four.
Its state can't be restored exactly: a resumed run begins fresh games.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker import requirement_sets
from cleanrl_worker.training.atari import SIZE, SKIP
from cleanrl_worker.training.envs import Episode, Step
from cleanrl_worker.training.errors import BadConfig

FRAMES = 4


class PlayersEnvs:
    """`num_envs` rows, `num_envs / players` games; see the module."""

    def __init__(self, env_id: str, num_envs: int, *, max_steps: int | None = None) -> None:
        first = _game(env_id)
        import cv2

        cv2.setNumThreads(1)
        self._cv2 = cv2
        self.players = len(first.possible_agents)
        if num_envs < 1 or num_envs % self.players:
            raise BadConfig(
                f"--num-envs {num_envs} is not a multiple of the {self.players} players of {env_id}: every player is one "
                f"environment. Use {max(1, num_envs // self.players) * self.players} or another multiple."
            )
        self.num_envs = num_envs
        self._games = [first, *(_game(env_id) for _ in range(num_envs // self.players - 1))]
        self.single_action_space = first.action_space(first.possible_agents[0])
        self.obs_shape = (FRAMES + self.players, SIZE, SIZE)
        self.obs_dtype = np.uint8
        self.discrete = True
        self._most_frames = first.max_cycles if max_steps is None else max_steps * SKIP
        self.obs: np.ndarray = np.zeros((num_envs, *self.obs_shape), np.uint8)
        for row in range(num_envs):
            self.obs[row, FRAMES + row % self.players] = 255
        self.starts: np.ndarray = np.ones(num_envs, bool)
        self.restarted: list[int] = []
        self._returns = np.zeros(num_envs)
        self._frames = np.zeros(len(self._games), np.int64)
        self._lengths = np.zeros(len(self._games), np.int64)

    def reset(self, seed: int) -> np.ndarray:
        """Start all games."""
        for number, game in enumerate(self._games):
            game.reset(seed=seed + number)
            self._begin(number, self.obs)
        self.starts = np.ones(self.num_envs, bool)
        return self.obs

    def step(self, actions: np.ndarray) -> Step:
        """Act for every player of every game; restart the games that end."""
        n, players = self.num_envs, self.players
        next_obs = self.obs.copy()
        next_obs[:, : FRAMES - 1] = self.obs[:, 1:FRAMES]
        scores = np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        episodes: list[Episode] = []
        ended: list[int] = []
        for number, game in enumerate(self._games):
            rows = slice(number * players, (number + 1) * players)
            scores[rows], picture, over, cut = self._advance(number, game.action_mapping[actions[rows]])
            next_obs[rows, FRAMES - 1] = picture
            self._lengths[number] += 1
            self._returns[rows] += scores[rows]
            if over or cut:
                terminated[rows], truncated[rows] = over, cut and not over
                episodes += [
                    Episode(row, float(self._returns[row]), int(self._lengths[number]))
                    for row in range(rows.start, rows.stop)
                ]
                ended.append(number)
        obs = next_obs
        if ended:
            obs = next_obs.copy()
            for number in ended:
                self._games[number].reset()
                self._begin(number, obs)
        self.obs, self.starts = obs, terminated | truncated
        return Step(obs, np.clip(scores, -1, 1), terminated, truncated, next_obs, episodes, scores=scores)

    def render(self, slots: tuple[int, ...]) -> list[Any]:
        """Pictures of the games with these indices."""
        return [self._games[slot].ale.getScreenRGB() for slot in slots if slot < len(self._games)]

    def close(self) -> None:
        for game in self._games:
            game.close()

    def state_dict(self) -> dict[str, Any]:
        """Nothing outlives the games, and those can't be restored."""
        return {}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        """The games that `reset` began go on."""
        self.restarted = list(range(self.num_envs))

    def _begin(self, number: int, obs: np.ndarray) -> None:
        rows = slice(number * self.players, (number + 1) * self.players)
        screen = self._games[number].ale.getScreenRGB()[:, :, 2]
        obs[rows, :FRAMES] = self._small(screen)
        self._returns[rows] = 0.0
        self._frames[number] = self._lengths[number] = 0

    def _advance(self, number: int, buttons: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool, bool]:
        """Hold the buttons for four frames or until the end: scores, the picture after, and whether the game ended how."""
        game = self._games[number]
        scores = np.zeros(self.players, np.float32)
        screens: list[np.ndarray] = []
        over = cut = False
        for frame in range(SKIP):
            scores += game.ale.act(buttons)
            self._frames[number] += 1
            over = bool(game.ale.game_over()) or bool(np.any(np.asarray(game.ale.allLives()) < 0))
            cut = self._frames[number] >= self._most_frames
            if frame >= SKIP - 2 or over or cut:
                screens.append(game.ale.getScreenRGB()[:, :, 2])
            if over or cut:
                break
        return scores, self._small(np.maximum(screens[0], screens[-1])), over, cut

    def _small(self, screen: np.ndarray) -> np.ndarray:
        small: np.ndarray = self._cv2.resize(
            np.ascontiguousarray(screen), (SIZE, SIZE), interpolation=self._cv2.INTER_AREA
        )
        return small


def players_of(env_id: str) -> int:
    """The number of players of a game."""
    game = _game(env_id)
    game.close()
    return len(game.possible_agents)


def _game(env_id: str) -> Any:
    """The parallel environment right above the emulator, or BadConfig with the remedy."""
    try:
        import ale_py
        import cv2  # noqa: F401 - looked for here, so that its absence is a sentence
        import multi_agent_ale_py  # noqa: F401
        from pettingzoo import atari
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"{env_id} needs the package {error.name}: install the requirement set 'pettingzoo' "
            f"({requirement_sets.install_command(['pettingzoo'])})."
        ) from error
    games = sorted(name for _, name, package in pkgutil.iter_modules(atari.__path__) if "_v" in name and not package)
    if env_id not in games:
        close = difflib.get_close_matches(env_id, games, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"choose one of {', '.join(games)}."
        raise BadConfig(f"--env-id {env_id} is not one of PettingZoo's Atari games: {hint}")
    roms = Path(ale_py.__file__).parent / "roms"
    try:
        env: Any = importlib.import_module(f"pettingzoo.atari.{env_id}").raw_env(auto_rom_install_path=str(roms))
    except OSError as error:
        raise BadConfig(f"The ROM of {env_id} is not among those in {roms}: {error}") from error
    while not hasattr(env, "ale"):
        env = env.env
    return env

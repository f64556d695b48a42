"""Atari games of the ALE as agents are usually shown them (Mnih et al. 2015; Machado et al. 2018), in one wrapper.

An agent's step is four frames of the emulator, and what it sees is the brighter of the last two (sprites flicker), grey, 84x84,
the newest last in a stack. A game begins with up to 30 idle frames, and with the fire button where the game waits for it. The
loss of a life ends an episode for learning, and the next one goes on in the same game; rewards are reduced to their sign.

What is reported is the whole game: `info["raw_reward"]` is the game's own score for the step, and `info["game_over"]` tells
a game's end from a life's. `envs.Envs` counts returns and lengths (in the agent's steps) by them.

The emulator is asked directly, past gymnasium's step: that would convert every frame to colours nobody looks at, which takes
as long as the emulation itself.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np

from cleanrl_worker.training.errors import BadConfig

SIZE = 84
SKIP = 4
MOST_NOOPS = 30


def make_atari(env_id: str, *, frames: int, render: bool = False, max_steps: int | None = None) -> gym.Env[Any, Any]:
    """One game, by any of its ids (`BreakoutNoFrameskip-v4`, `ALE/Breakout-v5`, ...), with `frames` images stacked.

    The id decides over sticky actions, as in gymnasium: v5 has them. `max_steps` cuts a game after so many steps of the agent.
    """
    try:
        import ale_py
        import cv2  # noqa: F401 - looked for here, so that its absence is a sentence
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"{env_id} needs the package {error.name}: install the requirement set 'atari' "
            "(python -m cleanrl_worker.tools.install_extras --set atari)."
        ) from error
    gym.register_envs(ale_py)
    games = sorted(name for name, spec in gym.registry.items() if "ale_py" in str(spec.entry_point))
    if env_id not in games:
        close = difflib.get_close_matches(env_id, games, n=3, cutoff=0.7)
        hint = f"did you mean {' or '.join(close)}?" if close else "try BreakoutNoFrameskip-v4 or ALE/Breakout-v5."
        raise BadConfig(f"--env-id {env_id} is not an Atari game, which this algorithm needs: {hint}")
    options: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    require_rom(env_id)
    env = gym.make(env_id, disable_env_checker=True, frameskip=1, **options)
    return AtariGame(env, frames=frames, max_steps=max_steps)


def require_rom(env_id: str) -> None:
    """Refuse a registered game whose ROM is not where ale-py looks for it, and name those like it that are."""
    spec = gym.registry.get(env_id)
    if spec is None or "game" not in spec.kwargs:  # gymnasium has a sentence of its own for what it does not know
        return
    import ale_py.roms

    game, given = str(spec.kwargs["game"]), os.environ.get("ALE_ROMS_DIR")
    folder = Path(given or Path(ale_py.roms.__file__).parent)
    if (folder / f"{game}.bin").is_file():
        return
    there = sorted(path.stem for path in folder.glob("*.bin"))
    close = difflib.get_close_matches(game, there, n=3) or there[:3]
    found = f"close to it are {', '.join(close)}" if close else "there is none at all"
    remedy = "unset ALE_ROMS_DIR to use the ROMs inside ale-py" if given else "install ale-py again, which brings them"
    raise BadConfig(f"--env-id {env_id}: its ROM {game}.bin is not in {folder}; {found}. Put it there, or {remedy}.")


class AtariGame(gym.Wrapper[Any, Any, Any, Any]):
    """See the module. The observation is a uint8 array (frames, 84, 84)."""

    def __init__(self, env: gym.Env[Any, Any], *, frames: int = 4, max_steps: int | None = None) -> None:
        super().__init__(env)
        import cv2

        cv2.setNumThreads(1)  # threads cost more than an image of 84x84
        self._cv2 = cv2
        self._game = cast(Any, env.unwrapped)
        self._ale = self._game.ale
        self._actions = list(self._game._action_set)  # noqa: SLF001 - the ALE has no other name for it
        meanings = self._game.get_action_meanings()
        self._fires = len(meanings) >= 3 and meanings[1] == "FIRE"
        self._max_steps = max_steps
        height, width = self._ale.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)
        self._stack = np.zeros((frames, SIZE, SIZE), np.uint8)
        self.observation_space = gym.spaces.Box(0, 255, (frames, SIZE, SIZE), np.uint8)
        self._life_lost = False
        self._lives = 0
        self._steps = 0
        self._carried = 0.0
        """Scored while the episode began; it belongs to the game's return, and the next step reports it."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """After the loss of a life the game goes on; else, or with a seed, a new one begins."""
        if seed is None and self._life_lost:
            self._carried += self._advance(0)
        else:
            self._new_game(seed, options)
        while not self._begun():
            self._new_game(None, options)
        self._life_lost = False
        self._lives = self._ale.lives()
        self._stack[:] = self._look()
        return self._stack.copy(), {"lives": self._lives}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        score = self._advance(int(action)) + self._carried
        self._carried = 0.0
        self._steps += 1
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._look()
        lives = self._ale.lives()
        over = self._ale.game_over(with_truncation=False)
        cut = not over and (self._ale.game_truncated() or self._steps == self._max_steps)
        self._life_lost = not over and not cut and 0 < lives < self._lives
        self._lives = lives
        info = {"raw_reward": score, "game_over": over or cut, "lives": lives}
        return self._stack.copy(), float(np.sign(score)), over or self._life_lost, cut, info

    def state_dict(self) -> dict[str, Any]:
        """What the next reset depends on, besides emulator and generator."""
        return {
            "life_lost": self._life_lost,
            "lives": int(self._lives),
            "steps": self._steps,
            "carried": float(self._carried),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._life_lost, self._lives = state["life_lost"], state["lives"]
        self._steps, self._carried = state["steps"], state["carried"]

    def _new_game(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self.env.reset(seed=seed, options=options)
        self._steps, self._carried = 0, 0.0
        for _ in range(int(self._game.np_random.integers(1, MOST_NOOPS + 1))):
            self._carried += self._ale.act(self._actions[0])
            if self._ale.game_over():
                self._ale.reset_game()
                self._carried = 0.0
        self._ale.getScreenGrayscale(self._screens[1])
        self._screens[0] = self._screens[1]

    def _begun(self) -> bool:
        """Press fire, and then the next button, where the game waits for it. False when the game ended by that."""
        for action in (1, 2) if self._fires else ():
            self._carried += self._advance(action)
            if self._ale.game_over():
                return False
        return not self._ale.game_over()

    def _advance(self, action: int) -> float:
        """Hold a button for four frames, or until the game ends. The last two frames are kept."""
        button, score, ale = self._actions[action], 0.0, self._ale
        for frame in range(SKIP):
            score += ale.act(button)
            if frame >= SKIP - 2:
                ale.getScreenGrayscale(self._screens[frame - (SKIP - 2)])
            if ale.game_over():
                break
        return score

    def _look(self) -> np.ndarray:
        brighter = np.maximum(self._screens[0], self._screens[1])
        small: np.ndarray = self._cv2.resize(brighter, (SIZE, SIZE), interpolation=self._cv2.INTER_AREA)
        return small

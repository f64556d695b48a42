"""Recorded episodes of an expert: a folder of `.npz` files, or one file, each of one game. A run keeps its own in the folder
`trajectories`, and its folder or manifest stands for these.

| array | shape | |
|---|---|---|
| `frames` | (steps + episodes, 84, 84) uint8 | of each episode the newest image before each action and the one after the last |
| `actions` | (steps,) | |
| `rewards` | (steps,) | the game's own scores; their signs are what is learned from |
| `ends` | (steps,) bool | the last steps of episodes for learning: a life is lost, or the game is over; the last is one |
| `terminated` | () bool | whether the game came to its own end, not to a time limit |

`python -m cleanrl_worker.training.trajectories --model FILE --env-id ID --episodes 10 --output FOLDER` records them from a
saved model; of a run's own model, into the run's folder when no other is given.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.analytics import MANIFEST
from cleanrl_worker.training.checkpoints import run_of
from cleanrl_worker.training.errors import BadConfig, RunEnded
from cleanrl_worker.training.replay_frames import FrameReplay

OF_A_RUN = "trajectories"
"""The folder, within a run's, of games that its model played."""


@dataclass(frozen=True)
class Game:
    """One recorded game."""

    frames: npt.NDArray[np.uint8]
    actions: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    ends: npt.NDArray[np.bool_]
    terminated: bool

    @property
    def score(self) -> float:
        return float(self.rewards.sum())

    def __len__(self) -> int:
        return len(self.actions)


def read_games(path: Path) -> list[Game]:
    """All games at `path`. Raises BadConfig that names the file and what is wrong with it."""
    place = run_of(path)
    if (place / MANIFEST).is_file():
        place /= OF_A_RUN
    files = [place] if place.suffix == ".npz" else sorted(place.glob("*.npz"))
    if not files:
        raise BadConfig(
            f"--expert-trajectories {path}: {place} holds no .npz file: record some (python -m "
            "cleanrl_worker.training.trajectories --help), or name another folder."
        )
    return [_read(file) for file in files]


def _read(file: Path) -> Game:
    try:
        with np.load(file, allow_pickle=False) as saved:
            frames, actions = saved["frames"], saved["actions"].astype(np.int64)
            rewards, ends = saved["rewards"].astype(np.float64), saved["ends"].astype(bool)
            terminated = bool(saved["terminated"])
    except (OSError, KeyError, ValueError, EOFError) as error:
        raise BadConfig(f"--expert-trajectories {file} is not a recorded game: {error}") from error
    steps = len(actions)
    if not steps or rewards.shape != (steps,) or ends.shape != (steps,) or not np.isfinite(rewards).all():
        raise BadConfig(f"--expert-trajectories {file}: rewards and ends must have one finite entry for each action.")
    wanted = steps + int(ends.sum())
    if not ends[-1] or frames.dtype != np.uint8 or frames.ndim != 3 or len(frames) != wanted:
        raise BadConfig(
            f"--expert-trajectories {file}: the last step must be an end, and frames must be {wanted} uint8 images: one for "
            "each action and one after each end."
        )
    return Game(frames, actions, rewards, ends, terminated)


def fill(replay: FrameReplay, games: list[Game], num_actions: int, obs_shape: tuple[int, ...]) -> None:
    """Put the games' transitions into a replay memory, stacked as the environment stacks them."""
    for game in games:
        if game.frames.shape[1:] != obs_shape[1:]:
            raise BadConfig(f"The recorded images are {game.frames.shape[1:]}, and the game's {obs_shape[1:]}.")
        if game.actions.min() < 0 or game.actions.max() >= num_actions:
            raise BadConfig(
                f"The recorded games have actions up to {game.actions.max()}, and this game has {num_actions}: they are of "
                "another game."
            )
        at = 0
        obs = np.repeat(game.frames[:1], obs_shape[0], axis=0)
        for t, (action, reward, end) in enumerate(zip(game.actions, game.rewards, game.ends, strict=True)):
            next_obs = np.concatenate((obs[1:], game.frames[at + 1 : at + 2]))
            terminated = bool(end) and (game.terminated or t < len(game) - 1)
            replay.add(obs, int(action), float(np.sign(reward)), next_obs, terminated, bool(end) and not terminated)
            at += 2 if end else 1
            obs = np.repeat(game.frames[at : at + 1], obs_shape[0], axis=0) if end else next_obs


def record(model: Path, env_id: str, folder: Path, *, episodes: int, seed: int = 1, greedy: bool = False) -> list[Path]:
    """Play games with a saved model and write each to a file."""
    from cleanrl_worker.evals.policies import load_policy
    from cleanrl_worker.training.envs import Envs

    envs = Envs.make(env_id, 1, frames=4)
    written: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True)
    try:
        policy, rng = load_policy(model, envs), np.random.default_rng(seed)
        game = envs.inner[0]
        obs, _ = game.reset(seed=seed)
        start = True
        columns: dict[str, list[Any]] = {"frames": [obs[-1]], "actions": [], "rewards": [], "ends": []}
        while len(written) < episodes:
            action = int(policy(obs[None], np.array([start]), rng, greedy)[0])
            obs, _, terminated, truncated, info = game.step(action)
            start = terminated or truncated
            for name, value in (
                ("frames", obs[-1]),
                ("actions", action),
                ("rewards", info["raw_reward"]),
                ("ends", start),
            ):
                columns[name].append(value)
            if info["game_over"]:
                path = folder / f"{env_id.replace('/', '-')}-{seed}-{len(written):04d}.npz"
                arrays: dict[str, Any] = {name: np.array(column) for name, column in columns.items()}
                np.savez_compressed(path, **arrays, terminated=np.array(terminated))
                written.append(path)
                columns = {name: [] for name in columns}
            if start:
                obs, _ = game.reset()
                columns["frames"].append(obs[-1])
    finally:
        envs.close()
    return written


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record games of a saved model.")
    parser.add_argument(
        "--model", type=Path, required=True, help="a model file, a checkpoint, a run's folder or its manifest"
    )
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help=f"the folder to write to; a run's own {OF_A_RUN}/ by default")
    options = parser.parse_args(argv)
    run = run_of(options.model)
    if options.output is None and not (run / MANIFEST).is_file():
        parser.error(f"{options.model} is not a run, whose folder would take the games: give --output")
    output = options.output or run / OF_A_RUN
    try:
        written = record(options.model, options.env_id, output, episodes=options.episodes, seed=options.seed)
    except RunEnded as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{len(written)} games in {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Play episodes with a saved policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker import requirement_sets
from cleanrl_worker.evals import tabular
from cleanrl_worker.evals.elsewhere import make_elsewhere
from cleanrl_worker.evals.policies import fit, read_saved
from cleanrl_worker.evals.statistics import EvalResult
from cleanrl_worker.training.envs import Envs, make_env
from cleanrl_worker.training.errors import BadConfig

MOST_ENVS = 32
"""Environments side by side: more are no faster, one core steps them all."""

__all__ = ["EvalResult", "Evaluation", "evaluate", "playing_envs"]


class Evaluation:
    """A saved policy and the environments to play it in. `play` may be called again and again; `close` at the end.

    `source` is a model file, a checkpoint, or a folder of either (see `policies.read_saved`). `video` is a folder for
    recordings of the first environment, `publisher` a FastLane publisher to show it with, `options` are those of
    `envs.make_env`. Raises BadConfig, with the remedy.
    """

    def __init__(
        self,
        source: Path,
        env_id: str,
        *,
        most_episodes: int,
        algo: str | None = None,
        sha256: str | None = None,
        greedy: bool = False,
        gamma: float | None = None,
        video: Path | None = None,
        max_episode_seconds: float | None = None,
        publisher: Any = None,
        **options: Any,
    ) -> None:
        if most_episodes < 1:
            raise BadConfig(f"{env_id} can't be played for {most_episodes} episodes: ask for at least 1.")
        self.greedy, self.gamma, self._publisher = greedy, gamma, publisher
        self._slots = publisher.shown_slots if publisher is not None else ()
        self._begun = self._share = 0
        plain = video is None and not self._slots and max_episode_seconds is None
        saved = read_saved(source, algo=algo, env_id=env_id, sha256=sha256)
        self.envs: Any = _table(env_id, most_episodes, options) if plain else None
        if self.envs is None:
            self.envs = playing_envs(
                env_id,
                min(most_episodes, MOST_ENVS),
                render=bool(self._slots),
                video=video,
                video_trigger=self._is_recorded,
                max_episode_seconds=max_episode_seconds,
                mission=saved.shows_mission,
                **options,
            )
        try:
            self.policy = fit(saved, self.envs, algo=algo)
            if self.policy.normaliser is not None:
                self.envs.use_normaliser(self.policy.normaliser)
        except BaseException:
            self.envs.close()
            raise

    def play(
        self,
        episodes: int,
        seed: int,
        *,
        on_episode: Callable[[int, float, int], None] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> EvalResult:
        """Play `episodes` episodes. The same seed gives the same result.

        Each environment has its own share of the episodes: taking the first ones to finish would favour short ones.
        `on_episode` is told of each as it ends (number, return, length), `on_step` of every step of all environments.
        """
        if episodes < 1:
            raise BadConfig(f"A policy can't be evaluated over {episodes} episodes: ask for at least 1.")
        envs, policy, publisher = self.envs, self.policy, self._publisher
        count = envs.num_envs
        shares = [len(range(i, episodes, count)) for i in range(count)]
        self._begun, self._share = 0, shares[0]
        played: list[list[tuple[float, int, float]]] = [[] for _ in shares]
        rng = np.random.default_rng(seed)
        worth, factor = np.zeros(count), np.ones(count)
        done = 0
        envs.reset(seed)
        while done < episodes:
            step = envs.step(policy(envs.obs, envs.starts, rng, self.greedy))
            if self.gamma is not None:
                worth += factor * (step.rewards if step.scores is None else step.scores)
                factor *= self.gamma
            for env, ret, length, *_ in step.episodes:
                if len(played[env]) < shares[env]:
                    played[env].append((ret, length, float(worth[env])))
                    if on_episode is not None:
                        on_episode(done, ret, length)
                    if publisher is not None:
                        publisher.episode(ret, length)
                    done += 1
                worth[env], factor[env] = 0.0, 1.0
            if on_step is not None:
                on_step(count)
            if publisher is not None:
                publisher.step(count, step.rewards)
                if publisher.frame_due():
                    publisher.frame(lambda: envs.render(self._slots))
        ordered = [played[i % count][i // count] for i in range(episodes)]
        returns, lengths, discounted = (list(column) for column in zip(*ordered, strict=True))
        return EvalResult(returns, lengths, discounted if self.gamma is not None else [])

    def close(self) -> None:
        self.envs.close()

    def _is_recorded(self, _episode: int) -> bool:
        """The first environment begins an episode: one of its share, or one that is only begun."""
        self._begun += 1
        return self._begun <= self._share


def playing_envs(
    env_id: str,
    num_envs: int,
    *,
    render: bool = False,
    video: Path | None = None,
    video_trigger: Callable[[int], bool] | None = None,
    max_episode_seconds: float | None = None,
    **options: Any,
) -> Any:
    """Environments of whichever library the id belongs to, as a policy that was trained on them expects them."""
    limits = {"max_episode_seconds": max_episode_seconds, **options}
    elsewhere = make_elsewhere(env_id, num_envs, render=render, video=video, **limits)
    if elsewhere is not None:
        return elsewhere
    return Envs.make(
        env_id,
        num_envs,
        clip_actions=True,
        tape=False,
        render=render,
        video=video,
        video_trigger=video_trigger,
        **{**atari_frames(env_id), **limits},
    )


def evaluate(
    algo: str,
    path: Path,
    env_id: str,
    *,
    episodes: int = 10,
    seed: int = 1,
    on_episode: Callable[[int, float, int], None] | None = None,
    on_step: Callable[[int], None] | None = None,
    **options: Any,
) -> EvalResult:
    """Play `episodes` episodes of `env_id` with the model at `path`; `options` are those of `Evaluation`."""
    if episodes < 1:
        raise BadConfig(f"{algo} can't be evaluated over {episodes} episodes: ask for at least 1.")
    evaluation = Evaluation(path, env_id, most_episodes=episodes, **options)
    try:
        return evaluation.play(episodes, seed, on_episode=on_episode, on_step=on_step)
    finally:
        evaluation.close()


def atari_frames(env_id: str) -> dict[str, int]:
    """The option for an Atari game as its networks are shown it: four images stacked. Who needs fewer takes the newest."""
    is_game = "atari" in requirement_sets.for_environment(env_id) and "-ram" not in env_id
    return {"frames": 4} if is_game else {}


def _table(env_id: str, episodes: int, options: dict[str, Any]) -> tabular.TabularEnvs | None:
    """The environment as a table, when it is one and every episode is to be a new one."""
    entry = gym.registry.get(env_id)
    if entry is None or not str(entry.entry_point).startswith("gymnasium.envs.toy_text"):
        return None
    if not options.get("procedural_generation", True):
        return None
    env = make_env(env_id, max_episode_steps=options.get("max_episode_steps"))
    try:
        return tabular.TabularEnvs(env, min(episodes, tabular.MOST_ENVS)) if tabular.fits(env) else None
    finally:
        env.close()

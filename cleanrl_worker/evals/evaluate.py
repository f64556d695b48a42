"""Play episodes with a saved model."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.evals.policies import load_policy
from cleanrl_worker.training.envs import Envs
from cleanrl_worker.training.errors import BadConfig

MOST_ENVS = 8


@dataclass
class EvalResult:
    """Returns and lengths, episode by episode, in the order of their seeds."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def avg_return(self) -> float:
        return statistics.fmean(self.returns)

    @property
    def avg_length(self) -> float:
        return statistics.fmean(self.lengths)

    @property
    def min_return(self) -> float:
        return min(self.returns)

    @property
    def max_return(self) -> float:
        return max(self.returns)

    @property
    def median_return(self) -> float:
        return statistics.median(self.returns)

    @property
    def std_return(self) -> float:
        """Of the population: 0 for one episode."""
        return statistics.pstdev(self.returns)


def evaluate(
    algo: str,
    path: Path,
    env_id: str,
    *,
    episodes: int = 10,
    seed: int = 1,
    greedy: bool = False,
    video: Path | None = None,
    max_episode_seconds: float | None = None,
    publisher: Any = None,
    on_episode: Callable[[int, float, int], None] | None = None,
    **options: Any,
) -> EvalResult:
    """Play `episodes` episodes of `env_id` with the model at `path`. The same seed gives the same result.

    Environments run side by side, each with its own share of the episodes: taking the first ones to finish would favour short
    ones. `video` is a folder for recordings of the first environment, `options` are those of `envs.make_env`, `on_episode` is
    told of each episode as it ends (number, return, length), `publisher` is a FastLane publisher to show it with.
    """
    if episodes < 1:
        raise BadConfig(f"{algo} can't be evaluated over {episodes} episodes: ask for at least 1.")
    num_envs = min(episodes, MOST_ENVS)
    shares = [len(range(i, episodes, num_envs)) for i in range(num_envs)]
    slots = publisher.shown_slots if publisher is not None else ()
    envs = Envs.make(
        env_id,
        num_envs,
        clip_actions=True,
        render=bool(slots),
        max_episode_seconds=max_episode_seconds,
        video=video,
        video_trigger=lambda episode: episode < shares[0],
        **options,
    )
    try:
        policy = load_policy(path, envs)
        if policy.normaliser is not None:
            envs.use_normaliser(policy.normaliser)
        rng = np.random.default_rng(seed)
        played: list[list[tuple[float, int]]] = [[] for _ in shares]
        done = 0
        envs.reset(seed)
        while done < episodes:
            step = envs.step(policy(envs.obs, envs.starts, rng, greedy))
            for episode in step.episodes:
                if len(played[episode.env]) < shares[episode.env]:
                    played[episode.env].append((episode.ret, episode.length))
                    if on_episode is not None:
                        on_episode(done, episode.ret, episode.length)
                    done += 1
                    if publisher is not None:
                        publisher.episode(episode.ret, episode.length)
            if publisher is not None:
                publisher.step(num_envs, step.rewards)
                if publisher.frame_due():
                    publisher.frame(lambda: envs.render(slots))
    finally:
        envs.close()
    ordered = [played[i % num_envs][i // num_envs] for i in range(episodes)]
    return EvalResult([ret for ret, _ in ordered], [length for _, length in ordered])

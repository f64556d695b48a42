"""Environments for evaluation that gymnasium does not make: envpool's Atari games and Procgen, PettingZoo's games.

Which they are is told from the id, as each library spells it: `Breakout-v5`, `starpilot`, `pong_v3`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cleanrl_worker import requirement_sets
from cleanrl_worker.training.errors import BadConfig

_ENVPOOL_ATARI = re.compile(r"[A-Za-z]+-v5")


def library_of(env_id: str) -> str | None:
    """`envpool`, `procgen` or `pettingzoo`; None for what gymnasium makes."""
    sets = requirement_sets.for_environment(env_id)
    if "procgen" in sets:
        return "procgen"
    if "atari" in sets and _ENVPOOL_ATARI.fullmatch(env_id):
        return "envpool"
    return "pettingzoo" if "pettingzoo" in sets else None


def make_elsewhere(
    env_id: str,
    num_envs: int,
    *,
    render: bool = False,
    video: Path | None = None,
    max_episode_seconds: float | None = None,
    max_episode_steps: int | None = None,
    **_options: Any,
) -> Any:
    """The environments, None when they are gymnasium's. Of `make_env`'s options these take the limit of steps only."""
    library = library_of(env_id)
    if library is None:
        return None
    if video is not None:
        raise BadConfig(
            f"Episodes of {env_id} can't be recorded, {library} gives no videos: leave the capture of video out."
        )
    if max_episode_seconds is not None:
        raise BadConfig(f"Episodes of {env_id} can't be limited in seconds: limit their steps instead.")
    if library == "pettingzoo":
        from cleanrl_worker.training.pettingzoo import PlayersEnvs, players_of

        players = players_of(env_id)
        return PlayersEnvs(env_id, -(-num_envs // players) * players, max_steps=max_episode_steps)
    from cleanrl_worker.training import envpool

    make: Any = envpool.make_procgen if library == "procgen" else envpool.make_atari_pool
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    return make(env_id, num_envs, seed=1, render=render, **limit)

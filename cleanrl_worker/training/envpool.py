"""Environments that envpool steps in C++ threads, seen as `envs.Envs` shows its own: Atari games and Procgen.

envpool restarts an environment in the step *after* an episode's end, and ignores the action of that step. Here the ended ones
are stepped once more at once, and alone: the first observations of their next episodes come back before anybody chose an
action, what the last action led to is kept in `next_obs`, and no row is ever a reset. Algorithms need no mask.

An Atari game goes on after the loss of a life, so returns and lengths are of whole games, by the score before it was clipped.

The state of an environment can't be taken out of envpool, so a resumed run begins fresh episodes, with other seeds than the
run had at its beginning.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import Any

import numpy as np

from cleanrl_worker import requirement_sets
from cleanrl_worker.training.envs import MOST_SEEDS, Episode, Step
from cleanrl_worker.training.errors import BadConfig
from cleanrl_worker.training.normalise import RewardNormaliser


class PoolEnvs:
    """`num_envs` environments of one envpool task; see the module. Observations are uint8 images, channels first."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        seed: int,
        render: bool = False,
        reward_normaliser_gamma: float | None = None,
        **config: Any,
    ) -> None:
        self.task, self.num_envs = task, num_envs
        self._config = {**config, **({"render_mode": "rgb_array"} if render else {})}
        self._seed = seed
        self.pool = open_pool(task, num_envs, seed, self._config)
        self.single_action_space: Any = self.pool.action_space
        self.obs_shape: tuple[int, ...] = self.pool.observation_space.shape
        self.obs_dtype = np.uint8
        self.discrete = True
        self.reward_normaliser = (
            RewardNormaliser(num_envs, reward_normaliser_gamma) if reward_normaliser_gamma is not None else None
        )
        self.obs: np.ndarray = np.zeros((num_envs, *self.obs_shape), np.uint8)
        """Where the next actions are chosen."""
        self.starts: np.ndarray = np.ones(num_envs, bool)
        """Rows of `obs` that begin an episode."""
        self.restarted: list[int] = []
        """Environments that began a fresh episode because `load_state_dict` could not restore them."""
        self._steps = 0
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)

    def reset(self, seed: int) -> np.ndarray:
        """Start all of them. envpool takes its seeds when it is made, so another seed makes another pool."""
        if seed != self._seed or self._steps:
            self.pool.close()
            self._seed = seed
            self.pool = open_pool(self.task, self.num_envs, seed, self._config)
        self.obs, _ = self.pool.reset()
        self.starts = np.ones(self.num_envs, bool)
        self._returns[:], self._lengths[:] = 0.0, 0
        return self.obs

    def step(self, actions: np.ndarray) -> Step:
        """Act in every environment; restart those whose episode ends."""
        next_obs, rewards, terminated, truncated, info = self.pool.step(np.asarray(actions, np.int32))
        self._steps += self.num_envs
        ended = terminated | truncated
        truncated = truncated & ~terminated
        scores = info.get("reward", rewards)
        self._returns += scores
        self._lengths += 1
        episodes: list[Episode] = []
        obs = next_obs
        if ended.any():
            over = ended & (info["terminated"].astype(bool) | truncated) if "terminated" in info else ended
            for i in np.flatnonzero(over).tolist():
                episodes.append(Episode(i, float(self._returns[i]), int(self._lengths[i])))
                self._returns[i], self._lengths[i] = 0.0, 0
            obs = next_obs.copy()
            self._restart(ended, obs)
        if self.reward_normaliser is not None:
            rewards = self.reward_normaliser.update(rewards, terminated)
        self.obs, self.starts = obs, ended
        return Step(obs, rewards, terminated, truncated, next_obs, episodes, scores=scores)

    def _restart(self, ended: np.ndarray, obs: np.ndarray) -> None:
        """Step the ended ones past their end, and put what their next episodes begin with into `obs`."""
        rows = np.flatnonzero(ended).astype(np.int32)
        while len(rows):
            first, _, terminated, truncated, info = self.pool.step(np.zeros(len(rows), np.int32), rows)
            which = info["env_id"]
            obs[which] = first
            rows = which[terminated | truncated]  # it ended before it began: once more

    def render(self, slots: tuple[int, ...]) -> list[Any]:
        """Pictures of the environments with these indices."""
        return list(self.pool.render(np.array([slot for slot in slots if slot < self.num_envs], np.int32)))

    def close(self) -> None:
        self.pool.close()

    def state_dict(self) -> dict[str, Any]:
        """What outlives the episodes: they themselves can't be taken out of envpool."""
        return {
            "steps": self._steps,
            "reward_normaliser": self.reward_normaliser and self.reward_normaliser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin fresh episodes, with seeds that the run has not seen."""
        if self.reward_normaliser is not None and state["reward_normaliser"] is not None:
            self.reward_normaliser.load_state_dict(state["reward_normaliser"])
        steps = int(state["steps"])
        self.reset((self._seed + steps) % MOST_SEEDS)
        self._steps = steps
        self.restarted = list(range(self.num_envs))


def open_pool(task: str, num_envs: int, seed: int, config: dict[str, Any]) -> Any:
    """An envpool in gymnasium's manner."""
    envpool = import_envpool(task)
    return envpool.make(task, env_type="gymnasium", num_envs=num_envs, seed=seed % MOST_SEEDS, **config)


def import_envpool(task: str, requirement: str = "envpool") -> Any:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # envpool imports jax, which takes a GPU's memory
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"{task} needs the package {error.name}: install the requirement set {requirement!r} "
            f"({requirement_sets.install_command([requirement])})."
        ) from error
    return envpool


# ---------------------------------------------------------------- which task an id means


def atari_task(env_id: str, num_envs: int) -> str:
    """The task of an Atari game, or BadConfig that says how envpool spells it."""
    _check_count(num_envs)
    tasks = _tasks(import_envpool(env_id), "envpool.atari")
    if env_id in tasks:
        return env_id
    plain = re.sub(r"(-ram|NoFrameskip|Deterministic)*-v\d+$", "", env_id.rpartition("/")[2])
    close = difflib.get_close_matches(f"{plain}-v5", tasks, n=3, cutoff=0.7)
    hint = f"did you mean {' or '.join(close)}?" if close else "its games are called Breakout-v5, Pong-v5 and so on."
    raise BadConfig(f"--env-id {env_id} is not one of envpool's Atari games: {hint}")


def make_atari_pool(
    env_id: str, num_envs: int, *, seed: int, frames: int = 4, render: bool = False, **config: Any
) -> PoolEnvs:
    """Atari games with `frames` images stacked; a lost life ends an episode, rewards are reduced to their sign."""
    task = atari_task(env_id, num_envs)
    return PoolEnvs(
        task, num_envs, seed=seed, render=render, stack_num=frames, episodic_life=True, reward_clip=True, **config
    )


PROCGEN_GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot"),
    *("heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)


def procgen_task(env_id: str) -> str:
    """envpool's name for a Procgen game: `starpilot`, `procgen-starpilot-v0` and `StarpilotEasy-v0` are all the same one."""
    plain = env_id.removeprefix("procgen:").removeprefix("procgen-")
    name = re.fullmatch(r"([a-z]+?)(easy|hard)?(-v\d+)?", plain.lower())
    if name is None or name[1] not in PROCGEN_GAMES:
        close = difflib.get_close_matches(plain.lower().partition("-")[0], PROCGEN_GAMES, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"choose one of {', '.join(PROCGEN_GAMES)}."
        raise BadConfig(f"--env-id {env_id} is not a Procgen game: {hint}")
    return f"{name[1].capitalize()}{(name[2] or 'easy').capitalize()}-v0"


def make_procgen(
    env_id: str,
    num_envs: int,
    *,
    seed: int,
    render: bool = False,
    num_levels: int = 0,
    reward_normaliser_gamma: float | None = None,
    **config: Any,
) -> PoolEnvs:
    """A Procgen game of easy levels (unless the id says hard), `num_levels` of them, or with 0 as many as there are."""
    _check_count(num_envs)
    task = procgen_task(env_id)
    if num_levels < 0:
        raise BadConfig(f"--num-levels must be 0 (all levels) or more, not {num_levels}.")
    import_envpool(task, "procgen")
    absent = requirement_sets.missing_libraries(["procgen"])
    if absent:
        packages = " ".join(package for _, package in absent)
        raise BadConfig(f"Procgen needs system libraries that are not installed: apt-get install {packages}.")
    return PoolEnvs(
        task,
        num_envs,
        seed=seed,
        render=render,
        reward_normaliser_gamma=reward_normaliser_gamma,
        num_levels=num_levels,
        **config,
    )


def _tasks(envpool: Any, package: str) -> list[str]:
    specs = envpool.registration.registry.specs
    return sorted(task for task, (origin, *_) in specs.items() if origin == package)


def _check_count(num_envs: int) -> None:
    if num_envs < 1:
        raise BadConfig(f"--num-envs must be at least 1, not {num_envs}.")

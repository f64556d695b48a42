"""Environments as the algorithms see them: n of them, stepped together, restarted at once, statistics included.

`Envs.step` restarts an environment in the step that ends its episode (gymnasium's SAME_STEP), so no transition is ever a
reset. What the action led to is `next_obs`, which differs from `obs`, where the next action starts, only in rows whose episode
ended. An algorithm that learns from (obs, action, reward, next_obs, terminated) is right at time limits without further care:
`truncated` ends the episode but not the value of what comes next.

The environments are gymnasium's own, made by `gymnasium.make`; what its vector class does per step is done here with less
ceremony: returns and lengths are counted over the batch, and observations are written into one array.
"""

from __future__ import annotations

import difflib
import importlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from cleanrl_worker import requirement_sets
from cleanrl_worker.training import envstate
from cleanrl_worker.training.atari import AtariGame, make_atari, require_rom
from cleanrl_worker.training.errors import BadConfig, Diverged
from cleanrl_worker.training.normalise import ObservationNormaliser, RewardNormaliser

if TYPE_CHECKING:
    from cleanrl_worker.schedule import Stage
    from cleanrl_worker.wrappers.curriculum import Stages

MINIGRID_EPISODE_STEPS = 256
MOST_SEEDS = 2**31 - 1
_OLD_RESET = re.compile(r"reset\(\) got an unexpected keyword argument '(seed|options)'")


class Episode(NamedTuple):
    """A finished episode, with its return as the environment gave it: not scaled, not normalised."""

    env: int
    ret: float
    length: int
    stage: int | None = None
    """The stage of a curriculum that it was played in."""


@dataclass(slots=True)
class Step:
    """What one step of all environments gave. Arrays are new each step: keep them as you like."""

    obs: np.ndarray
    """Where the next actions are chosen: after an episode's end, the first observation of the next."""
    rewards: np.ndarray
    """float32, scaled or normalised if that was asked for."""
    terminated: np.ndarray
    """The episode reached its own end: the value of what follows is zero."""
    truncated: np.ndarray
    """The episode was cut off, by a time limit say: the value of `next_obs` still counts."""
    next_obs: np.ndarray
    """What the actions led to. The same object as `obs` when no episode ended."""
    episodes: list[Episode] = field(default_factory=list)
    scores: np.ndarray | None = None
    """The rewards as the environment gave them, where `rewards` are clipped. None: they are not."""

    @property
    def dones(self) -> np.ndarray:
        ended: np.ndarray = self.terminated | self.truncated
        return ended


def is_minigrid(env_id: str) -> bool:
    return "MiniGrid" in env_id or "BabyAI" in env_id


def make_env(
    env_id: str,
    *,
    render: bool = False,
    max_episode_steps: int | None = None,
    procedural_generation: bool = True,
    fixed_seed: int | None = None,
    view_size: int | None = None,
    max_episode_seconds: float | None = None,
    frames: int | None = None,
    mission: bool = False,
) -> gym.Env[Any, Any]:
    """One environment, with the wrappers its family needs. Raises BadConfig with the remedy when it can't be made.

    `frames` asks for an Atari game, as `training/atari.py` shows it, with so many images stacked; `mission` for MiniGrid's and
    BabyAI's missions with their images, as `wrappers/mission.py` shows them.
    """
    limit = max_episode_steps
    if limit is None and is_minigrid(env_id):
        limit = MINIGRID_EPISODE_STEPS
    if limit is not None and limit < 1:
        raise BadConfig(f"--max-episode-steps must be at least 1, not {limit}.")
    if frames is not None:
        return _timed(make_atari(env_id, frames=frames, render=render, max_steps=limit), max_episode_seconds)
    _register(env_id)
    options: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    if limit is not None:
        options["max_episode_steps"] = limit
    try:
        env = _made(env_id, options)
    except gym.error.DependencyNotInstalled as error:
        raise BadConfig(_lacking(env_id, f"a package that is not installed ({error})")) from error
    except ModuleNotFoundError as error:
        module, colon, _ = env_id.partition(":")
        if colon and error.name in (None, module):  # gymnasium's own error for a module that registers names nothing
            raise BadConfig(
                f"--env-id {env_id}: there is no module {module}: install it, or name its folder in PYTHONPATH."
            ) from error
        raise BadConfig(_lacking(env_id, f"the package {error.name}")) from error
    except (gym.error.Error, ImportError) as error:
        raise BadConfig(f"--env-id {env_id}: gymnasium can't make it: {error}{_close_ids(env_id)}") from error
    if is_minigrid(env_id):
        from minigrid.wrappers import ImgObsWrapper, ViewSizeWrapper

        from cleanrl_worker.wrappers.mission import MissionWrapper

        if view_size is not None:
            env = ViewSizeWrapper(env, view_size)
        env = MissionWrapper(env) if mission else ImgObsWrapper(env)
    if is_minigrid(env_id) or not procedural_generation:
        from cleanrl_worker.wrappers.procedural import ProceduralGenerationWrapper

        env = ProceduralGenerationWrapper(env, procedural_generation, fixed_seed)
    return _timed(env, max_episode_seconds)


def _made(env_id: str, options: dict[str, Any]) -> gym.Env[Any, Any]:
    """Not every environment takes a render mode: that it can't be seen is no reason not to train on it."""
    try:
        made: gym.Env[Any, Any] = gym.make(env_id, disable_env_checker=True, **options)
    except Exception:
        if "render_mode" not in options:
            raise
        unseen = {name: value for name, value in options.items() if name != "render_mode"}
        made = gym.make(env_id, disable_env_checker=True, **unseen)
    return made


def _timed(env: gym.Env[Any, Any], seconds: float | None) -> gym.Env[Any, Any]:
    if seconds is None:
        return env
    from cleanrl_worker.wrappers.seconds import EpisodeTimeLimitSeconds

    return EpisodeTimeLimitSeconds(env, seconds)


def _register(env_id: str) -> None:
    """Import the package that registers this id, where gymnasium does not do so by itself."""
    registrars = {"atari": "ale_py", "dm-control": "shimmy", "minigrid": "minigrid"}
    for requirement in requirement_sets.for_environment(env_id):
        if requirement in registrars:
            try:
                gym.register_envs(importlib.import_module(registrars[requirement]))
            except ModuleNotFoundError as error:
                raise BadConfig(_lacking(env_id, f"the package {error.name}")) from error
        if requirement == "atari":
            require_rom(env_id)


def _close_ids(env_id: str) -> str:
    """Registered ids like this one, or how one is given that nobody here registers, as the end of a sentence; nothing when
    gymnasium's own sentence is all there is.
    """
    others = [name for name in gym.registry if name != env_id]
    close = difflib.get_close_matches(env_id, others, n=3, cutoff=0.8)
    if close:
        return f" Close to it: {', '.join(close)}."
    known = env_id in gym.registry or ":" in env_id
    return "" if known else f" One of your own is given with the module that registers it: MODULE:{env_id}."


def _lacking(env_id: str, what: str) -> str:
    """What is not installed for an environment, and the requirement set that brings it, where one is known to."""
    sets = requirement_sets.for_environment(env_id)
    if not sets:
        return f"{env_id} needs {what}, which is not installed."
    return f"{env_id} needs {what}: install the requirement set {sets[0]!r} ({requirement_sets.install_command(sets[:1])})."


class Envs:
    """`num_envs` environments of one id. Use `Envs.make`; call `reset` once, then `step`."""

    def __init__(
        self,
        envs: list[gym.Env[Any, Any]],
        *,
        flatten: bool = True,
        clip_actions: bool = False,
        reward_scale: float = 1.0,
        obs_normaliser: bool = False,
        reward_normaliser_gamma: float | None = None,
        video: Path | None = None,
        video_trigger: Callable[[int], bool] | None = None,
        stages: Stages | None = None,
        tape: bool = True,
    ) -> None:
        """`tape`: remember the current episodes, so that a checkpoint can hold them."""
        self.num_envs = len(envs)
        self.stages = stages
        self.inner = envs
        self.envs = list(envs)
        self._recorded = video is not None
        if video is not None:
            try:
                self.envs[0] = gym.wrappers.RecordVideo(
                    envs[0], str(video), episode_trigger=video_trigger, disable_logger=True
                )
            except (ValueError, gym.error.Error) as error:
                raise _unrecorded(error) from error
        self.single_action_space: Any = envs[0].action_space
        self._encode, self.obs_shape, self.obs_dtype = _encoder(envs[0].observation_space, flatten)
        self._obs_size = math.prod(self.obs_shape)
        self.discrete = isinstance(self.single_action_space, gym.spaces.Discrete)
        self._by_game = _is_wrapped_in(envs[0], AtariGame)
        """Whether returns and lengths are of whole games, of which an episode for learning is a part."""
        self.reward_scale = reward_scale
        self._low_high: tuple[Any, Any] | None = None
        if clip_actions and isinstance(self.single_action_space, gym.spaces.Box):
            self._low_high = (self.single_action_space.low, self.single_action_space.high)
        self.obs_normaliser = ObservationNormaliser(self.obs_shape) if obs_normaliser else None
        self.reward_normaliser = (
            RewardNormaliser(self.num_envs, reward_normaliser_gamma) if reward_normaliser_gamma is not None else None
        )
        self.freeze_normaliser = False
        self.obs: np.ndarray = np.zeros((self.num_envs, *self.obs_shape), self.obs_dtype)
        """Where the next actions are chosen."""
        self._raw: np.ndarray = self.obs
        """The same before normalisation."""
        self.starts: np.ndarray = np.ones(self.num_envs, bool)
        """Rows of `obs` that begin an episode."""
        self.restarted: list[int] = []
        """Environments that could not be restored by `load_state_dict` and began a fresh episode."""
        self._seed = self._steps = 0
        self._returns = [0.0] * self.num_envs
        self._lengths = [0] * self.num_envs
        self._tapes = [envstate.Tape() for _ in envs]
        self._taped = [tape and envstate.can_be_restored(env) for env in envs]

    @classmethod
    def make(
        cls,
        env_id: str,
        num_envs: int,
        *,
        video: Path | None = None,
        render: bool = False,
        max_episode_steps: int | None = None,
        procedural_generation: bool = True,
        fixed_seed: int | None = None,
        view_size: int | None = None,
        max_episode_seconds: float | None = None,
        frames: int | None = None,
        mission: bool = False,
        schedule: list[Stage] | None = None,
        **options: Any,
    ) -> Envs:
        """Make the environments as `make_env` does; `options` are those of the constructor.

        With the `schedule` of a curriculum they begin as its first environment and become the others in turn.
        """
        if num_envs < 1:
            raise BadConfig(f"--num-envs must be at least 1, not {num_envs}.")

        def one(env_id: str) -> gym.Env[Any, Any]:
            return make_env(
                env_id,
                render=render or video is not None,
                max_episode_steps=max_episode_steps,
                procedural_generation=procedural_generation,
                fixed_seed=fixed_seed,
                view_size=view_size,
                max_episode_seconds=max_episode_seconds,
                frames=frames,
                mission=mission,
            )

        if schedule is None:
            return cls([one(env_id) for _ in range(num_envs)], video=video, **options)
        from cleanrl_worker.wrappers.curriculum import Stages

        stages = Stages(schedule, one, num_envs)
        return cls(stages.envs, video=video, stages=stages, **options)

    def use_normaliser(self, state: dict[str, Any]) -> None:
        """Normalise observations by these statistics, and leave them as they are: for evaluation."""
        self.obs_normaliser = ObservationNormaliser(self.obs_shape)
        self.obs_normaliser.load_state_dict(state)
        self.freeze_normaliser = True

    def go_on_with_normaliser(self, state: dict[str, Any]) -> None:
        """Normalise observations by these statistics, those that are shown now included, and let them move on."""
        assert self.obs_normaliser is not None
        self.obs_normaliser.load_state_dict(state)
        self.obs = self.obs_normaliser(self._raw)

    def reset(self, seed: int) -> np.ndarray:
        """Start all of them, environment i with `seed + i`."""
        self._seed = seed
        for i in range(self.num_envs):
            try:
                self.obs[i] = self._reset_one(i, seed + i)
            except BadConfig:
                raise
            except Exception as error:  # renderers raise what they like where there is no screen
                if self._recorded and i == 0:
                    raise _unrecorded(error) from error
                raise
            self.envs[i].action_space.seed(seed + i)
        self._raw = self.obs
        if self.obs_normaliser is not None:
            self.obs = self._normalise(self.obs)
        self._returns = [0.0] * self.num_envs
        self._lengths = [0] * self.num_envs
        self.starts = np.ones(self.num_envs, bool)
        return self.obs

    def step(self, actions: np.ndarray) -> Step:
        """Act in every environment; restart those whose episode ends."""
        n, encode, lengths, returns = self.num_envs, self._encode, self._lengths, self._returns
        by_game = self._by_game
        if self._low_high is not None:
            actions = np.minimum(np.maximum(actions, self._low_high[0]), self._low_high[1])
        # gymnasium checks an action against its Discrete space, and is five times quicker with Python's numbers
        each = actions.tolist() if self.discrete else actions
        self._steps += n
        if self.stages is not None:
            self.stages.stepped()
        obs = np.empty((n, *self.obs_shape), self.obs_dtype)
        rewards = np.empty(n, np.float32)
        scores = np.empty(n) if by_game else None
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        episodes: list[Episode] = []
        first: dict[int, Any] = {}
        for i, (env, action) in enumerate(zip(self.envs, each, strict=True)):
            given = env.step(action)
            try:
                raw, reward, ended, cut, info = given
            except (TypeError, ValueError) as error:
                raise BadConfig(
                    "This environment's step does not give five things (observation, reward, terminated, truncated, "
                    f"info) but {given!r:.100}: wrap it."
                ) from error
            obs[i] = raw if encode is None else encode(raw)
            try:
                rewards[i] = reward
                if scores is not None:
                    reward = scores[i] = info["raw_reward"]
                returns[i] += reward  # type: ignore[operator] # SupportsFloat, in practice a number
            except (TypeError, ValueError) as error:
                raise BadConfig(
                    f"This environment gave the reward {reward!r}, which is not a number: wrap the environment."
                ) from error
            if not math.isfinite(returns[i]):  # before it is in any memory, and with that in checkpoints
                raise Diverged(
                    "NaNReward",
                    f"The reward of environment {i} is {reward} in step {lengths[i] + 1} of its episode: the environment is at "
                    "fault, not what plays in it. Mend or wrap the environment.",
                )
            lengths[i] += 1
            if self._taped[i]:
                self._tapes[i].actions.append(action if self.discrete else action.copy())
            if ended or cut:
                terminated[i], truncated[i] = ended, cut and not ended
                if not by_game or info["game_over"] or cut:
                    stage = None if self.stages is None else self.stages.ended(i, float(returns[i]), lengths[i])
                    episodes.append(Episode(i, float(returns[i]), lengths[i], stage))
                    returns[i], lengths[i] = 0.0, 0
                first[i] = self._reset_one(i, None)
        if self.reward_normaliser is not None:
            rewards = self.reward_normaliser.update(rewards, terminated)
        elif self.reward_scale != 1.0:
            rewards *= self.reward_scale
        self._raw = obs
        obs = next_obs = obs if self.obs_normaliser is None else self._normalise(obs)
        if first:
            where, rows = list(first), np.array(list(first.values()), self.obs_dtype)
            self._raw = self._raw.copy()
            self._raw[where] = rows
            obs = next_obs.copy()
            obs[where] = rows if self.obs_normaliser is None else self._normalise(rows)
        self.obs = obs
        self.starts = terminated | truncated
        return Step(obs, rewards, terminated, truncated, next_obs, episodes, scores=scores)

    def render(self, slots: tuple[int, ...]) -> list[Any]:
        """Pictures of the environments with these indices; those that can't draw give None."""
        shown = [self.inner[slot].render() for slot in slots if slot < self.num_envs]
        return shown if self.stages is None else _alike(shown)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on in the middle of an episode."""
        return {
            "stages": self.stages and self.stages.state_dict(),
            "envs": [envstate.capture(env, tape) for env, tape in zip(self.inner, self._tapes, strict=True)],
            "obs": self.obs,
            "raw": self._raw,
            "starts": self.starts,
            "steps": self._steps,
            "returns": [float(r) for r in self._returns],
            "lengths": list(self._lengths),
            "obs_normaliser": self.obs_normaliser and self.obs_normaliser.state_dict(),
            "reward_normaliser": self.reward_normaliser and self.reward_normaliser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. Call `reset` before it; environments that can't be restored begin a fresh episode,
        with seeds that the run has not seen: else every attempt would begin with the same episodes."""
        self._steps = int(state.get("steps", 0))
        if self.obs_normaliser is not None and state["obs_normaliser"] is not None:
            self.go_on_with_normaliser(state["obs_normaliser"])
        if self.reward_normaliser is not None and state["reward_normaliser"] is not None:
            self.reward_normaliser.load_state_dict(state["reward_normaliser"])
        self.restarted = list(range(self.num_envs))
        if (self.stages is None) != (state.get("stages") is None):
            return  # a curriculum and a plain run: their environments are not alike
        if self.stages is not None:
            self.stages.load_state_dict(state["stages"])
        if len(state["envs"]) != self.num_envs or state["obs"].shape != self.obs.shape:
            return
        self._raw = self._raw.copy()
        for i, saved in enumerate(state["envs"]):
            restored = envstate.restore(self.inner[i], saved)
            exact = False
            if restored is not None:
                tape, shown = restored
                encoded = shown if self._encode is None else self._encode(shown)
                exact = bool(np.array_equal(np.asarray(encoded, self.obs_dtype), state["raw"][i]))
            if not exact:
                self._raw[i] = self._reset_one(i, (self._seed + self._steps + i) % MOST_SEEDS)
                self.obs[i] = (
                    self._raw[i] if self.obs_normaliser is None else self.obs_normaliser(self._raw[i : i + 1])[0]
                )
                continue
            self._tapes[i] = tape
            self.obs[i], self.starts[i], self._raw[i] = state["obs"][i], state["starts"][i], state["raw"][i]
            self._returns[i], self._lengths[i] = state["returns"][i], state["lengths"][i]
            self.restarted.remove(i)

    def _reset_one(self, i: int, seed: int | None) -> Any:
        if self.stages is not None:
            seed = self.stages.begin(i, seed)
            self._taped[i] = envstate.can_be_restored(self.inner[i])
        if self._taped[i]:
            self._tapes[i] = envstate.start_tape(self.inner[i], seed)
        try:
            given = self.envs[i].reset(seed=seed)
        except TypeError as error:
            if _OLD_RESET.search(str(error)) is None:
                raise
            raise BadConfig(
                f"This environment's reset is not gymnasium's ({error}): let it take seed=None and options=None, or wrap it."
            ) from error
        if not isinstance(given, tuple) or len(given) != 2:
            raise BadConfig(
                f"This environment's reset does not give two things (observation, info) but {given!r:.100}: wrap it."
            )
        raw, _ = given
        row = raw if self._encode is None else self._encode(raw)
        if np.size(row) != self._obs_size:  # a single number would be written into every place of the row
            raise BadConfig(
                f"This environment shows an observation of shape {np.shape(row)}, and its observation space has "
                f"{self.obs_shape}: one of the two is wrong."
            )
        return row

    def _normalise(self, rows: np.ndarray) -> np.ndarray:
        assert self.obs_normaliser is not None
        return self.obs_normaliser(rows) if self.freeze_normaliser else self.obs_normaliser.update(rows)


def _unrecorded(error: Exception) -> BadConfig:
    return BadConfig(
        f"Episodes can't be recorded here ({type(error).__name__}: {error}): leave the capture of video out, or give the "
        "environment a renderer (for example SDL_VIDEODRIVER=dummy, MUJOCO_GL=egl)."
    )


def _alike(pictures: list[Any]) -> list[Any]:
    """Pictures of different stages side by side: the smaller ones get a black margin."""
    sizes = [np.shape(picture) for picture in pictures]
    if len(set(sizes)) < 2 or any(len(size) != 3 for size in sizes):
        return pictures
    height, width = (max(size[axis] for size in sizes) for axis in (0, 1))
    return [
        np.pad(picture, ((0, height - size[0]), (0, width - size[1]), (0, 0)))
        for picture, size in zip(pictures, sizes, strict=True)
    ]


def _is_wrapped_in(env: gym.Env[Any, Any], kind: type[gym.Env[Any, Any]]) -> bool:
    while isinstance(env, gym.Wrapper) and not isinstance(env, kind):
        env = env.env
    return isinstance(env, kind)


def _encoder(space: gym.Space[Any], flatten: bool) -> tuple[Callable[[Any], Any] | None, tuple[int, ...], Any]:
    """How to turn an observation of `space` into a row, the row's shape and type. None: it is one already."""
    if isinstance(space, gym.spaces.Box):
        image = space.dtype == np.uint8 and len(space.shape) == 3
        dtype = np.uint8 if space.dtype == np.uint8 and image else np.float32
        if image or len(space.shape) == 1 or not flatten:
            return None, space.shape, dtype
        return np.ravel, (math.prod(space.shape),), dtype
    if isinstance(space, gym.spaces.Discrete):
        table = np.eye(int(space.n), dtype=np.float32)
        start = int(space.start)
        return (lambda value: table[int(value) - start]), (int(space.n),), np.float32
    try:
        size = gym.spaces.flatdim(space)
    except (NotImplementedError, ValueError) as error:
        raise BadConfig(
            f"Observations of {space} can't be turned into a vector: wrap the environment first."
        ) from error
    return (lambda value: gym.spaces.flatten(space, value)), (size,), np.float32


# ---------------------------------------------------------------- is this environment one for this algorithm?


def require_discrete_actions(envs: Envs, algo: str, instead: str) -> int:
    """The number of actions, or BadConfig that names an algorithm that fits."""
    if not envs.discrete:
        space = envs.single_action_space
        use = f"use --algo {instead}, or" if _is_continuous(space) else "no algorithm takes those: use"
        raise BadConfig(
            f"{algo} needs discrete actions, and this environment has {space}: {use} an environment with a Discrete action "
            "space."
        )
    if int(envs.single_action_space.start) != 0:
        raise BadConfig(
            f"{algo} needs actions that count from 0, not from {envs.single_action_space.start}: wrap the environment."
        )
    return int(envs.single_action_space.n)


def _is_continuous(space: gym.Space[Any]) -> bool:
    """A vector of real numbers, which is what the algorithms for continuous actions take."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)


def require_continuous_actions(envs: Envs, algo: str, instead: str, *, bounded: bool = False) -> int:
    """The size of the action vector, or BadConfig that names an algorithm that fits."""
    space = envs.single_action_space
    if not isinstance(space, gym.spaces.Box):
        use = f"use --algo {instead}, or" if envs.discrete else "no algorithm takes those: use"
        raise BadConfig(
            f"{algo} needs continuous actions (a Box with one axis), and this environment has {space}: {use} an environment "
            "with a Box action space."
        )
    if not _is_continuous(space):
        raise BadConfig(
            f"{algo} needs continuous actions (a Box with one axis, of real numbers), and this environment has {space}: wrap "
            "the environment."
        )
    if bounded:
        with np.errstate(over="ignore"):
            reach = space.high.astype(np.float32) - space.low.astype(np.float32)
        if not np.isfinite(reach).all():  # also of bounds that are finite, but too far apart for a float32
            raise BadConfig(
                f"{algo} needs actions with finite bounds, not too far apart for 32 bits, and this environment has {space}: "
                "rescale its actions first."
            )
    return int(space.shape[0])


def require_vectors(envs: Envs, algo: str, instead: str = "ppo_atari") -> int:
    """The size of the observation vector, or BadConfig for images."""
    if len(envs.obs_shape) != 1:
        raise BadConfig(
            f"{algo} has no network for images, and this environment's observations have shape {envs.obs_shape}: for an "
            f"Atari game use --algo {instead}, for MiniGrid and BabyAI --algo ppo; others need a wrapper that makes vectors."
        )
    return envs.obs_shape[0]


def video_folder(run_name: str) -> Path:
    """Where recorded episodes go: the supervisor's folder when there is one, else `videos/<run name>`."""
    given = os.environ.get("MOSAIC_VIDEOS_DIR")
    return Path(given) if given else Path("videos") / run_name

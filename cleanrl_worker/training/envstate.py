"""Putting an environment back to where it was, exactly, or saying that it can't be done.

Copying an environment object, or its visible state, is silently wrong for some families (physics caches, an emulator's sticky
actions), so nothing is copied: the episode is played again from its reset. A `Tape` holds what the reset depended on and the
actions since; wrappers, time limits and frame stacks come back by themselves. `FAMILIES` lists the environments whose episodes
depend on nothing else. A replayed environment must have the generator state it had and show the observation it showed, else it
is not accepted.

Environments of other families begin a fresh episode.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

FAMILIES = (
    "gymnasium.envs.classic_control",
    "gymnasium.envs.toy_text",
    "gymnasium.envs.mujoco",
    "minigrid",
    "ale_py",
)
"""The packages whose environments can be replayed, by the innermost environment's class."""

WRAPPERS = frozenset(
    {
        "AtariGame",
        "AtariPreprocessing",
        "BabyAITaskWrapper",
        "ClipAction",
        "ClipReward",
        "DtypeObservation",
        "FlattenObservation",
        "FrameStackObservation",
        "FullyObsWrapper",
        "GrayscaleObservation",
        "ImgObsWrapper",
        "MaxAndSkipObservation",
        "MissionWrapper",
        "OrderEnforcing",
        "PassiveEnvChecker",
        "ProceduralGenerationWrapper",
        "RGBImgObsWrapper",
        "RGBImgPartialObsWrapper",
        "RecordEpisodeStatistics",
        "RescaleAction",
        "ReshapeObservation",
        "ResizeObservation",
        "TimeLimit",
        "TransformAction",
        "TransformObservation",
        "TransformReward",
        "ViewSizeWrapper",
    }
)
"""Wrappers that remember nothing from before the reset, or have a `state_dict` that holds it."""

LONGEST = 50_000
"""Longer episodes are not replayed: it would take minutes."""


@dataclass
class Tape:
    """The current episode of one environment: what its reset depended on, and the actions since."""

    seed: int | None = None
    rng: dict[str, Any] | None = None
    machine: bytes | None = None
    """The emulator before the reset, with its own random numbers."""
    wrappers: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)


def can_be_restored(env: gym.Env[Any, Any]) -> bool:
    module = type(env.unwrapped).__module__
    known = any(module == package or module.startswith(package + ".") for package in FAMILIES)
    return known and all(type(wrapper).__name__ in WRAPPERS for wrapper in _wrappers(env))


def start_tape(env: gym.Env[Any, Any], seed: int | None) -> Tape:
    """What is to be remembered before a reset."""
    tape = Tape(seed=seed, wrappers=[w.state_dict() if hasattr(w, "state_dict") else None for w in _wrappers(env)])
    if seed is None:
        tape.rng = _rng_state(env)
        if hasattr(env.unwrapped, "clone_state"):
            tape.machine = env.unwrapped.clone_state(include_rng=True).serialize()
    return tape


def capture(env: gym.Env[Any, Any], tape: Tape) -> dict[str, Any] | None:
    """The state as plain data, None when this environment can't be restored."""
    if not can_be_restored(env) or len(tape.actions) > LONGEST:
        return None
    return {**vars(tape), "actions": np.asarray(tape.actions), "rng_now": _rng_state(env)}


def restore(env: gym.Env[Any, Any], state: dict[str, Any] | None) -> tuple[Tape, Any] | None:
    """Play the episode again. Returns its tape and the observation it ends with, or None when that can't be done."""
    if state is None or not can_be_restored(env):
        return None
    tape = Tape(state["seed"], state["rng"], state["machine"], state["wrappers"], list(state["actions"]))
    env.reset(seed=0)  # makes the generator, and a machine that can take a state
    layer: Any = env
    for own in tape.wrappers:  # outermost first: it may change what lies under it
        if not isinstance(layer, gym.Wrapper):
            return None
        if own is not None:
            layer.load_state_dict(own)  # type: ignore[attr-defined] # it had a state_dict when it was saved
        layer = layer.env
    if tape.rng is not None:
        env.unwrapped.np_random.bit_generator.state = tape.rng
    if tape.machine is not None:
        emulator: Any = env.unwrapped
        emulator.restore_state(sys.modules["ale_py"].ALEState(tape.machine))
    obs, _ = env.reset(seed=tape.seed)
    for action in tape.actions:
        obs, *_ = env.step(action)
    return (tape, obs) if _rng_state(env) == state["rng_now"] else None


def _wrappers(env: gym.Env[Any, Any]) -> list[Any]:
    """Outermost first, without the innermost environment."""
    found = []
    while isinstance(env, gym.Wrapper):
        found.append(env)
        env = env.env
    return found


def _rng_state(env: gym.Env[Any, Any]) -> dict[str, Any]:
    return dict(env.unwrapped.np_random.bit_generator.state)

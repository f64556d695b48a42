"""What `gymnasium.make` does for a foreign script beyond making the environment.

In order: register the environments of packages that gymnasium no longer registers by itself, replace versions that no
longer exist, render to arrays when somebody will look, decide about procedural generation, record video, and put the
FastLane wrapper around it all; for a script of gym 0.23 it also gets its `seed` method.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from cleanrl_worker.compat.gymnasium029 import MADE_BY_WORKER
from cleanrl_worker.compat.hooks import say

_MARK = "_cleanrl_worker_original"
_VERSION = re.compile(r"(?P<name>.+)-v(?P<version>\d+)")
_DEAD_MUJOCO = (2, 3)
"""Versions that gymnasium registers only to say that they are gone."""
_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")
_DEFAULT_FIXED_SEED = 42


def patch(gymnasium: ModuleType) -> None:
    """Replace `gymnasium.make` where the library itself and its users find it. A second call changes nothing."""
    original = gymnasium.make
    if hasattr(original, _MARK):
        return
    made = 0

    def make(id: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - gymnasium's own parameter name
        nonlocal made
        if os.environ.get("FASTLANE_SKIP_WRAP") == "1":
            return original(id, *args, **kwargs)
        index, made = made, made + 1
        if isinstance(id, str):
            id = _existing_id(gymnasium, id)  # noqa: A001
        return _wrapped(_made(original, id, args, kwargs, render=_wants_pictures(index)), index)

    setattr(make, _MARK, original)
    make.__doc__ = original.__doc__
    gymnasium.make = make  # type: ignore[attr-defined]
    gymnasium.envs.registration.make = make


def _existing_id(gymnasium: ModuleType, env_id: str) -> str:
    """The id to use: known after registering its package, or the nearest newer version of one that no longer exists."""
    if env_id.startswith(("MiniGrid", "BabyAI")):
        _register("minigrid")
    elif env_id not in gymnasium.registry and (env_id.startswith("ALE/") or "NoFrameskip" in env_id):
        _register("ale_py")
    match = _VERSION.fullmatch(env_id)
    if match is None:
        return env_id
    name, version = match["name"], int(match["version"])
    spec = gymnasium.registry.get(env_id)
    dead = (
        spec is not None and version in _DEAD_MUJOCO and getattr(spec.entry_point, "__name__", "").startswith("_raise")
    )
    if spec is not None and not dead:
        return env_id
    newer = sorted(
        int(known.removeprefix(f"{name}-v"))
        for known in gymnasium.registry
        if re.fullmatch(re.escape(name) + r"-v\d+", known) and int(known.removeprefix(f"{name}-v")) > version
    )
    living = [number for number in newer if not (dead and number in _DEAD_MUJOCO)]
    if not living:
        return env_id  # gymnasium's own error names what exists
    say(f"{env_id} no longer exists in gymnasium {gymnasium.__version__}: using {name}-v{living[0]}, scores may differ")
    return f"{name}-v{living[0]}"


def _register(package: str) -> None:
    """Import a package of environments. One that registers nothing by import alone is asked to."""
    if importlib.util.find_spec(package) is None:
        return  # gymnasium's error for an unknown id says what is missing
    module = importlib.import_module(package)
    register_all = getattr(module, "register_minigrid_envs", None)
    if register_all is not None:
        register_all()


def _wants_pictures(index: int) -> bool:
    from cleanrl_worker.compat import gym023
    from cleanrl_worker.fastlane.settings import FastLaneSettings

    if gym023.spoken():  # there any environment could be rendered, and its scripts say so nowhere
        return True
    return (index == 0 and _video_wanted()) or index in FastLaneSettings.from_env().shown_slots


def _made(make: Callable[..., Any], env_id: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, render: bool) -> Any:
    if not render or "render_mode" in kwargs:
        return make(env_id, *args, **kwargs)
    try:
        return make(env_id, *args, **kwargs, render_mode="rgb_array")
    except Exception as error:  # noqa: BLE001 - whatever an environment raises for a mode that it does not have
        env = make(env_id, *args, **kwargs)  # the script's own error, if it is one, comes from here
        say(f"{env_id} cannot render to arrays, it will not be seen: {error}")
        return env


def _wrapped(env: Any, index: int) -> Any:
    procedural = os.environ.get("CLEANRL_PROCEDURAL_GENERATION", "").strip().lower()
    if procedural in _TRUE + _FALSE:
        from cleanrl_worker.compat.procedural import ProceduralGenerationWrapper

        env = ProceduralGenerationWrapper(env, procedural in _TRUE, fixed_seed=_fixed_seed())
    if index == 0 and _video_wanted() and env.render_mode in ("rgb_array", "rgb_array_list"):
        env = _recorded(env)
    from cleanrl_worker.compat import gym023
    from cleanrl_worker.fastlane.wrapper import FastLaneTelemetryWrapper

    wrapped: Any = FastLaneTelemetryWrapper(env)
    if not gym023.spoken():
        return wrapped
    from cleanrl_worker.compat.gym023_vector import SeedMethodWrapper

    return SeedMethodWrapper(wrapped)


def _fixed_seed() -> int:
    seed = os.environ.get("CLEANRL_SEED", "")
    return int(seed) if seed.isdigit() else _DEFAULT_FIXED_SEED


def _video_wanted() -> bool:
    return os.environ.get("MOSAIC_CAPTURE_VIDEO") == "1"


def _recorded(env: Any) -> Any:
    """Record the first environment. Others would only write the same names again."""
    from gymnasium.wrappers import RecordVideo

    folder = Path(os.environ.get("MOSAIC_VIDEOS_DIR", "videos"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        recorder = RecordVideo(env, str(folder), disable_logger=True)
    except Exception as error:  # noqa: BLE001 - no video is no reason not to train
        say(f"no video will be recorded: {error}")
        return env
    setattr(recorder, MADE_BY_WORKER, True)
    return recorder

"""gymnasium 1.x, seen by a script written for 0.29.

What changed that such scripts trip over: vector environments now reset a finished member in the *next* step; here they do
it in the same step again, unless the script asks otherwise, and the last observation and info are found where 0.29 had
them. Wrappers were renamed and their arguments changed; the old ones work. Wrappers no longer answer for the attributes
of what they wrap; here they do.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

MADE_BY_WORKER = "made_by_worker"
"""Attribute of a wrapper that `gym.make` added by itself."""


class FinalInfos(list[Any]):
    """`infos["final_info"]` both ways: 0.29's list of one dict or None per environment, and 1.x's dict of arrays."""

    def __init__(self, batched: dict[str, Any], present: Any) -> None:
        super().__init__(member(batched, index) if there else None for index, there in enumerate(present))
        self._batched = batched

    def __getitem__(self, key: Any) -> Any:
        return self._batched[key] if isinstance(key, str) else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in self._batched if isinstance(key, str) else super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self._batched.get(key, default)

    def keys(self) -> Any:
        return self._batched.keys()

    def items(self) -> Any:
        return self._batched.items()


def old_infos(infos: dict[str, Any]) -> dict[str, Any]:
    """Add what 0.29 had to the infos of a same-step vector environment. Scripts for 1.x find theirs as well."""
    if "final_obs" in infos:
        infos["final_observation"] = infos["final_obs"]
        infos["_final_observation"] = infos["_final_obs"]
    batched = infos.get("final_info")
    if isinstance(batched, dict):
        infos["final_info"] = FinalInfos(batched, infos["_final_info"])
        if "episode" in batched and "episode" not in infos:  # where a script for 1.x's default mode looks
            infos["episode"], infos["_episode"] = batched["episode"], batched["_episode"]
    return infos


def member(batched: dict[str, Any], index: int) -> dict[str, Any]:
    """The info of one environment out of the batched one."""
    return dict(_member_items(batched, index))


def _member_items(batched: dict[str, Any], index: int) -> Iterator[tuple[str, Any]]:
    for key, value in batched.items():
        mask = batched.get(f"_{key}")
        if mask is not None and mask[index]:
            yield key, member(value, index) if isinstance(value, dict) else value[index]


@cache
def keeps_resets_apart(source: str) -> bool | None:
    """Whether a file knows that gymnasium 1.x spends a step on each reset, and leaves that step out of what it learns from.

    Such code says `autoreset` (of the step before), or uses `gymnasium.wrappers.vector`, which came with 1.0 and does so; code
    for a reset in the same step says `final_observation` or `final_info`. None: it says neither.
    """
    try:
        tree = ast.parse(Path(source).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    names = {str(getattr(node, "id", None) or getattr(node, "attr", "")) for node in ast.walk(tree)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    if (names | texts) & {"final_observation", "final_obs", "final_info"}:
        return False
    return True if any("autoreset" in name for name in names) or _wraps_vectors(tree) else None


def _wraps_vectors(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="vector", value=ast.Attribute(attr="wrappers") | ast.Name(id="wrappers")):
                return True
            case ast.ImportFrom(module="gymnasium.wrappers.vector"):
                return True
            case ast.ImportFrom(module="gymnasium.wrappers", names=names) if any(
                name.name == "vector" for name in names
            ):
                return True
            case ast.Import(names=names) if any(name.name == "gymnasium.wrappers.vector" for name in names):
                return True
    return False


def _resets_apart() -> bool:
    """What the code says that makes a vector environment, or else the script."""
    frame = sys._getframe(2)  # noqa: SLF001 - the documented way to look at one's caller
    while frame.f_back is not None and "site-packages" in Path(frame.f_code.co_filename).parts:  # gymnasium's make_vec
        frame = frame.f_back
    known = (keeps_resets_apart(source) for source in (frame.f_code.co_filename, sys.argv[0]))
    return next((answer for answer in known if answer is not None), False)


def patch_sync_vector(module: ModuleType) -> None:
    _patch_vector(module.SyncVectorEnv, "step", module.AutoresetMode.SAME_STEP)


def patch_async_vector(module: ModuleType) -> None:
    _patch_vector(module.AsyncVectorEnv, "step_wait", module.AutoresetMode.SAME_STEP)


def _patch_vector(vector: Any, method: str, same_step: Any) -> None:
    """Reset in the same step by default, infos as in 0.29, and steps counted for FastLane.

    A script that is written for resets in a step of their own keeps them (`keeps_resets_apart`). For a script of gym 0.23
    `reset` and `step` return what they did there, see `gym023`.
    """
    from cleanrl_worker.compat import gym023
    from cleanrl_worker.fastlane.wrapper import announce_vector, count_vector_step

    original_init, original_step, original_reset = vector.__init__, getattr(vector, method), vector.reset

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes the class's own
        self.tells_old_infos = "autoreset_mode" not in kwargs and (gym023.spoken() or not _resets_apart())
        if self.tells_old_infos:
            kwargs["autoreset_mode"] = same_step
        original_init(self, *args, **kwargs)
        if getattr(type(self), method) is step:  # a subclass with a step of its own would never count
            announce_vector(self)

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        observations, rewards, terminations, truncations, infos = original_step(self, *args, **kwargs)
        count_vector_step(self, rewards)
        if gym023.spoken():
            return gym023.old_step((observations, rewards, terminations, truncations, infos))
        told = old_infos(infos) if self.tells_old_infos else infos
        return observations, rewards, terminations, truncations, told

    def reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original_reset(self, *args, **kwargs)
        return result[0] if gym023.spoken() else result

    vector.__init__ = __init__
    vector.reset = reset
    setattr(vector, method, step)


def patch_wrappers(wrappers: Any) -> None:
    """The names and the constructor arguments of 0.29."""
    transform, resize = wrappers.TransformObservation, wrappers.ResizeObservation
    _adapt_init(
        transform, lambda args, kwargs: (args, kwargs if len(args) > 2 else {"observation_space": None} | kwargs)
    )
    _adapt_init(resize, _square)
    _adapt_init(wrappers.RecordEpisodeStatistics, _renamed("deque_size", "buffer_length"))

    class FrameStack(wrappers.FrameStackObservation):  # type: ignore[misc]
        def __init__(self, env: Any, num_stack: int, lz4_compress: bool = False) -> None:
            del lz4_compress  # frames are plain arrays now
            super().__init__(env, num_stack)

    wrappers.FrameStack = FrameStack
    wrappers.GrayScaleObservation = wrappers.GrayscaleObservation
    wrappers.AutoResetWrapper = wrappers.Autoreset
    wrappers.PixelObservationWrapper = wrappers.AddRenderObservation


def _square(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """0.29 took one number for a square, and lists."""

    def pair(shape: Any) -> Any:
        if isinstance(shape, int):
            return (shape, shape)
        return tuple(shape) if isinstance(shape, list) else shape

    if "shape" in kwargs:
        return args, {**kwargs, "shape": pair(kwargs["shape"])}
    return (*args[:1], *(pair(shape) for shape in args[1:2]), *args[2:]), kwargs


def _renamed(old: str, new: str) -> Any:
    def rename(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {(new if key == old else key): value for key, value in kwargs.items()}

    return rename


def _adapt_init(wrapper: Any, adapt: Any) -> None:
    original = wrapper.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes the class's own
        args, kwargs = adapt(args, kwargs)
        original(self, *args, **kwargs)

    wrapper.__init__ = __init__


def patch_core(core: Any) -> None:
    """A wrapper answers for the attributes of the environment inside it, as it did up to 0.29. It has them no more than before:
    what a script sets by name (`set_wrapper_attr`, a vector's `set_attr`) reaches the one that has it.

    The worker's own wrappers answer for private ones too: without them a script is given `TimeLimit` itself, and many ask
    it for `_max_episode_steps`.
    """

    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807 - it becomes the class's own
        ours = MADE_BY_WORKER in vars(self) or hasattr(type(self), MADE_BY_WORKER)
        if name == "env" or name.startswith("__" if ours else "_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    original = core.Wrapper.set_wrapper_attr

    def set_wrapper_attr(self: Any, name: str, value: Any, *, force: bool = True) -> bool:
        own = inspect.getattr_static(self, name, self) is not self
        if not own and self.env.set_wrapper_attr(name, value, force=False):
            return True
        return bool((own or force) and original(self, name, value, force=force))

    core.Wrapper.__getattr__ = __getattr__
    core.Wrapper.set_wrapper_attr = set_wrapper_attr


def patch_record_video(rendering: Any) -> None:
    """Recorders tell what W&B's `monitor_gym` asks when they close, and the script's own replaces the worker's."""
    recorder = rendering.RecordVideo
    original = recorder.stop_recording
    original_init = recorder.__init__

    def __init__(self: Any, env: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes the class's own
        original_init(self, env, *args, **kwargs)
        inner = env
        while inner is not None:
            if vars(inner).get(MADE_BY_WORKER):  # the same pictures twice would cost the encoding twice
                inner.episode_trigger, inner.step_trigger = (lambda _: False), None
            inner = vars(inner).get("env")

    recorder.__init__ = __init__

    def stop_recording(self: Any) -> None:
        name = self._video_name
        original(self)
        path = Path(self.video_folder) / f"{name}.mp4"
        if path.exists():
            self.newest_video = str(path)

    recorder.stop_recording = stop_recording
    recorder.newest_video = ""
    recorder.path = property(lambda self: self.newest_video)
    recorder.enabled = property(lambda self: bool(self.newest_video))

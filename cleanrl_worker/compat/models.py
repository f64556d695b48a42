"""A foreign script's model files: saving into folders that do not exist yet, and starting from given weights.

And its replay, where stable-baselines3 keeps that.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from cleanrl_worker.compat.hooks import say

RESUME_PATH = "CLEANRL_RESUME_PATH"
CHECKPOINT_SHA256 = "CLEANRL_CHECKPOINT_SHA256"
RESUME_STEP = "CLEANRL_RESUME_GLOBAL_STEP"
EVALUATION_EPISODES = "MOSAIC_CLEANRL_EVAL_EPISODES"


def patch_save(serialization: Any) -> None:
    """`torch.save` makes the parent folders of a path."""
    original = serialization.save

    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | os.PathLike):
            Path(f).parent.mkdir(parents=True, exist_ok=True)
        original(obj, f, *args, **kwargs)

    serialization.save = save
    torch = sys.modules.get("torch")
    if getattr(torch, "save", None) is original:  # torch was imported before us and has the old one under its own name
        torch.save = save  # type: ignore[union-attr]


class _Resume:
    """The weights in `CLEANRL_RESUME_PATH`, on their way into the modules they belong to.

    A file may hold one set of weights or a tuple of them (actor, critics). Each set goes, once, into the first module
    with exactly its keys and shapes. What was loaded, and what was not, is said. Where there is nothing to load the script
    ends before it learns: from the beginning is not what was asked for.
    """

    def __init__(self) -> None:
        self.weights: list[dict[str, Any]] | None = None
        """Those that no module has taken yet; None before the first module was moved to a device."""
        self.used = False

    def offer(self, module: Any) -> None:
        path = os.environ[RESUME_PATH]
        if self.weights is None:
            self.weights = []  # where they are refused, that is the last word
            self.weights = _load(path)
        for index, state in enumerate(self.weights):
            if _fits(state, module):
                module.load_state_dict(state)
                del self.weights[index]
                self.used = True
                say(f"resumed {type(module).__name__} from {path} (weights only: no optimizer, no step)")
                return

    def insist(self) -> None:
        """Learning is about to begin. What another process of the script learns with may have been loaded in the first."""
        if not self.used and multiprocessing.parent_process() is None:
            unused, self.weights = self.unused(), []
            _refuse(os.environ[RESUME_PATH], unused)

    def unused(self) -> str:
        count = len(self.weights or ())
        return "no module was moved to a device" if self.weights is None else f"{count} sets of weights fit no module"

    def say_unused(self) -> None:
        if self.weights is None or self.weights:
            say(f"not everything in {RESUME_PATH} was used: {self.unused()}")


_resume = _Resume()


def patch_resume(module: Any) -> None:
    """Load weights when a script moves its modules to a device; see `_Resume`."""
    if not os.environ.get(RESUME_PATH):
        return
    original = module.Module.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        _resume.offer(self)
        return original(self, *args, **kwargs)

    module.Module.to = to
    atexit.register(_resume.say_unused)


def patch_first_step(optimizer: Any) -> None:
    """No optimizer takes a step where nothing could be resumed."""
    if os.environ.get(RESUME_PATH):
        optimizer.register_optimizer_step_pre_hook(lambda *_: _resume.insist())


def refuse_flax(_: Any) -> None:
    if os.environ.get(RESUME_PATH):
        _refuse(os.environ[RESUME_PATH], "weights can be put back into torch's modules only, and the script uses flax")


def _load(path: str) -> list[dict[str, Any]]:
    import torch

    from cleanrl_worker.training import checkpoints

    try:
        model = checkpoints.find(Path(path), os.environ.get(CHECKPOINT_SHA256) or None)
        content = torch.load(model, map_location="cpu", weights_only=True) if isinstance(model, Path) else None
    except Exception as error:  # noqa: BLE001 - any fault of the file has the same consequence
        _refuse(path, error)
    if isinstance(content, dict) and isinstance(content.get("global_step"), int):
        os.environ[RESUME_STEP] = str(content["global_step"])
    return list(_states(content)) or _refuse(path, "it holds no model file with weights")


def _refuse(path: str, why: object) -> NoReturn:
    say(f"cannot resume from {path}: {str(why).partition(chr(10))[0]}")  # the run's last words are one line
    raise SystemExit(2)


def _states(content: Any) -> Iterator[dict[str, Any]]:
    """The sets of weights in a file: bare, under a well-known key, or several in a tuple."""
    import torch

    if isinstance(content, tuple | list):
        for item in content:
            yield from _states(item)
    elif isinstance(content, dict):
        for key in ("model_state_dict", "model_weights"):
            if key in content:
                yield from _states(content[key])
                return
        if content and all(isinstance(value, torch.Tensor) for value in content.values()):
            yield content


def _fits(state: dict[str, Any], module: Any) -> bool:
    own = module.state_dict()
    return own.keys() == state.keys() and all(own[key].shape == state[key].shape for key in own)


def patch_replay_buffer(buffers: Any) -> None:
    """A script that asks to save memory and to handle time limits gets the latter, with twice the memory.

    The class once took both and now refuses them together: the saving overwrites the very observations that a time limit
    needs.
    """
    buffer = buffers.ReplayBuffer
    original = buffer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes the class's own
        if kwargs.get("optimize_memory_usage") and kwargs.get("handle_timeout_termination", True):
            kwargs["optimize_memory_usage"] = False
            say("the replay handles time limits and cannot save memory at the same time: it takes twice as much")
        original(self, *args, **kwargs)

    buffer.__init__ = __init__


def patch_evaluation(module: ModuleType) -> None:
    """The environment may say over how many episodes a script evaluates its model."""
    original = module.evaluate

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        episodes = os.environ.get(EVALUATION_EPISODES, "")
        if episodes.isdigit():
            kwargs["eval_episodes"] = int(episodes)
            args = args[:3]  # model_path, make_env, env_id; the episodes come fourth
        return original(*args, **kwargs)

    module.evaluate = evaluate  # type: ignore[attr-defined]

"""Where a foreign script's TensorBoard events and W&B runs go."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from cleanrl_worker.compat.hooks import say

TENSORBOARD_DIR = "CLEANRL_TENSORBOARD_DIR"
_WANDB_ARGUMENTS = {
    "project": ("WANDB_PROJECT", "WANDB_PROJECT_NAME"),
    "entity": ("WANDB_ENTITY", "WANDB_ENTITY_NAME"),
    "name": ("WANDB_NAME",),
}


def patch_summary_writer(module: ModuleType) -> None:
    """A writer's folder moves under the run's TensorBoard folder, when there is one; see `_below`."""
    writer: Any = module.SummaryWriter
    original = writer.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes the class's own
        root = os.environ.get(TENSORBOARD_DIR)
        if root:
            given = kwargs.pop("logdir", None) or kwargs.pop("log_dir", None) or (args[0] if args else None)
            args = (str(Path(root) / _below(Path(given))) if given else root, *args[1:])
            if given:
                _make_folder(Path(given))
        original(self, *args, **kwargs)

    writer.__init__ = __init__


def _below(folder: Path) -> Path:
    """`runs/<name>` -> `<name>`; what lies deeper stays apart, as the curves of two agents in `runs/<agent>/losses`."""
    if folder.is_absolute():
        if not folder.is_relative_to(Path.cwd()):
            return Path(folder.name)
        folder = folder.relative_to(Path.cwd())
    parts = [part for part in folder.parts if part != ".."]
    return Path(*(parts[1:] or parts))


def _make_folder(folder: Path) -> None:
    """The writer would have made this folder, and scripts save their models into it with a plain `open`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        say(f"cannot make {folder}, which the script may count on: {error}")


def set_wandb_environment() -> None:
    """Nothing leaves the machine unless the run says so."""
    os.environ.setdefault("WANDB_MODE", "offline")


def patch_wandb(wandb: Any) -> None:
    """`wandb.init` takes project, entity and name from the environment where the script gives none."""
    original = wandb.init

    def init(*args: Any, **kwargs: Any) -> Any:
        for argument, variables in _WANDB_ARGUMENTS.items():
            if kwargs.get(argument) is None:
                value = next((os.environ[name] for name in variables if os.environ.get(name)), None)
                if value is not None:
                    kwargs[argument] = value
        kwargs.setdefault("reinit", "finish_previous")
        return original(*args, **kwargs)

    wandb.init = init

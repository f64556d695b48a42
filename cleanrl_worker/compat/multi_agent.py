"""PettingZoo's Atari games and SuperSuit's vectors of them, as scripts of gym 0.23 used them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def patch_supersuit(supersuit: Any) -> None:
    """`concat_vec_envs_v1` takes `base_class="gym"` again, and gives the interface of gym 0.23."""
    original = supersuit.concat_vec_envs_v1

    def concat_vec_envs_v1(
        vec_env: Any, num_vec_envs: int, num_cpus: int = 0, base_class: str = "gymnasium", **kwargs: Any
    ) -> Any:
        if base_class != "gym":
            return original(vec_env, num_vec_envs, num_cpus=num_cpus, base_class=base_class, **kwargs)
        from cleanrl_worker.compat.gym023_vector import AdaptedVectorEnv

        return AdaptedVectorEnv(original(vec_env, num_vec_envs, num_cpus=num_cpus, **kwargs))

    supersuit.concat_vec_envs_v1 = concat_vec_envs_v1


def patch_roms(module: Any) -> None:
    """Games for several players find their ROMs in ale-py, which brings them, where the script names no folder.

    A folder of multi-agent-ale-py's own that somebody filled with AutoROM comes first.
    """
    environment = module.ParallelAtariEnv
    original = environment.__init__

    def __init__(self: Any, game: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes the class's own
        if kwargs.get("auto_rom_install_path") is None and not _installed(game):
            kwargs["auto_rom_install_path"] = _package_folder("ale_py")
        original(self, game, *args, **kwargs)

    environment.__init__ = __init__


def _installed(game: str) -> bool:
    folder = _package_folder("multi_agent_ale_py")
    places = (f"{game}.bin", f"roms/{game}.bin", f"ROM/{game}/{game}.bin")
    return folder is not None and any((Path(folder) / place).exists() for place in places)


def _package_folder(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    return None if spec is None or spec.origin is None else str(Path(spec.origin).parent)

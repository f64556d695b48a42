"""What the environment variables of a run say about its FastLane. Bad values fall back to the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_TRUE = frozenset({"1", "true", "yes", "on", "y"})
_MODES = ("single", "grid", "off")


@dataclass(frozen=True)
class FastLaneSettings:
    run_id: str
    """Empty when this process belongs to no run: then nothing is published."""
    enabled: bool
    """False turns frames off; metrics stay."""
    mode: str
    slot: int
    """The environment whose frames are shown in single mode."""
    grid_limit: int
    num_envs: int
    interval: float
    """Seconds between frames, at least."""
    max_dim: int
    """Larger frames are scaled down to this many pixels on the longer side; 0 keeps them as they are."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> FastLaneSettings:
        num_envs = max(1, _integer(environ, "CLEANRL_NUM_ENVS", 1))
        mode = environ.get("GYM_GUI_FASTLANE_VIDEO_MODE", "single").strip().lower()
        return cls(
            run_id=environ.get("CLEANRL_RUN_ID") or environ.get("RUN_ID", ""),
            enabled=environ.get("GYM_GUI_FASTLANE_ONLY", "").strip().lower() in _TRUE,
            mode=mode if mode in _MODES else "single",
            slot=min(max(0, _integer(environ, "GYM_GUI_FASTLANE_SLOT", 0)), num_envs - 1),
            grid_limit=min(max(1, _integer(environ, "GYM_GUI_FASTLANE_GRID_LIMIT", 4)), num_envs),
            num_envs=num_envs,
            interval=max(0, _integer(environ, "CLEANRL_FASTLANE_INTERVAL_MS", 100)) / 1000,
            max_dim=max(0, _integer(environ, "CLEANRL_FASTLANE_MAX_DIM", 256)),
        )

    @property
    def frames(self) -> bool:
        return self.enabled and self.mode != "off"

    @property
    def shown_slots(self) -> tuple[int, ...]:
        """The environments whose frames are wanted: one in single mode, the first few in grid mode, none when off."""
        if not self.frames:
            return ()
        return (self.slot,) if self.mode == "single" else tuple(range(self.grid_limit))


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name, ""))
    except ValueError:
        return default

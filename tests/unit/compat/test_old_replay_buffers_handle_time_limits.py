from __future__ import annotations

from types import SimpleNamespace

import pytest

from cleanrl_worker.compat.models import patch_replay_buffer


class ReplayBuffer:
    """Refuses what stable-baselines3's refuses."""

    def __init__(self, size: int, optimize_memory_usage: bool = False, handle_timeout_termination: bool = True) -> None:
        if optimize_memory_usage and handle_timeout_termination:
            raise ValueError("not both")
        self.saves, self.handles = optimize_memory_usage, handle_timeout_termination


@pytest.mark.parametrize(
    ("asked", "saves", "handles"),
    [
        ({"optimize_memory_usage": True, "handle_timeout_termination": True}, False, True),
        ({"optimize_memory_usage": True}, False, True),
        ({"optimize_memory_usage": True, "handle_timeout_termination": False}, True, False),
        ({}, False, True),
    ],
)
def test_time_limits_go_before_memory(asked: dict[str, bool], saves: bool, handles: bool) -> None:
    class Patched(ReplayBuffer):
        pass

    patch_replay_buffer(SimpleNamespace(ReplayBuffer=Patched))
    made = Patched(10, **asked)
    assert (made.saves, made.handles) == (saves, handles)

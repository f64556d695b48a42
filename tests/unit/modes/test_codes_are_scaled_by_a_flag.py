"""MiniGrid's cell codes reach the network divided by `--minigrid-scale`, and a model file remembers another one than 10."""

from __future__ import annotations

from pathlib import Path

import minigrid.core.constants as codes
import numpy as np
import pytest
import torch

from cleanrl_worker.agents.loading import build_agent
from cleanrl_worker.agents.minigrid import CODES, MinigridAgent
from cleanrl_worker.algorithms.ppo import Args, check
from cleanrl_worker.evals import evaluate
from cleanrl_worker.training.errors import BadConfig

IMAGE = torch.from_numpy(np.random.default_rng(1).integers(0, 11, (2, 7, 7, 3), dtype=np.uint8))


def test_the_default_is_the_largest_code_there_is() -> None:
    largest = max(*codes.OBJECT_TO_IDX.values(), *codes.COLOR_TO_IDX.values(), *codes.STATE_TO_IDX.values())
    assert Args().minigrid_scale == CODES == largest


def test_the_scale_divides_what_the_network_sees() -> None:
    torch.manual_seed(1)
    ten = MinigridAgent(7)
    twenty = MinigridAgent(7, scale=20.0)
    twenty.load_state_dict({**ten.state_dict(), "cnn.scale": torch.tensor(20.0)})
    with torch.no_grad():
        assert torch.allclose(twenty(IMAGE * 2)[0], ten(IMAGE)[0], atol=1e-6)
        assert not torch.allclose(twenty(IMAGE)[0], ten(IMAGE)[0], atol=1e-6)


@pytest.mark.parametrize("scale", [10.0, 1.0, 255.0])
def test_a_saved_network_is_rebuilt_with_its_own_scale(scale: float) -> None:
    agent = MinigridAgent(7, scale=scale)
    assert ("cnn.scale" in agent.state_dict()) == (scale != CODES), "the usual layout stays as it is"
    again = build_agent(agent.state_dict())
    assert again is not None
    with torch.no_grad():
        assert torch.equal(again(IMAGE)[0], agent(IMAGE)[0])


def test_it_is_played_with_its_own_scale(tmp_path: Path) -> None:
    torch.save(MinigridAgent(7, scale=3.0).state_dict(), tmp_path / "m")
    result = evaluate("ppo", tmp_path / "m", "MiniGrid-Empty-5x5-v0", episodes=1, max_episode_steps=5)
    assert result.lengths == [5]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_no_scale_at_all_is_refused(scale: float) -> None:
    with pytest.raises(BadConfig, match="--minigrid-scale must be more than 0"):
        check(Args(minigrid_scale=scale))

"""The networks have the promised shapes, and model files of every known origin load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleanrl_worker.agents.gru import GRUAgent
from cleanrl_worker.agents.loading import build_agent, load_into, read_model, weights_and_step
from cleanrl_worker.agents.minigrid import MinigridAgent, MinigridCNN
from cleanrl_worker.agents.mlp import MLPAgent
from cleanrl_worker.algorithms.ppo import Args, DenseLearner
from cleanrl_worker.training.errors import BadConfig


def test_minigrid_agent() -> None:
    agent = MinigridAgent(7)
    assert tuple(agent.cnn.network[7].weight.shape) == (128, 3136)
    logits, values = agent(torch.randint(0, 11, (5, 7, 7, 3), dtype=torch.uint8))
    assert (tuple(logits.shape), tuple(values.shape)) == ((5, 7), (5,))
    with torch.no_grad():
        ten = torch.full((1, 7, 7, 3), 10, dtype=torch.uint8)
        cnn = MinigridCNN()
        torch.testing.assert_close(cnn(ten), cnn.network(torch.ones(1, 3, 7, 7)))


def test_mlp_agents() -> None:
    assert sorted(MLPAgent(4, 2).state_dict()) == sorted(
        f"{net}.{layer}.{kind}" for net in ("actor", "critic") for layer in (0, 2, 4) for kind in ("weight", "bias")
    )
    shared = MLPAgent(4, 2, shared=True)
    assert sum(p.numel() for p in shared.parameters()) == 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2 + 64 + 1
    logits, values = shared(torch.zeros(3, 4))
    assert (tuple(logits.shape), tuple(values.shape)) == ((3, 2), (3,))


def test_the_dense_learner_and_the_torch_agent_are_the_same_network() -> None:
    learner = DenseLearner(4, 2, Args(minibatch_size=2), np.random.default_rng(0))
    agent = MLPAgent(4, 2)
    load_into(agent, learner.agent.state_dict())
    obs = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    logits, values = learner.evaluate(obs)
    with torch.no_grad():
        torch_logits, torch_values = agent(torch.as_tensor(obs))
    np.testing.assert_allclose(logits, torch_logits.numpy(), atol=1e-6)
    np.testing.assert_allclose(values, torch_values.numpy(), atol=1e-6)


def test_gru_forgets_where_an_episode_starts() -> None:
    torch.manual_seed(0)
    agent = GRUAgent(3, 4, hidden_size=8, num_layers=2)
    obs, starts = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.bool)
    starts[3, 0] = True
    with torch.no_grad():
        logits, values, memory = agent(obs, torch.randn(2, 2, 8), starts)
        alone, *_ = agent(obs[3:, :1], torch.zeros(2, 1, 8), torch.zeros(3, 1, dtype=torch.bool))
    torch.testing.assert_close(logits[3:, :1], alone)
    assert (tuple(values.shape), tuple(memory.shape)) == ((6, 2), (2, 2, 8))


def test_gru_step_by_step_equals_the_whole_sequence() -> None:
    torch.manual_seed(0)
    agent = GRUAgent(3, 4, hidden_size=8)
    obs, starts = torch.randn(9, 5, 3), torch.rand(9, 5) < 0.3
    memory = agent.initial_memory(5)
    with torch.no_grad():
        whole, _, after = agent(obs, memory, starts)
        for t in range(9):
            logits, _, memory = agent(obs[t : t + 1], memory, starts[t : t + 1])
            torch.testing.assert_close(logits[0], whole[t])
    torch.testing.assert_close(memory, after)


def test_gru_masked_actions_are_impossible() -> None:
    agent = GRUAgent(3, 7, masked=(0, 6, 7))
    logits, *_ = agent(torch.zeros(1, 2, 3), agent.initial_memory(2), torch.zeros(1, 2, dtype=torch.bool))
    assert torch.isinf(logits[0, :, [0, 6]]).all()
    assert torch.isfinite(logits[0, :, 1:6]).all()
    with pytest.raises(ValueError, match="every action"):
        GRUAgent(3, 1, masked=(0,))


def test_gru_weights_without_a_mask_are_taken_by_an_agent_that_has_one() -> None:
    plain, masked = GRUAgent(3, 7), GRUAgent(3, 7, masked=(0, 6))
    load_into(masked, plain.state_dict())
    torch.testing.assert_close(masked.actor.weight, plain.actor.weight)
    assert masked.masked.nonzero().flatten().tolist() == [0, 6]


@pytest.mark.parametrize(("then", "now"), [((), (0, 6)), ((0, 6), ()), ((0, 6), (1,))])
def test_the_gru_masks_what_its_flag_says_whatever_its_checkpoint_did(
    then: tuple[int, ...], now: tuple[int, ...]
) -> None:
    """Those from before weights said it have no mask, like one that was made without."""
    saved, agent = GRUAgent(3, 7, masked=then), GRUAgent(3, 7, masked=now)
    agent.load_state_dict(saved.state_dict())
    torch.testing.assert_close(agent.actor.weight, saved.actor.weight)
    assert tuple(agent.masked.nonzero().flatten().tolist()) == now


def mosaic_minigrid() -> dict[str, torch.Tensor]:
    """MOSAIC's layout: heads on the flattened image."""
    return {name: torch.randn_like(value) for name, value in MinigridAgent(7, features=None).state_dict().items()}


@pytest.mark.parametrize(
    ("weights", "kind", "check"),
    [
        (MLPAgent(4, 2).state_dict(), MLPAgent, lambda agent: not agent.shared),
        (MLPAgent(6, 3, shared=True).state_dict(), MLPAgent, lambda agent: agent.shared),
        (MinigridAgent(7).state_dict(), MinigridAgent, lambda agent: agent.cnn.scale == 10),
        (MinigridAgent(7, view=5).state_dict(), MinigridAgent, lambda agent: agent.cnn.outputs == 128),
        (mosaic_minigrid(), MinigridAgent, lambda agent: agent.cnn.scale == 255 and agent.cnn.outputs == 3136),
        (GRUAgent(9, 3, 16, 2).state_dict(), GRUAgent, lambda agent: agent.gru.num_layers == 2),
        (
            GRUAgent(9, 3, 16, masked=(1,)).state_dict(),
            GRUAgent,
            lambda agent: agent.masked.tolist() == [False, True, False],
        ),
    ],
)
def test_each_layout_is_recognised(weights: Any, kind: type, check: Any) -> None:
    agent = build_agent(weights)
    assert type(agent) is kind
    assert check(agent)
    for name, value in agent.state_dict().items():
        torch.testing.assert_close(value, weights[name])


def test_files_of_every_known_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = MLPAgent(4, 2).state_dict()
    path = tmp_path / "m.cleanrl_model"
    torch.save(state, path)
    assert weights_and_step(read_model(path))[1] == 0
    torch.save({"model_state_dict": state, "global_step": 4096, "iteration": 8}, path)
    weights, step = weights_and_step(read_model(path))
    assert (set(weights), step) == (set(state), 4096)
    monkeypatch.setenv("CLEANRL_RESUME_GLOBAL_STEP", "77")
    assert weights_and_step(read_model(path))[1] == 77
    torch.save({"model_weights": state, "args": {"n_atoms": 101}}, path)
    assert set(weights_and_step(read_model(path))[0]) == set(state)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "was-run",))

    torch.save({"x": Evil()}, tmp_path / "evil")
    with pytest.raises(BadConfig, match="can be read safely"):
        read_model(tmp_path / "evil")
    assert not (tmp_path / "was-run").exists()
    with pytest.raises(BadConfig, match="does not exist"):
        read_model(tmp_path / "none")


@pytest.mark.parametrize(
    ("bigger", "smaller", "part"),
    [
        (GRUAgent(3, 7, num_layers=2), GRUAgent(3, 7), r"gru\.weight_hh_l1"),
        (MinigridAgent(7, scale=5.0), MinigridAgent(7), r"cnn\.scale"),
        (MinigridAgent(7, words=9), MinigridAgent(7), r"mission\.weight"),
    ],
)
def test_a_run_goes_on_from_a_whole_network_or_not_at_all(bigger: Any, smaller: Any, part: str) -> None:
    """What it has in common with another one fits, and means something else there."""
    before = {name: value.clone() for name, value in smaller.state_dict().items()}
    with pytest.raises(ValueError, match=part):
        load_into(smaller, bigger.state_dict(), whole=True)
    torch.testing.assert_close(dict(smaller.state_dict()), before)
    masked, plain = GRUAgent(3, 7, masked=(0, 6)), GRUAgent(3, 7)
    load_into(plain, masked.state_dict(), whole=True)  # a flag says what is masked
    torch.testing.assert_close(plain.actor.weight, masked.actor.weight)


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"actor\.0\.weight"):
        load_into(MLPAgent(4, 2), MLPAgent(5, 2).state_dict())
    assert build_agent({"something.else": torch.zeros(1)}) is None
